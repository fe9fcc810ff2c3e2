package data

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	nodes "penstock/client"
	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/traffic"
	"penstock/internal/node/aside"
	"penstock/segment/aio"
)

// Headers that say where a message was, with --origin.
const (
	OriginID   = "origin-id"   // its id, 16 hex digits
	originTime = "origin-time" // when it was published, RFC 3339
)

// asidePublication is one run of aside publish.
type asidePublication struct {
	asideDir
	traffic.Publication

	topic  string
	origin bool
	yes    bool
}

func asidePublishCommand() *cobra.Command {
	p := new(asidePublication)
	p.Unit = "message"
	cmd := p.asideDir.action("publish ID", "Publish again what a cut took", cobra.ExactArgs(1),
		func(ctx context.Context, args []string) error {
			disk, err := p.open(false)
			if err != nil {
				return err
			}
			defer disk.Close()
			e, err := p.find(disk, args[0])
			if err == nil {
				err = p.confirm(&e)
			}
			if err != nil {
				return err
			}
			p.Partition = 0                // again chooses it
			p.Producer = "aside-" + e.Name // a later run goes on where this one ends
			return p.Native.Run(ctx, p.prompt, func(ctx context.Context, c *nodes.Client) error {
				return p.Send(ctx, c, p.topicOf(&e), p.out, func(ctx context.Context, producer *nodes.Producer) error {
					return p.again(ctx, producer, disk, &e)
				})
			})
		})
	cmd.Long = strings.TrimSpace(`
Publish again what a cut took from a copy: to its topic, or to another one with --topic, as new messages at the end of
the partition that they were in. ID is one of penstock aside list.

First make sure that they are missing: what was never answered OK may have been published again by its sender. A second
run publishes nothing that an earlier one has, not even after a crash, because each cut has a producer of its own.
Headers that nodes wrote are left out, and delays: the messages are delivered at once.`)
	f := cmd.Flags()
	p.Native.Add(f)
	f.StringVar(&p.topic, "topic", "", "the topic to publish to; empty means the one of the messages")
	f.BoolVar(&p.origin, "origin", false, "add the headers "+OriginID+" and "+originTime+" with what each message had")
	f.BoolVar(&p.yes, "yes", false, "do not ask for confirmation")
	f.BoolVar(&p.Publication.AsJSON, "json", false, "print JSON")
	p.Native.Completes(cmd)
	cmd.ValidArgsFunction = nil
	return cmd
}

func (p *asidePublication) topicOf(e *aside.Entry) string {
	if p.topic != "" {
		return p.topic
	}
	return e.Topic
}

// confirm says what will be published, and asks for confirmation. Without a terminal, --yes is required.
func (p *asidePublication) confirm(e *aside.Entry) error {
	to := p.topicOf(e)
	if err := traffic.CheckNamed(0, to); err != nil || p.yes {
		return err
	}
	if !cli.IsTerminal(p.in) {
		return cli.Fail(cli.ExitUsage, fmt.Errorf("%s would be published to topic %s: say --yes where nobody can answer; "+
			"nothing was published", cli.Counted(e.Messages, "message"), to))
	}
	fmt.Fprintf(p.prompt, "%s, stored from %s to %s in partition %d of topic %s, will be published to topic %s as\n"+
		"new messages. Those that were published again since, by whoever got no OK, will be there twice.\n"+
		"Type publish to continue: ", cli.Counted(e.Messages, "message"), e.FirstTime.UTC().Format(time.RFC3339),
		e.LastTime.UTC().Format(time.RFC3339), e.Partition, e.Topic, to)
	return cli.Typed(p.in, "publish", "nothing was published")
}

// again produces the messages of an entry from the first one on that no earlier run has published. They go to the
// partition where an earlier run began, else to the one where they were, if the topic has it.
func (p *asidePublication) again(
	ctx context.Context, producer *nodes.Producer, disk aio.Disk, e *aside.Entry,
) error {
	ctx, cancel := p.UntilFailure(ctx)
	defer cancel()
	skip, count := uint64(0), producer.Partitions()
	p.Partition = int(e.Partition) % max(count, 1)
	for at := range count {
		if last, ok := producer.LastSequence(at); ok {
			p.Partition, skip = at, uint64(last)+1
		}
	}
	show, finish := cli.CountBar(p.prompt, e.Messages, "publishing")
	defer finish()
	return eachMessage(disk, e, func(m *nodes.Message, n uint64) error {
		switch {
		case n < skip:
			p.Report.Skipped++
			return nil
		case n > math.MaxUint32:
			return fmt.Errorf("message %d and what follows were not published: a producer with a name numbers %d messages",
				n, uint32(math.MaxUint32))
		case ctx.Err() != nil:
			return fmt.Errorf("interrupted: message %d of the cut and what follows were not published", n)
		}
		m.Headers = slices.DeleteFunc(m.Headers, func(h nodes.Header) bool {
			return strings.HasPrefix(string(h.Key), nodes.ReservedHeaders)
		})
		if p.origin {
			m.Headers = append(m.Headers, nodes.Header{Key: []byte(OriginID), Value: []byte(m.ID.String())},
				nodes.Header{Key: []byte(originTime), Value: []byte(m.Time.UTC().Format(time.RFC3339Nano))})
		}
		producer.Produce(ctx, m, p.Done)
		show(int64(n) + 1)
		return nil
	})
}
