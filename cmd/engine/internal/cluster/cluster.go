package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/client"
	"penstock/cmd/engine/internal/values"
	"penstock/internal/cluster/admin"
)

// operator is cli.Operator with the commands of this package.
type operator struct{ cli.Operator }

// drainPoll is the interval at which drain --wait asks for the status.
const drainPoll = 100 * time.Millisecond

// Command has the commands of penstock cluster below it.
func Command() *cobra.Command {
	o := new(operator)
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Show and manage a cluster",
		Long: "Show and manage a cluster through the HTTP API of any of its nodes. NODE is a node_id or the number of a\n" +
			"node; partitions are numbered from 0. If the node requires a token, name a file with it in --token-file.",
	}
	o.Flags(cmd, "http")
	cmd.AddCommand(o.statusCommand(), o.healthCommand(), o.topicsCommand(), o.drainCommand(), o.moveCommand(),
		o.transferLeaderCommand(), o.forceLeaderCommand(), o.removeNodeCommand(), o.expandCommand(),
		o.setReplicasCommand(), o.rebalanceCommand(), o.upgradeCommand(), o.verifyCommand(), initTLSCommand())
	return cmd
}

// StatusCommand and HealthCommand are commands of penstock cluster, and of penstock itself: they work with a single
// node, too.
func StatusCommand() *cobra.Command {
	o := new(operator)
	return o.Anywhere(o.statusCommand())
}

func (o *operator) statusCommand() *cobra.Command {
	cmd := o.Action("status", "Show the health of a node, or of its cluster with all nodes", cobra.NoArgs,
		func(ctx context.Context, _ []string) error {
			st := new(admin.Status)
			err := o.Client.Get(ctx, "/cluster/status", url.Values{"faults": {""}}, st)
			if errors.Is(err, client.ErrNoSuchRequest) { // it is in no cluster
				return o.statusAlone(ctx)
			}
			if err != nil {
				return err
			}
			if st.Health == "" {
				st.Health, st.Healthy = "not known: the node is of a version that does not say it", true
			}
			err = o.Print(st, func(w io.Writer) error { return PrintStatus(w, st) })
			if err != nil || st.Healthy {
				return err
			}
			return cli.Fail(cli.ExitUnhealthy, nil)
		})
	cmd.Long = "Show the nodes and the health of the cluster, as the contacted node knows them, or the health\n" +
		"and the faults of a single node. \"as of\" says when the metadata store last answered that node. The exit\n" +
		"code is 10 if something is wrong."
	return cmd
}

func (o *operator) topicsCommand() *cobra.Command {
	cmd := o.Action("topics [TOPIC]", "Show the leader and the replicas of every partition", cobra.MaximumNArgs(1),
		func(ctx context.Context, args []string) error {
			all, err := o.placement(ctx, args...)
			if err != nil {
				return err
			}
			return o.Print(all, func(w io.Writer) error { return PrintTopics(w, all) })
		})
	cmd.Long = "Show the leader and the replicas of every partition. The exit code is 0 in whatever state the\n" +
		"partitions are: a script asks penstock cluster health, which ends with 10 if something is wrong."
	return cmd
}

func (o *operator) drainCommand() *cobra.Command {
	var off bool
	var wait time.Duration
	cmd := o.Action("drain NODE", "Move leaderships and replicas away from a node", cobra.ExactArgs(1),
		func(ctx context.Context, args []string) error {
			on := !off
			if off && wait > 0 {
				return cli.Fail(cli.ExitUsage, errors.New("--off and --wait exclude each other: ending a drain takes effect at "+
					"once"))
			}
			drain := &admin.Drain{Node: admin.NodeRef(args[0]), On: &on}
			if wait == 0 {
				return o.change(ctx, "/cluster/drain", drain)
			}
			done := new(admin.Done)
			if err := o.Client.Post(ctx, "/cluster/drain", nil, drain, done); err != nil {
				return err
			}
			o.progress("%s", done.Message)
			needed, err := o.waitForDrain(ctx, args[0], wait)
			switch {
			case err != nil:
				return err
			case needed > 0:
				return o.Done("node %s leads no partition, but do not stop it yet: %s it for their min_isr, and take no messages "+
					"without it; see penstock cluster health", args[0], cli.InNumber(needed, "partition needs", "partitions need"))
			}
			return o.Done("node %s leads no partition: it may be stopped now", args[0])
		})
	cmd.Flags().BoolVar(&off, "off", false, "end the drain: the node may get leaderships and replicas again")
	values.DurationVar(cmd.Flags(), &wait, "wait", 0,
		"wait up to this long until the node leads no partition and can be stopped without a pause; 0 means do not wait")
	return cmd
}

// waitForDrain waits until the node leads nothing, so that stopping it interrupts nobody who does not need it as a
// replica. It returns how many partitions do.
func (o *operator) waitForDrain(ctx context.Context, node string, wait time.Duration) (needed int, err error) {
	leaders := -1
	for deadline := time.Now().Add(wait); ; {
		st := new(admin.Status)
		// The change that the store accepted may reach the node at which we ask a moment later. So a status counts only
		// once it shows the node as draining.
		err := asking(ctx, deadline, func(ctx context.Context) error {
			return o.Client.Get(ctx, "/cluster/status", nil, st)
		})
		late := !time.Now().Before(deadline)
		if err == nil {
			if n := findNode(st, node); n != nil && n.Draining {
				if n.Leaders != leaders && n.Leaders > 0 {
					o.progress("node %s still leads %d of %d partitions", node, n.Leaders, st.PartitionCount)
				}
				leaders, needed = n.Leaders, n.Needed
			}
		} else if !late {
			return 0, err
		}
		switch {
		case leaders == 0:
			return needed, nil
		case late && leaders < 0:
			return 0, fmt.Errorf("node %s did not begin to drain within %v: it may begin later; see penstock cluster status",
				node, wait)
		case late:
			return 0, fmt.Errorf("node %s still leads %s after %v: other in-sync replicas are missing, or it needs "+
				"more time; see penstock cluster topics", node, cli.Counted(leaders, "partition"), wait)
		}
		select {
		case <-time.After(min(drainPoll, time.Until(deadline))):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// progress prints a line about a change that takes its time. JSON has only the outcome.
func (o *operator) progress(format string, args ...any) {
	if !o.AsJSON {
		fmt.Fprintf(o.Out, format+"\n", args...)
	}
}

func findNode(st *admin.Status, ref string) *admin.Node {
	i := slices.IndexFunc(st.Nodes, func(n admin.Node) bool { return n.Name == ref })
	if i < 0 {
		i = slices.IndexFunc(st.Nodes, func(n admin.Node) bool { return strconv.FormatUint(uint64(n.ID), 10) == ref })
	}
	if i < 0 {
		return nil
	}
	return &st.Nodes[i]
}

func (o *operator) moveCommand() *cobra.Command {
	var from, to string
	var cancel bool
	cmd := o.Action("move TOPIC PARTITION --from NODE --to NODE",
		"Move a replica to another node; the old one is removed when the new one is in sync", cobra.ExactArgs(2),
		func(ctx context.Context, args []string) error {
			p, err := partitionArg(args[1])
			switch {
			case err != nil:
				return err
			case cancel && (from != "" || to != ""):
				return cli.Fail(cli.ExitUsage, errors.New("--cancel undoes the move that is under way: it takes no --from and no "+
					"--to"))
			case !cancel && (from == "" || to == ""):
				return cli.Fail(cli.ExitUsage, errors.New("--from and --to are not set: a move needs both; --cancel undoes one"))
			}
			return o.change(ctx, "/cluster/move", &admin.Move{
				Topic: args[0], Partition: &p, From: admin.NodeRef(from), To: admin.NodeRef(to), Cancel: cancel,
			})
		})
	cmd.Long = "Move a replica to another node. The old one is removed when the new one is in sync. penstock cluster\n" +
		"rebalance --dry-run shows the moves that are under way, who began them, and what they do or wait for. A move\n" +
		"whose target is being drained, or is dead for a minute, is undone by itself; --cancel undoes any other one."
	cmd.Flags().StringVar(&from, "from", "", "node to move the replica from")
	cmd.Flags().StringVar(&to, "to", "", "node to move the replica to")
	cmd.Flags().BoolVar(&cancel, "cancel", false, "undo the move of the partition that is under way, whoever began it")
	o.CompletesNodes(cmd, "from", "to")
	return cmd
}

func (o *operator) removeNodeCommand() *cobra.Command {
	return o.Action("remove-node NODE", "Remove a stopped node that has no replicas left", cobra.ExactArgs(1),
		func(ctx context.Context, args []string) error {
			return o.change(ctx, "/cluster/remove-node", &admin.RemoveNode{Node: admin.NodeRef(args[0])})
		})
}

func (o *operator) expandCommand() *cobra.Command {
	return o.Action("expand TOPIC PARTITIONS", "Raise a topic's number of partitions to PARTITIONS", cobra.ExactArgs(2),
		func(ctx context.Context, args []string) error {
			n, err := strconv.ParseUint(args[1], 10, 31)
			if err != nil {
				return cli.Fail(cli.ExitUsage, fmt.Errorf("%q is not a number of partitions", args[1]))
			}
			return o.change(ctx, "/cluster/expand", &admin.Expand{Topic: args[0], Partitions: int(n)})
		})
}

func (o *operator) upgradeCommand() *cobra.Command {
	cmd := o.Action("upgrade", "Raise the cluster to the newest feature level",
		cobra.NoArgs, func(ctx context.Context, _ []string) error {
			return o.change(ctx, "/cluster/upgrade", &admin.Upgrade{})
		})
	cmd.Long = "Raise the cluster to the newest feature level that the contacted node knows. The command is refused\n" +
		"unless every registered node runs a version that knows this level. Until you run it, nodes can go back to the\n" +
		"older version; afterwards older versions refuse to start."
	return cmd
}

// change requests a change and prints the sentence that the node answers.
func (o *operator) change(ctx context.Context, path string, body any) error {
	done := new(admin.Done)
	if err := o.Client.Post(ctx, path, nil, body, done); err != nil {
		return err
	}
	return o.printDone(done)
}

// printDone prints what came of a change.
func (o *operator) printDone(done *admin.Done) error {
	return o.Print(done, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, done.Message)
		return err
	})
}

func partitionArg(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, cli.Fail(cli.ExitUsage, fmt.Errorf("%q is not the number of a partition: they count from 0", s))
	}
	return uint32(n), nil
}

// placement returns where the partitions of all topics are, or of one topic.
func (o *operator) placement(ctx context.Context, topic ...string) (*admin.Topics, error) {
	q := url.Values{}
	if len(topic) > 0 {
		q.Set("topic", topic[0])
	}
	all := new(admin.Topics)
	return all, o.Client.Get(ctx, "/cluster/topics", q, all)
}
