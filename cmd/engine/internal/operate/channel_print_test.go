package operate

import (
	"bytes"
	"strings"
	"testing"

	"penstock/internal/server/stats"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/server/api"
)

// The lists of channels and messages fit into a terminal of 80 columns. A list in a file or a pipe has all columns.
func TestListsFit(t *testing.T) {
	long, body := strings.Repeat("n", 64), strings.Repeat("b", 200)
	of := &cli.TopicNumbers{Name: long, Partitions: 1, Served: []int{0}}
	channels := []listedChannel{{of, &cli.ChannelNumbers{Name: long, Depth: 12345678, Trouble: stats.Trouble{
		AsideCount: 1,
	}}}}
	messages := []api.PeekedMessage{{
		ID: "0001000000000002", Body: &body, BodyBytes: 200, Headers: []api.PeekedHeader{{Name: "region", Value: &long}},
	}}
	for _, x := range []struct {
		name  string
		write func(b *bytes.Buffer, width int) error
		wants string // at 80 columns
		all   string // besides, where there is no terminal
	}{
		{
			"channels", func(b *bytes.Buffer, width int) error { return cli.WriteFitting(b, channelColumns, channels, width) },
			"TOPIC CHANNEL DEPTH STATE 12345678 aside", "RECEIVED REQUEUED TIMED DROPPED CONSUMERS",
		},
		{
			"messages", func(b *bytes.Buffer, width int) error { return cli.WriteFitting(b, peekColumns, messages, width) },
			"ID HEADERS BODY 0001000000000002 region", "PARTITION NUMBER PUBLISHED DUE BYTES",
		},
	} {
		var narrow, wide bytes.Buffer
		must(t, x.write(&narrow, 80))
		must(t, x.write(&wide, 0))
		for line := range strings.Lines(narrow.String()) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 80 {
				t.Errorf("%s: %d columns:\n%s", x.name, n, line)
			}
		}
		for word := range strings.FieldsSeq(x.wants) {
			if !strings.Contains(narrow.String(), word) || !strings.Contains(wide.String(), word) {
				t.Errorf("%s: no %s:\n%s%s", x.name, word, &narrow, &wide)
			}
		}
		for word := range strings.FieldsSeq(x.all) {
			if !strings.Contains(wide.String(), word) {
				t.Errorf("%s: no %s:\n%s", x.name, word, &wide)
			}
		}
	}
}
