package traffic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	nodes "penstock/client"
	"penstock/cmd/engine/internal/cli"
)

// reading is one run of read.
type reading struct {
	native nativeFlags

	Printer

	partition int // negative: all
	from      string
	follow    bool
}

// ReadCommand reads a topic without a channel.
func ReadCommand() *cobra.Command {
	r := &reading{}
	cmd := &cobra.Command{
		Use:   "read TOPIC",
		Short: "Print the messages that a topic holds",
		Long: strings.TrimSpace(`
Print the messages that a topic holds, one per line, and end behind the newest one. It reads the partitions directly: no
channel takes part, nothing is confirmed, and other readers and consumers do not notice. Within a partition, messages
have the order in which they were stored. Messages that retention removed are not there any more.

PLACE is one of:
  oldest  the oldest message of each partition
  newest  behind the newest message of each partition, for --follow
  ID      the message with these 16 hex digits; only its partition is read
  TIME    the first message stored at a time such as 2026-01-31T12:00:00Z or later, in each partition

` + FormatHelp),
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := CheckNamed(r.partition, args[0]); err != nil {
				return err
			}
			return r.whileRead(cmd, func(ctx context.Context) error { return r.run(ctx, args[0], cmd.ErrOrStderr()) })
		},
	}
	f := cmd.Flags()
	r.native.Add(f)
	f.IntVar(&r.partition, "partition", -1, "partition to read; without this flag, all of them")
	f.StringVar(&r.from, "from", "oldest", "`PLACE` to begin at: oldest, newest, an ID or a TIME")
	f.BoolVar(&r.follow, "follow", false, "do not end behind the newest message, but wait for more")
	r.Printer.Flags(f)
	r.native.Completes(cmd)
	cli.CompletesChoices(cmd)
	return cmd
}

func (r *reading) run(ctx context.Context, topic string, log io.Writer) error {
	from, partition, err := place(r.from)
	switch {
	case err != nil:
		return err
	case r.partition >= 0 && partition >= 0 && partition != r.partition:
		return cli.Fail(cli.ExitUsage, fmt.Errorf("--from %s is in partition %d, and --partition is %d", r.from, partition,
			r.partition))
	case partition < 0:
		partition = r.partition
	}
	return r.native.Run(ctx, log, func(ctx context.Context, c *nodes.Client) error {
		return r.read(ctx, c, topic, partition, from)
	})
}

// read reads one partition, or all if partition is negative.
func (r *reading) read(ctx context.Context, c *nodes.Client, topic string, partition int, from nodes.From) (err error) {
	partitions := []int{partition}
	if partition < 0 {
		n, err := c.Partitions(ctx, topic)
		if err != nil {
			return err
		}
		partitions = make([]int, n)
		for i := range partitions {
			partitions[i] = i
		}
	}
	err = r.all(ctx, c, topic, partitions, from)
	if flushed := r.Flush(); flushed != nil {
		return flushed
	}
	var gone *nodes.TrimmedError
	switch {
	case errors.Is(err, ErrEnough), ctx.Err() != nil && r.follow: // Ctrl-C is how --follow ends
		return nil
	case ctx.Err() != nil:
		return errors.New("interrupted before the newest message was reached")
	case errors.As(err, &gone):
		return fmt.Errorf("messages before %v were removed by retention: --from oldest begins with what is left", gone.First)
	}
	return err
}

// maxReadCount is how many partitions are read at once, unless --follow waits for messages of all.
const maxReadCount = 64

// all reads partitions at once, and returns the first error. With --follow that ends the others; without it they are
// read to their end, unless enough was printed.
func (r *reading) all(ctx context.Context, c *nodes.Client, topic string, partitions []int, from nodes.From) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all errgroup.Group
	if !r.follow {
		all.SetLimit(maxReadCount)
	}
	for _, p := range partitions {
		all.Go(func() error {
			err := r.one(ctx, c, topic, p, from)
			if err != nil && (r.follow || errors.Is(err, ErrEnough)) {
				cancel(err)
			}
			return err
		})
	}
	err := all.Wait()
	return cmp.Or(context.Cause(ctx), err)
}

// endPause is how long a reader waits for a message before it looks whether it has read all there are.
const endPause = 50 * time.Millisecond

// readPatience is how long read waits for a leader that has more messages and sends none: longer than an election.
const readPatience = 15 * time.Second

// one reads one partition: with --follow until ctx ends, otherwise until it has the message that was the newest when
// the partition's leader first answered, or nothing has come for readPatience.
func (r *reading) one(ctx context.Context, c *nodes.Client, topic string, partition int, from nodes.From) error {
	reader, err := c.Reader(ctx, topic, partition, from)
	if err != nil {
		return err
	}
	defer reader.Close()
	end, known := nodes.ID(0), false
	reached := func() bool {
		if r.follow {
			return false
		}
		if !known {
			end, known = reader.Newest()
		}
		at, ok := reader.Position()
		return known && ok && at >= end
	}
	for last := time.Now(); !reached(); {
		// There may be no message at all, which only the reader's position tells.
		brief, cancel := context.WithTimeoutCause(ctx, endPause, errNothingYet)
		for err = nil; err == nil && !reached(); {
			if err = r.printNext(brief, reader); err == nil {
				last = time.Now()
			}
		}
		if cancel(); err != nil && !errors.Is(err, errNothingYet) {
			return err
		}
		if !r.follow && !reached() && time.Since(last) > readPatience {
			return fmt.Errorf("nothing came from the leader of partition %d for %v, so not all was printed (%w): penstock "+
				"cluster health says whether it has a leader, --partition reads another one, --from begins behind a place that "+
				"cannot be read", partition, readPatience, err)
		}
	}
	return nil
}

// errNothingYet says that no message came within endPause. The reader adds what holds it up.
var errNothingYet = errors.New("no message yet")

func (r *reading) printNext(ctx context.Context, reader *nodes.Reader) error {
	m, err := reader.Next(ctx)
	if err != nil {
		return err
	}
	newest, ok := reader.Newest()
	return r.Print(&m, 0, ok && m.ID+1 >= newest)
}
