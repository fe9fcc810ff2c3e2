package operate

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/clip"
	"penstock/internal/node/health"
	"penstock/internal/server/api"
)

// PrintTopicNumbers prints a list of topics.
func PrintTopicNumbers(w io.Writer, all []cli.TopicNumbers) error {
	t := cli.Table(w)
	maker, head := func(string) string { return "" }, ""
	if slices.ContainsFunc(all, func(n cli.TopicNumbers) bool { return n.MadeBy != "" }) {
		maker, head = func(name string) string { return clip.Text(name, 32) + "\t" }, "MADE BY\t"
	}
	fmt.Fprintln(t, "TOPIC\tCHANNELS\tDEPTH\tMESSAGES\tBYTES STORED\tPRODUCERS\t"+head+"STATE")
	for i := range all {
		n := &all[i]
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%d\t%s%s\n", n.Name, len(n.Channels), n.Depth, n.Published, n.StoredBytes,
			n.Connected, maker(n.MadeBy), n.OwnState())
	}
	return t.Flush()
}

// listedChannel is a row of channel list.
type listedChannel struct {
	of *cli.TopicNumbers
	*cli.ChannelNumbers
}

var channelColumns = []cli.Column[listedChannel]{
	cli.TextCol("TOPIC", 0, func(r *listedChannel) string { return r.of.Name }),
	cli.TextCol("CHANNEL", 0, func(r *listedChannel) string { return r.Name }),
	cli.Col("DEPTH", 0, func(r *listedChannel) string { return fmt.Sprint(r.Depth) }),
	cli.Col("IN FLIGHT", 2, func(r *listedChannel) string { return fmt.Sprint(r.InFlightCount) }),
	cli.Col("DEFERRED", 3, func(r *listedChannel) string { return fmt.Sprint(r.DeferredCount) }),
	cli.Col("RECEIVED SINCE START", 7, func(r *listedChannel) string { return fmt.Sprint(r.MessageCount) }),
	cli.Col("REQUEUED SINCE START", 5, func(r *listedChannel) string { return fmt.Sprint(r.RequeueCount) }),
	cli.Col("TIMED OUT SINCE START", 6, func(r *listedChannel) string { return fmt.Sprint(r.TimeoutCount) }),
	cli.Col("DROPPED SINCE START", 4, func(r *listedChannel) string { return fmt.Sprint(r.DroppedCount) }),
	cli.Col("CONSUMERS", 1, func(r *listedChannel) string { return fmt.Sprint(r.ClientCount) }),
	cli.Col("STATE", 0, func(r *listedChannel) string { return r.of.StateOf(r.ChannelNumbers) }),
}

// PrintChannels prints a list of channels, and below it what holds some of them up.
func PrintChannels(w io.Writer, all []cli.TopicNumbers) error {
	var rows []listedChannel
	for i := range all {
		for j := range all[i].Channels {
			rows = append(rows, listedChannel{&all[i], &all[i].Channels[j]})
		}
	}
	if err := cli.WriteFitting(w, channelColumns, rows, cli.TerminalWidth(w)); err != nil {
		return err
	}
	return printHeldUp(w, all)
}

// printHeldUp prints one line for each state in which a channel does not deliver all that is published. Each line says
// what the state means and what to do.
func printHeldUp(w io.Writer, all []cli.TopicNumbers) error {
	var b strings.Builder
	for i := range all {
		for _, n := range all[i].Channels {
			c := health.Channel{Topic: all[i].Name, Name: n.Name, Count: n.AsideCount, Why: n.AsideWhy}
			if c.Count > 0 {
				fmt.Fprintln(&b, c.AsideWords())
			}
			if c.Count = int(n.DroppedCount); n.Dropping {
				fmt.Fprintln(&b, c.DroppingWords())
			}
			if c.Count, c.Why, c.Before = int(n.SkippedCount), n.SkippingSince, n.SkippedBefore; n.Skipping {
				fmt.Fprintln(&b, c.SkippingWords())
			}
			if n.Starved {
				fmt.Fprintln(&b, c.StarvedWords())
			}
			if c.Count = n.FullPartitions; c.Count > 0 {
				fmt.Fprintln(&b, c.FullWords())
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// maxShownRunes bounds the part of a body or a header's value that a table shows.
const maxShownRunes = 80

// shown returns a body or a header's value in the form for a table. Binary data and unprintable text are quoted like a
// Go string.
func shown(text *string, raw []byte) string {
	s := ""
	switch {
	case text == nil:
		s = strconv.QuoteToASCII(string(raw))
	case strings.ContainsFunc(*text, func(r rune) bool { return !unicode.IsPrint(r) }):
		s = strconv.Quote(*text)
	default:
		s = *text
	}
	if utf8.RuneCountInString(s) > maxShownRunes {
		s = string([]rune(s)[:maxShownRunes]) + "…"
	}
	return s
}

var peekColumns = []cli.Column[api.PeekedMessage]{
	cli.Col("ID", 0, func(m *api.PeekedMessage) string { return m.ID }),
	cli.Col("PARTITION", 4, func(m *api.PeekedMessage) string { return fmt.Sprint(m.Partition) }),
	cli.Col("NUMBER", 5, func(m *api.PeekedMessage) string { return fmt.Sprint(m.Number) }),
	cli.Col("PUBLISHED", 1, func(m *api.PeekedMessage) string { return cli.Stamp(m.Timestamp) }),
	cli.Col("DUE", 3, func(m *api.PeekedMessage) string { return cli.Stamp(m.Due) }),
	cli.Col("BYTES", 2, func(m *api.PeekedMessage) string { return fmt.Sprint(m.BodyBytes) }),
	cli.TextCol("HEADERS", 0, func(m *api.PeekedMessage) string {
		var headers []string
		for _, h := range m.Headers {
			headers = append(headers, clip.Plain(h.Name)+"="+shown(h.Value, h.ValueBase64))
		}
		return cli.Dash(strings.Join(headers, " "))
	}),
	cli.TextCol("BODY", 0, func(m *api.PeekedMessage) string { return shown(m.Body, m.BodyBase64) }),
}

func printPeeked(w io.Writer, list *api.PeekList) error {
	return cli.WriteFitting(w, peekColumns, list.Messages, cli.TerminalWidth(w))
}

func printPending(w io.Writer, list *api.WaitingList) error {
	const head = "ID\tPARTITION\tNUMBER\tSINCE\tTIMES OUT\tATTEMPTS\tCONSUMER"
	return cli.Rows(w, head, list.Messages, func(m *api.WaitingMessage) []any {
		return []any{
			m.ID, m.Partition, m.Number, cli.Stamp(m.Since), cli.Stamp(m.Due), m.Attempts, cli.Dash(m.Client),
		}
	})
}

func printDeferred(w io.Writer, list *api.WaitingList) error {
	return cli.Rows(w, "ID\tPARTITION\tNUMBER\tDUE\tATTEMPTS", list.Messages, func(m *api.WaitingMessage) []any {
		return []any{m.ID, m.Partition, m.Number, cli.Stamp(m.Due), m.Attempts}
	})
}
