package data

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/node/offline"
)

// AcceptLossCommand lets a single node start again whose commit log has forgotten something. The node must not be
// running.
func AcceptLossCommand() *cobra.Command {
	var o lossOptions
	cmd := &cobra.Command{
		Use:   "accept-loss --data-path DIR",
		Short: "Let a single node start without what its commit log lost",
		Long: "Let a stopped single node start again that was refused because files of its commit log are gone, or\n" +
			"because an older state of its disk came back. First put back what was moved away, mount what is not mounted,\n" +
			"or restore a backup: then nothing is lost and this command is not needed.\n" +
			"It prints where the commit log ends and what segments hold behind that. Nothing is deleted: such segments\n" +
			"are moved into aside/ in the data directory. A node of a cluster needs no such command: it starts, and gets\n" +
			"what it lacks from the other replicas.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.dir == "" {
				return cli.Fail(cli.ExitUsage, errors.New("say the data directory with --data-path"))
			}
			return o.run(cmd)
		},
	}
	cmd.Flags().StringVar(&o.dir, "data-path", "", "data directory of the stopped node")
	cmd.Flags().BoolVar(&o.yes, "yes", false, "do not ask for confirmation; what is missing is lost for good")
	cmd.Flags().BoolVar(&o.asJSON, "json", false, "print JSON")
	return cmd
}

type lossOptions struct {
	dir         string
	yes, asJSON bool
}

// run finds out what is lost, asks, and reports.
func (o *lossOptions) run(cmd *cobra.Command) error {
	out, asked := cmd.OutOrStdout(), error(nil)
	loss, accepted, err := offline.AcceptLoss(o.dir, func(l *offline.Loss) bool {
		if !o.asJSON {
			if asked = printLoss(out, l); asked != nil {
				return false
			}
		}
		if !o.yes {
			asked = o.confirm(cmd)
		}
		return asked == nil
	})
	switch {
	case asked != nil:
		return cli.WithExitCode(asked)
	case err != nil:
		return cli.Fail(cli.ExitData, err)
	case o.asJSON:
		return cli.PrintJSON(out, loss)
	case !accepted:
		_, err = fmt.Fprintln(out, "nothing is known to be missing: the node starts as it is; nothing was changed")
		return err
	}
	for _, p := range loss.Partitions {
		if p.Aside != "" {
			fmt.Fprintf(out, "what segments hold of topic %s, partition %d is in %s\n", p.Topic, p.Partition, p.Aside)
		}
	}
	_, err = fmt.Fprintln(out, "the loss is accepted: the node starts with what is left")
	return err
}

// confirm asks for confirmation. Without a terminal it refuses: then --yes is required.
func (o *lossOptions) confirm(cmd *cobra.Command) error {
	if !cli.IsTerminal(cmd.InOrStdin()) {
		return cli.Fail(cli.ExitUsage, errors.New("accept-loss gives up acknowledged messages and asks before it does: say "+
			"--yes where nobody can answer; nothing was changed"))
	}
	fmt.Fprint(cmd.ErrOrStderr(), "What is missing is lost FOR EVER if the node starts without it.\n"+
		"Type yes to continue: ")
	return cli.Typed(cmd.InOrStdin(), "yes", "nothing was changed")
}

// printLoss prints what is missing and what is left.
func printLoss(out io.Writer, l *offline.Loss) error {
	fmt.Fprintln(out, "missing:", l.Forgotten)
	if l.Wanted > 0 {
		fmt.Fprintf(out, "the commit log ends with group %d, and once reached group %d or more\n", l.Reached, l.Wanted)
	}
	w := cli.Table(out)
	fmt.Fprintln(w, "topic\tpartition\tnext message\tsegments go on to\tmessages aside\tfiles aside")
	for _, p := range l.Partitions {
		beyond := "-"
		if p.Files > 0 {
			beyond = fmt.Sprint(p.SegmentsNextID)
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%d\t%d\n", p.Topic, p.Partition, p.NextID, beyond, p.Messages, p.Files)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(out, "messages that were neither in a segment nor in what is left of the commit log are lost")
	return err
}
