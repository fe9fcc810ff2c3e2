package operate

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/node"
	"penstock/internal/node/fold"
	"penstock/segment"
)

// TraceCommand tells the life of one message.
func TraceCommand() *cobra.Command {
	o := new(operator)
	cmd := o.Action("trace TOPIC ID", "Tell the life of one message", cobra.ExactArgs(2),
		func(ctx context.Context, args []string) error {
			return cli.Show(ctx, &o.Operator, "/topic/trace", url.Values{"topic": {args[0]}, "id": {args[1]}},
				func(w io.Writer, tr *node.Trace) error { return printTrace(w, args[0], tr) })
		})
	cmd.Long = "Tell the life of one message from the log of its partition: when and where it was stored, by which\n" +
		"leader, and what became of it in each channel. Nothing has to be switched on before. ID has the 16\n" +
		"hex digits that clients see.\n\n" +
		"The log notes that a message was confirmed, requeued, deferred or moved to a dead-letter topic, but\n" +
		"no single deliveries: how often a message was delivered is known while it is in flight or deferred,\n" +
		"and of dead letters. What a channel's sample leaves out counts as confirmed."
	o.Flags(cmd)
	return cmd
}

// notKnown stands for what neither the log nor the leader's memory says.
const notKnown = "not known"

func printTrace(w io.Writer, topic string, tr *node.Trace) error {
	t := cli.Table(w)
	row := func(name, value string) { fmt.Fprintf(t, "%s\t%s\n", name, value) }
	row("message", fmt.Sprintf("%s, number %d of partition %d of topic %s", tr.ID, tr.Number, tr.Partition, topic))
	if s := tr.Stored; s != nil {
		row("stored", fmt.Sprintf("%s by %s (epoch %d)", cli.Stamp(s.At), cmp.Or(s.Leader, notKnown), s.Epoch))
		if s.Carried {
			row("", "this is a copy: the segment in which it was stored first was removed")
		}
		row("place", fmt.Sprintf("offset %d, batch %d, message %d of %d", s.Offset, s.Batch, s.Index+1, max(s.InBatch, 1)))
		row("size", fmt.Sprintf("%s, %s", cli.Counted(s.BodyBytes, "byte"), cli.Counted(s.Headers, "header")))
		row("published", cli.Stamp(s.Published))
		if !s.Due.IsZero() {
			row("not before", cli.Stamp(s.Due))
		}
	} else {
		row("stored", fmt.Sprintf("older than the log, which begins with message %d", tr.LogFrom))
	}
	row("read", readOf(tr))
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	const head = "CHANNEL\tSTATE\tSINCE\tBY\tDELIVERIES\tUNTIL\tREMARK"
	err := cli.Rows(w, head, tr.Channels, func(c *node.TraceChannel) []any {
		return []any{
			c.Channel, words(string(c.State)), cli.Stamp(c.At), by(c.Leader, c.Epoch), deliveries(c.Attempts),
			cli.Stamp(c.Due), cli.Dash(remarkOf(c)),
		}
	})
	if err != nil || len(tr.Events) == 0 {
		return err
	}
	fmt.Fprintln(w)
	t = cli.Table(w)
	cli.Row(t, "AT", "WHAT THE LOG SAYS", "CHANNEL", "BY", "DELIVERIES", "UNTIL", "BATCH")
	for i := range tr.Events {
		e := &tr.Events[i]
		what := words(string(e.Kind))
		if e.Open {
			what += " (not committed yet)"
		}
		cli.Row(t, cli.Stamp(e.At), what, cli.Dash(e.Channel), by(e.Leader, e.Epoch), deliveries(e.Attempts),
			cli.Stamp(e.Due), e.Batch)
	}
	return t.Flush()
}

// readOf says how much of the log a trace is made of, and why not more.
func readOf(tr *node.Trace) string {
	text := cli.Counted(tr.ReadBytes, "byte") + " of the log"
	if !tr.LogSince.IsZero() {
		text += " from " + cli.Stamp(tr.LogSince) + " on"
	}
	switch tr.Cut {
	case "":
		if tr.Settled {
			text += "; a later seek of a channel is not looked for"
		}
	case fold.CutDamage:
		text += "; the log cannot be read further: see penstock cluster status"
	default:
		text += fmt.Sprintf("; cut, because the limit of %s is reached: what came later is not known", tr.Cut)
	}
	return text
}

func words(name string) string { return strings.ReplaceAll(name, "_", " ") }

func by(leader string, epoch segment.Epoch) string {
	if epoch == 0 {
		return "-"
	}
	return fmt.Sprintf("%s (epoch %d)", cmp.Or(leader, notKnown), epoch)
}

func deliveries(n *uint16) string {
	if n == nil {
		return notKnown
	}
	return strconv.Itoa(int(*n))
}

func remarkOf(c *node.TraceChannel) string {
	var out []string
	if c.OlderThanLog {
		out = append(out, "since when is older than the log")
	}
	if c.Client != "" {
		out = append(out, "consumer "+c.Client)
	}
	if c.DeadLetterTopic != "" {
		text := "to topic " + c.DeadLetterTopic
		if !c.DeadLetterAt.IsZero() {
			text += ", stored there by " + cli.Stamp(c.DeadLetterAt)
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}
