package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/cluster/admin"
)

func (o *operator) forceLeaderCommand() *cobra.Command {
	var yes, dry bool
	cmd := o.Action("force-leader TOPIC PARTITION NODE",
		"Make a replica the leader even if it lacks acknowledged messages", cobra.ExactArgs(3),
		func(ctx context.Context, args []string) error {
			p, err := partitionArg(args[1])
			if err != nil {
				return err
			}
			body := &admin.ForceLeader{Topic: args[0], Partition: &p, Node: admin.NodeRef(args[2])}
			if dry {
				return o.forceDry(ctx, body)
			}
			if !yes {
				if err := o.confirmLoss(ctx, body); err != nil {
					return err
				}
			}
			body.IAcceptDataLoss = true
			return o.change(ctx, "/cluster/force-leader", body)
		})
	cmd.Long = "Make a replica the leader even if it lacks acknowledged messages, which are then lost. No other\n" +
		"cluster command loses acknowledged messages. Use it when the in-sync replicas are gone for good, or to choose\n" +
		"between a contested copy and its leader. If one of the in-sync replicas can come back, start it instead. Before\n" +
		"it asks, and with --dry-run, it says where the copies that can be asked end, and what is known to be lost. What\n" +
		"the other copies lose is kept aside on their nodes for some days: see penstock aside."
	cmd.Flags().BoolVar(&yes, "yes", false,
		"do not ask for confirmation; messages that only other replicas have are lost for good")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say what is known to be lost, and change nothing")
	cmd.MarkFlagsMutuallyExclusive("yes", "dry-run")
	return cmd
}

// forceDry says what is known to be lost, and changes nothing.
func (o *operator) forceDry(ctx context.Context, body *admin.ForceLeader) error {
	done, err := o.askLoss(ctx, body)
	switch {
	case err != nil:
		return err
	case o.AsJSON:
		return cli.PrintJSON(o.Out, done)
	}
	if err := printCopies(o.Out, done.Copies); err != nil {
		return err
	}
	_, err = fmt.Fprintln(o.Out, done.Message)
	return err
}

// askLoss asks the node what is known to be lost. An older version refuses the question, and changes nothing.
func (o *operator) askLoss(ctx context.Context, body *admin.ForceLeader) (*admin.Done, error) {
	question := *body
	question.DryRun = true
	var done admin.Done
	if err := o.Client.Post(ctx, "/cluster/force-leader", nil, &question, &done); err != nil {
		return nil, err
	}
	return &done, nil
}

// printCopies prints a table of the copies of a partition.
func printCopies(w io.Writer, copies []admin.Copy) error {
	if len(copies) == 0 {
		return nil
	}
	t := cli.Table(w)
	fmt.Fprintln(t, "NODE\tENDS AT\tCOMMITTED\tMESSAGES\tEPOCH\tLAST WRITTEN\tSTATE")
	for i := range copies {
		c := &copies[i]
		state := cmp.Or(strings.Join(c.States, ", "), "not in sync")
		if c.Away != "" {
			fmt.Fprintf(t, "%s\t-\t-\t-\t-\t-\t%s; not known: %s\n", c.Node, state, c.Away)
			continue
		}
		written := "-"
		if !c.Written.IsZero() {
			written = cli.Stamp(c.Written)
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%s\t%s\n", c.Node, c.End, c.Committed, c.Messages, c.Epoch, written, state)
	}
	return t.Flush()
}

// confirmLoss explains what may be lost, and asks for confirmation. Without a terminal it refuses: then --yes is
// required.
func (o *operator) confirmLoss(ctx context.Context, body *admin.ForceLeader) error {
	if !cli.IsTerminal(o.In) {
		return cli.Fail(cli.ExitUsage, errors.New("force-leader may lose acknowledged messages and asks before it does: "+
			"say --yes where nobody can answer; nothing was changed"))
	}
	topic, partition := body.Topic, *body.Partition
	all, err := o.placement(ctx, topic)
	if err != nil {
		return err
	}
	if len(all.Topics) != 1 || int(partition) >= len(all.Topics[0].Partitions) {
		return fmt.Errorf("topic %s has no partition %d; nothing was changed", topic, partition)
	}
	known := "What the copies have is not known: "
	done, err := o.askLoss(ctx, body)
	switch {
	case err != nil && !strings.Contains(err.Error(), "dry_run"):
		return err // the command would be refused, too
	case err != nil:
		known += "the node is of an older version, which does not say it"
	default:
		if err := printCopies(o.Prompt, done.Copies); err != nil {
			return err
		}
		known = "What is known: " + done.Message
	}
	p := all.Topics[0].Partitions[partition]
	fmt.Fprintf(o.Prompt, "%s.\n"+
		"Partition %d of topic %s was last led by node %s; its in-sync replicas are on %s.\n"+
		"If node %s becomes the leader, all acknowledged messages and confirmations that it does not have are\n"+
		"lost FOR EVER, and the other replicas are cut to match it. If one of the in-sync replicas can come back,\n"+
		"start it instead.\n"+
		"Type the name of the topic to continue: ", known, partition, topic, cmp.Or(p.Leader, "(nobody)"),
		cmp.Or(strings.Join(p.ISR, ", "), "(none)"), body.Node)
	return cli.Typed(o.In, topic, "nothing was changed")
}
