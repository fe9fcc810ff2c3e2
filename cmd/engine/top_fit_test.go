package main

import (
	"bytes"
	"strings"
	"testing"
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
			must(t, writeFitting(&b, topTable(rows), width))
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
