package cluster

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/values"
	"penstock/internal/cluster"
	"penstock/internal/cluster/admin"
	"penstock/internal/meta"
)

// rebalancePoll is the interval at which rebalance --wait asks for the status.
const rebalancePoll = 500 * time.Millisecond

func (o *operator) rebalanceCommand() *cobra.Command {
	var dryRun, pause, resume, cancel bool
	var wait time.Duration
	cmd := o.Action("rebalance", "Spread replicas and leaders evenly over nodes and racks", cobra.NoArgs,
		func(ctx context.Context, _ []string) error {
			if dryRun {
				return cli.Show(ctx, &o.Operator, "/cluster/rebalance", nil, printPlan)
			}
			order := meta.RebalanceStart
			switch {
			case pause:
				order = meta.RebalancePause
			case resume:
				order = meta.RebalanceResume
			case cancel:
				order = meta.RebalanceCancel
			}
			if err := o.change(ctx, "/cluster/rebalance", &admin.RebalanceRequest{Action: order}); err != nil || wait == 0 {
				return err
			}
			return o.waitForRebalance(ctx, wait)
		})
	f := cmd.Flags()
	f.BoolVar(&dryRun, "dry-run", false, "only show what a rebalance would do")
	f.BoolVar(&pause, "pause", false, "begin no more moves; moves that are under way end")
	f.BoolVar(&resume, "resume", false, "end a pause")
	f.BoolVar(&cancel, "cancel", false, "want no rebalance any more; moves that are under way end")
	values.DurationVar(f, &wait, "wait", 0, "wait up to this long until nothing is left to move; 0 means do not wait")
	cmd.MarkFlagsMutuallyExclusive("dry-run", "pause", "resume", "cancel")
	cmd.MarkFlagsMutuallyExclusive("dry-run", "pause", "wait")
	cmd.Long = "Spread replicas and leaders evenly over nodes and racks, for example after a node has joined. Only as\n" +
		"many partitions are copied at the same time as rebalance-moves says, and a partition moves only when all of\n" +
		"its replicas are in sync, except those on nodes that have been dead for a minute. The cluster also does this\n" +
		"by itself, when a node has joined or been away for as long as rebalance-after says. penstock cluster status\n" +
		"shows the progress."
	return cmd
}

func printPlan(w io.Writer, p *admin.Plan) error {
	for _, m := range p.Moves {
		fmt.Fprintf(w, "under way: %s/%d from %s to %s, begun by the %s: %s\n", m.Topic, m.Partition, m.From, m.To,
			cmp.Or(m.Owner, "cluster"), cmp.Or(m.State, "not known"))
	}
	if len(p.Steps) == 0 {
		fmt.Fprintln(w, "nothing else is to be moved")
		return nil
	}
	t := cli.Table(w)
	fmt.Fprintln(t, "TOPIC\tPARTITION\tFROM\tTO\tWHAT")
	for _, s := range p.Steps {
		what := "copy"
		if s.Swap {
			what = "lead"
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\n", s.Topic, s.Partition, s.From, s.To, what)
	}
	if len(p.Steps) >= cluster.MaxProposalCount {
		fmt.Fprintln(t, "and more")
	}
	return t.Flush()
}

// waitForRebalance asks for the status until no rebalance is wanted and nothing moves. It prints what is left when that
// changes, and says so at the end. It waits for one answer at least minAsk, to say at the end what it knows.
func (o *operator) waitForRebalance(ctx context.Context, limit time.Duration) error {
	last, paused := "", false
	for deadline := time.Now().Add(limit); ; {
		st := new(admin.Status)
		err := asking(ctx, deadline, func(ctx context.Context) error {
			return o.Client.Get(ctx, "/cluster/status", nil, st)
		})
		late := !time.Now().Before(deadline)
		switch {
		case err != nil && !late:
			return err
		case err != nil: // it keeps what the last answer said
		case !st.Rebalance.Wanted && st.Rebalance.MoveCount == 0:
			if !o.AsJSON {
				fmt.Fprintln(o.Prompt, "nothing is left to move")
			}
			return nil
		default:
			now := rebalancing(&st.Rebalance)
			if now != last && !o.AsJSON {
				fmt.Fprintln(o.Prompt, now)
			}
			last, paused = now, st.Rebalance.State == admin.RebalancePaused
		}
		switch {
		case late && paused:
			return fmt.Errorf("the rebalance is not complete after %v and stands still: %s; penstock cluster rebalance "+
				"--resume ends the pause", limit, last)
		case late:
			return fmt.Errorf("the rebalance is not complete after %v: it goes on; see penstock cluster status", limit)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(rebalancePoll, time.Until(deadline))):
		}
	}
}

// rebalancing describes the state in a line of the status.
func rebalancing(r *admin.Rebalancing) string {
	text := string(r.State)
	if r.MoveCount > 0 {
		text += fmt.Sprintf(", %s under way", cli.Counted(r.MoveCount, "move"))
	}
	if r.WaitingCount > 0 {
		text += fmt.Sprintf(", %d of them waiting (penstock cluster rebalance --dry-run says for what)", r.WaitingCount)
	}
	switch {
	case r.RemainingCount >= cluster.MaxProposalCount:
		text += fmt.Sprintf(", more than %d steps remain", cluster.MaxProposalCount)
	case r.RemainingCount > 0:
		text += fmt.Sprintf(", %s", cli.InNumber(r.RemainingCount, "step remains", "steps remain"))
	}
	if r.Gone != "" {
		text += fmt.Sprintf("; node %s is gone, and its replicas are made elsewhere", r.Gone)
	}
	return text
}
