package data

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/batch"
	nodes "penstock/client"
	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/traffic"
	"penstock/internal/node/aside"
	"penstock/segment/aio"
)

// asideDir is what the commands about cuts share: the data directory of a node.
type asideDir struct {
	path   string
	asJSON bool
	in     io.Reader
	out    io.Writer
	prompt io.Writer
}

// AsideCommand has the commands of penstock aside below it.
func AsideCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "aside",
		Short: "Look at what cuts took from a node's copies, and publish it again",
		Long: strings.TrimSpace(`
Look at what cuts took from a node's copies, and publish it again.

A node cuts its copy of a partition where the leader has other messages, or none. Mostly these messages were never
answered OK: a leader that lost its node had stored them alone. But if the leader is the one that lost something, they
may be acknowledged messages that nobody else has. So a node keeps what a cut takes, for 7 days and up to 1 GiB, in the
folder aside of its data directory. Segments that a commit log had forgotten are there, too, until they are removed.

These commands read the data directory, so they run on the machine of the node, which may be running.`),
	}
	cmd.AddCommand(asideListCommand(), asideShowCommand(), asidePublishCommand(), asideRemoveCommand())
	return cmd
}

func (d *asideDir) flags(f *pflag.FlagSet) {
	f.StringVar(&d.path, "data-path", "", "data directory of the node")
}

// open opens the data directory. Without change, the node may be running.
func (d *asideDir) open(change bool) (aio.Disk, error) {
	if d.path == "" {
		return nil, cli.Fail(cli.ExitUsage, errors.New("say the data directory with --data-path"))
	}
	disk, err := aio.OpenDisk(d.path, aio.DiskOptions{Mode: aio.ModePwrite, ReadOnly: !change, NoLock: !change})
	switch {
	case errors.Is(err, aio.ErrLocked):
		err = fmt.Errorf("a node is running on %s, and removes what it keeps aside by itself after 7 days: stop it first; "+
			"nothing was removed", d.path)
	case err == nil:
		if _, err = disk.ReadFile("node.json", 1<<20); err != nil {
			err = errors.Join(fmt.Errorf("%s is not a data directory: %w", d.path, err), disk.Close())
		}
	}
	if err != nil {
		return nil, cli.Fail(cli.ExitData, err)
	}
	return disk, nil
}

// find reads the entry with that id.
func (d *asideDir) find(disk aio.Disk, id string) (aside.Entry, error) {
	e, err := aside.Find(disk, id)
	if err != nil {
		return e, fmt.Errorf("there is no cut %s: %w; penstock aside list shows those that there are", id, err)
	}
	return e, nil
}

// action makes a command.
func (d *asideDir) action(
	use, short string, args cobra.PositionalArgs, do func(ctx context.Context, args []string) error,
) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: args, RunE: func(cmd *cobra.Command, args []string) error {
		d.in, d.out, d.prompt = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
		ctx, stop := cli.UntilSignal(cmd.Context())
		defer stop()
		return cli.WithExitCode(do(ctx, args))
	}}
	d.flags(cmd.Flags())
	return cmd
}

// AsideCut is a cut as list prints it with --json.
type AsideCut struct {
	ID string `json:"id"`
	*aside.Cut
	Error string `json:"error,omitempty"` // why nothing but the id is known
}

func asideListCommand() *cobra.Command {
	d := new(asideDir)
	cmd := d.action("list", "List the cuts that took messages", cobra.NoArgs, func(context.Context, []string) error {
		disk, err := d.open(false)
		if err != nil {
			return err
		}
		defer disk.Close()
		all, err := aside.List(disk)
		if err != nil {
			return err
		}
		return d.list(all)
	})
	cmd.Long = "List the cuts that took messages from copies on a node, the oldest first. MESSAGES are kept; NOT KEPT\n" +
		"are those for which there was no room, or that could not be read. FIRST and LAST say when a leader stored the\n" +
		"first and the last message that is kept, and OF LEADER to which leader the copy was cut, by its number and epoch."
	cmd.Flags().BoolVar(&d.asJSON, "json", false, "print JSON")
	return cmd
}

func (d *asideDir) list(all []aside.Entry) error {
	if d.asJSON {
		out := make([]AsideCut, 0, len(all))
		for i := range all {
			c := AsideCut{ID: all[i].Name}
			if err := all[i].Err; err != nil {
				c.Error = err.Error()
			} else {
				c.Cut = &all[i].Cut
			}
			out = append(out, c)
		}
		return cli.PrintJSON(d.out, out)
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(d.out, "no cut has taken messages from a copy")
		return err
	}
	t := cli.Table(d.out)
	fmt.Fprintln(t, "ID\tTOPIC\tPARTITION\tCUT\tMESSAGES\tNOT KEPT\tBYTES\tPOSITIONS\tFIRST\tLAST\tOF LEADER")
	for i := range all {
		e := &all[i]
		if e.Err != nil {
			fmt.Fprintf(t, "%s\t%v\n", e.Name, e.Err)
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%d\t%d\t%d\t%d to %d\t%s\t%s\t%d, epoch %d\n", e.Name, e.Topic, e.Partition,
			e.Time.UTC().Format(time.RFC3339), e.Messages, e.Lost(), e.Bytes, e.From, e.Until-1,
			e.FirstTime.UTC().Format(time.RFC3339), e.LastTime.UTC().Format(time.RFC3339), e.Leader, e.LeaderEpoch)
	}
	return t.Flush()
}

func asideShowCommand() *cobra.Command {
	d, p := new(asideDir), new(traffic.Printer)
	cmd := d.action("show ID", "Print the messages that a cut took", cobra.ExactArgs(1),
		func(_ context.Context, args []string) error {
			signal.Ignore(syscall.SIGPIPE) // who reads the output may have seen enough
			disk, err := d.open(false)
			if err != nil {
				return err
			}
			defer disk.Close()
			e, err := d.find(disk, args[0])
			if err != nil {
				return err
			}
			p.Begin(d.out)
			err = eachMessage(disk, &e, func(m *nodes.Message, _ uint64) error { return p.Print(m, 0, false) })
			if flushed := p.Flush(); flushed != nil && !errors.Is(flushed, syscall.EPIPE) {
				return flushed
			}
			if errors.Is(err, traffic.ErrEnough) || errors.Is(err, syscall.EPIPE) {
				return nil
			}
			return err
		})
	cmd.Long = "Print the messages that a cut took from a copy, one per line, in their order. ID is one of penstock\n" +
		"aside list.\n\n" + traffic.FormatHelp
	p.Flags(cmd.Flags())
	cli.CompletesChoices(cmd)
	return cmd
}

// eachMessage calls fn for each message that an entry keeps; n counts them, from 0. The message is valid until fn
// returns.
func eachMessage(disk aio.Disk, e *aside.Entry, fn func(m *nodes.Message, n uint64) error) error {
	var it batch.RecordIter
	var scratch []byte
	n := uint64(0)
	return aside.Scan(disk, e, func(h *batch.Header, body []byte) error {
		if h.Control() {
			return nil
		}
		records, err := batch.DecompressBody(h, body, scratch)
		if err != nil {
			return err
		}
		if h.Codec != batch.CodecNone {
			scratch = records
		}
		it.Reset(h, records)
		for id := h.FirstID; ; id++ {
			rec := it.NextRef()
			if rec == nil {
				return it.Err()
			}
			m := nodes.Message{
				ID: batch.MakeID(e.Partition, id), Body: rec.Body,
				Time: time.Unix(0, h.Created).Add(time.Duration(rec.TimeDelta) * time.Microsecond),
			}
			for _, kv := range rec.Headers {
				if m.Key == nil && string(kv.Key) == nodes.KeyHeader {
					m.Key = kv.Value
				} else {
					m.Headers = append(m.Headers, nodes.Header(kv))
				}
			}
			if err := fn(&m, n); err != nil {
				return err
			}
			n++
		}
	})
}

func asideRemoveCommand() *cobra.Command {
	d := new(asideDir)
	cmd := d.action("remove ID", "Remove what a cut took", cobra.ExactArgs(1),
		func(_ context.Context, args []string) error {
			disk, err := d.open(true)
			if err != nil {
				return err
			}
			defer disk.Close()
			e, err := d.find(disk, args[0])
			if err == nil {
				err = aside.Remove(disk, e.Name)
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(d.out, "removed: %s that a cut took from topic %s, partition %d\n",
				cli.Counted(e.Messages, "message"), e.Topic, e.Partition)
			return err
		})
	cmd.Long = "Remove what a cut took, before its time is over. The node must not be running."
	return cmd
}
