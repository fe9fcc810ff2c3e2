package traffic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	nodes "penstock/client"
	"penstock/cmd/engine/internal/cli"
)

const (
	// maxLooks is how many messages sub --no-finish takes at most.
	maxLooks = 1 << 16

	// subCloseTime bounds the wait at the end until the nodes say that what was printed is finished.
	subCloseTime = 30 * time.Second
)

// subscription is one run of sub.
type subscription struct {
	native nativeFlags
	Printer

	from     string
	noFinish bool
}

// SubCommand consumes a channel.
func SubCommand() *cobra.Command {
	s := &subscription{}
	cmd := &cobra.Command{
		Use:   "sub TOPIC CHANNEL",
		Short: "Print the messages of a channel, and finish them",
		Long: strings.TrimSpace(`
Take messages from a channel, print them, one per line, and finish what was printed, so that no other consumer of the
channel gets it. The command waits for more messages until Ctrl-C or, with --count, until it has printed that many. A
channel that does not exist is created. A message may be printed twice if its leader fails or nothing reads the output.

PLACE is where a channel begins that is created; one that exists goes on where it is:
  oldest  the oldest message of each partition
  newest  behind the newest message of each partition
  ID      the message with these 16 hex digits, in its partition
  TIME    the first message stored at a time such as 2026-01-31T12:00:00Z or later, in each partition

` + FormatHelp + `, and attempts`),
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := CheckNamed(-1, args[0], args[1]); err != nil {
				return err
			}
			return s.whileRead(cmd, func(ctx context.Context) error {
				return s.run(ctx, args[0], args[1], cmd.ErrOrStderr())
			})
		},
	}
	f := cmd.Flags()
	s.native.Add(f)
	f.StringVar(&s.from, "from", "", "`PLACE` where the channel begins if it is created; without it, as any new channel")
	f.BoolVar(&s.noFinish, "no-finish", false,
		"finish nothing: at the end all goes back to the channel, with one more attempt; needs --count")
	s.Printer.Flags(f)
	s.native.Completes(cmd)
	cli.CompletesChoices(cmd)
	return cmd
}

func (s *subscription) run(ctx context.Context, topic, channel string, log io.Writer) error {
	var o nodes.ConsumerOptions
	if s.from != "" {
		var err error
		if o.From, _, err = place(s.from); err != nil {
			return err
		}
	}
	switch {
	case s.noFinish && s.count == 0:
		return cli.Fail(cli.ExitUsage, errors.New("--no-finish needs --count: a channel does not go on behind messages that "+
			"nobody finishes"))
	case s.noFinish && s.count > maxLooks:
		return cli.Fail(cli.ExitUsage, fmt.Errorf("--no-finish takes at most %d messages: --count is %d", maxLooks, s.count))
	case s.count > 0:
		o.MaxInFlight = int(min(s.count, nodes.DefaultMaxInFlight)) // what is not printed gets an attempt for nothing
	}
	return s.native.Run(ctx, log, func(ctx context.Context, c *nodes.Client) error {
		if s.noFinish {
			n, err := c.Partitions(ctx, topic)
			if err != nil {
				return err
			}
			o.MaxInFlight = min(int(s.count)*n, 1<<20) // all messages may be in one partition
			o.MaxInFlightBytes = 1 << 30
		}
		consumer, err := c.Consumer(ctx, topic, channel, o)
		if err != nil {
			return err
		}
		err = s.print(ctx, consumer, slog.New(slog.NewTextHandler(log, nil)))
		end, cancel := afterSignal(ctx)
		defer cancel()
		end, cancel = context.WithTimeoutCause(end, subCloseTime,
			errors.New("no answer came in time whether what was printed is finished: it may be delivered again"))
		defer cancel()
		return cmp.Or(err, consumer.Close(end))
	})
}

// print prints messages until the run ends. A message is finished once it is written.
func (s *subscription) print(ctx context.Context, consumer *nodes.Consumer, log *slog.Logger) error {
	for {
		limit := 1000
		if s.count > 0 {
			limit = int(min(s.left, uint64(limit)))
		}
		all, err := consumer.Batch(ctx, limit)
		switch {
		case ctx.Err() != nil && s.count == 0: // Ctrl-C is how it ends
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("interrupted after %d of %d messages", s.count-s.left, s.count)
		case err != nil:
			return err
		}
		for i := range all {
			if err = s.Printer.Print(&all[i].Message, all[i].Attempts, false); err != nil {
				break
			}
		}
		if err != nil && !errors.Is(err, ErrEnough) {
			return err
		}
		if flushed := s.Flush(); flushed != nil {
			return flushed
		}
		if !s.noFinish {
			if late := all[len(all)-1].FinishThrough(); late != nil {
				log.Warn("messages that were printed come again", "error", late)
			}
		}
		if err != nil {
			return nil
		}
	}
}
