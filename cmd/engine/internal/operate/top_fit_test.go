package operate

import (
	"bytes"
	"strings"
	"testing"

	"penstock/internal/server/stats"

	"penstock/cmd/engine/internal/cli"
)

// The picture of top fits into its terminal: first columns go that say the least, then names are shortened. The depth,
// the lag and the state are always there.
func TestTopFits(t *testing.T) {
	row := func(topic, channel string) topRow {
		return topRow{
			Topic: topic, Channel: channel, Published: 123456, Confirmed: 123456, Depth: 12345678, InFlightCount: 2500,
			ClientCount: 12, LagSeconds: 3600, State: "full",
		}
	}
	long := strings.Repeat("n", 64)
	for name, rows := range map[string][]topRow{
		"no rows":     nil,
		"short names": {row("orders", "billing"), row("mail", "")},
		"long names":  {row(long, long), row("orders", "billing")},
		"a long state": {{
			Topic: long, Channel: "c", State: "partly served, full, starved, dropping, dead letters aside",
			LagSeconds: -1,
		}},
	} {
		for _, width := range []int{0, 60, 80, 100, 120, 400} {
			var b bytes.Buffer
			must(t, cli.WriteFitting(&b, topColumns, rows, width))
			lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
			if len(lines) != 1+len(rows) {
				t.Fatalf("%s: %d lines", name, len(lines))
			}
			for _, line := range lines {
				if n := len([]rune(line)); width > 0 && n > width {
					t.Errorf("%s: %d of %d columns:\n%s", name, n, width, line)
				}
			}
			for _, word := range []string{"TOPIC", "CHANNEL", "DEPTH", "LAG", "STATE"} {
				if !strings.Contains(lines[0], word) {
					t.Errorf("%s, %d columns: no %s: %s", name, width, word, lines[0])
				}
			}
			if name == "short names" && width >= 80 && !strings.Contains(b.String(), "orders   billing") &&
				!strings.Contains(b.String(), "orders  billing") {
				t.Errorf("%d columns: a name is cut:\n%s", width, b.String())
			}
			if all := strings.Contains(lines[0], "TIMEOUT/S"); (width == 0 || width == 400) && !all {
				t.Errorf("%s, %d columns: not all columns are there: %s", name, width, lines[0])
			}
		}
	}
}

// At 80 columns every state of a channel is there as a whole, however large the numbers are and however long the names,
// and of several the first with how many more there are: a channel that skips never looks like one that is well.
func TestTopKeepsStates(t *testing.T) {
	long := strings.Repeat("n", 64)
	whole := cli.TopicNumbers{Partitions: 2, Served: []int{0, 1}}
	shown := func(n cli.TopicNumbers, c cli.ChannelNumbers) string {
		var b bytes.Buffer
		row := topRow{
			Topic: long, Channel: long, Published: 123456, Confirmed: 123456, Depth: 12345678, LagSeconds: -1,
			State: n.StateOf(&c),
		}
		must(t, cli.WriteFitting(&b, topColumns, []topRow{row}, 80))
		for line := range strings.Lines(b.String()) {
			if len([]rune(strings.TrimSuffix(line, "\n"))) > 80 {
				t.Errorf("it does not fit:\n%s", b.String())
			}
		}
		return strings.TrimSuffix(b.String(), "\n")
	}
	for word, of := range map[string]struct {
		n cli.TopicNumbers
		c cli.ChannelNumbers
	}{
		"partly served":      {cli.TopicNumbers{Partitions: 2, Served: []int{1}}, cli.ChannelNumbers{}},
		"not served":         {cli.TopicNumbers{Partitions: 2, Served: []int{}}, cli.ChannelNumbers{}},
		"stores nothing":     {cli.TopicNumbers{Failed: true}, cli.ChannelNumbers{}},
		"over quota, paused": {cli.TopicNumbers{OverQuota: true}, cli.ChannelNumbers{Paused: true}},
		"read only":          {cli.TopicNumbers{ReadOnly: 1}, cli.ChannelNumbers{}},
		"delays refused":     {cli.TopicNumbers{DelaysRefused: 1}, cli.ChannelNumbers{}},
		"skipping":           {whole, cli.ChannelNumbers{Trouble: stats.Trouble{Skipping: true}}},
		"full":               {whole, cli.ChannelNumbers{Trouble: stats.Trouble{FullPartitions: 1}}},
		"starved":            {whole, cli.ChannelNumbers{Trouble: stats.Trouble{Starved: true}}},
		"dropping":           {whole, cli.ChannelNumbers{Trouble: stats.Trouble{Dropping: true}}},
		"dead letters aside": {whole, cli.ChannelNumbers{Trouble: stats.Trouble{AsideCount: 1}}},
		"dead letters aside +1": {
			cli.TopicNumbers{DelaysRefused: 1}, cli.ChannelNumbers{Trouble: stats.Trouble{AsideCount: 1}},
		},
		"paused, skipping +2": {whole, cli.ChannelNumbers{Paused: true, Trouble: stats.Trouble{
			Skipping: true, FullPartitions: 1, Starved: true,
		}}},
		"partly served +7": {
			cli.TopicNumbers{Partitions: 2, Served: []int{1}, ReadOnly: 1, DelaysRefused: 1},
			cli.ChannelNumbers{Trouble: stats.Trouble{
				Skipping: true, FullPartitions: 1, Starved: true, Dropping: true, AsideCount: 1,
			}},
		},
	} {
		if text := shown(of.n, of.c); !strings.HasSuffix(text, "  "+word) {
			t.Errorf("want %q:\n%s", word, text)
		}
	}
}
