package operate

import (
	"bytes"
	"strings"
	"testing"

	"penstock/cmd/engine/internal/cli"
)

// penstock topic list has a column of the tokens for which topics count if there are any.
func TestTopicListSaysWhoMadeATopic(t *testing.T) {
	made := cli.TopicNumbers{Name: "orders", MadeBy: "shop"}
	made.Add(&cli.TopicNumbers{Name: "orders", MadeBy: "shop"})
	var none, some bytes.Buffer
	must(t, PrintTopicNumbers(&none, []cli.TopicNumbers{{Name: "orders"}, {Name: "other"}}))
	must(t, PrintTopicNumbers(&some, []cli.TopicNumbers{made, {Name: "other"}}))
	if strings.Contains(none.String(), "MADE BY") {
		t.Errorf("nobody made a topic:\n%s", none.String())
	}
	if !strings.Contains(some.String(), "MADE BY") || !strings.Contains(lineOf(t, some.String(), "orders"), "shop") {
		t.Errorf("shop made orders:\n%s", some.String())
	}
}

// PRODUCERS are those that are connected, at all nodes, and not those that a topic remembers.
func TestConnectedProducersAreListed(t *testing.T) {
	one := cli.TopicNumbers{Name: "orders", Producers: 900, Connected: 2}
	one.Add(&cli.TopicNumbers{Name: "orders", Producers: 90, Connected: 3})
	var b bytes.Buffer
	must(t, PrintTopicNumbers(&b, []cli.TopicNumbers{one}))
	if got := strings.Fields(lineOf(t, b.String(), "orders")); len(got) != 7 || got[5] != "5" {
		t.Errorf("want 5 producers:\n%s", b.String())
	}
}

// lineOf returns the first line that begins with start.
func lineOf(t *testing.T, text, start string) string {
	t.Helper()
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, start) {
			return line
		}
	}
	t.Errorf("no line begins with %q in\n%s", start, text)
	return ""
}
