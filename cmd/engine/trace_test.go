package main

import (
	"encoding/json"
	"strings"
	"testing"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/node"
	"penstock/internal/node/fold"
	"penstock/internal/server/api"
)

// The command tells what a real node's log says, as a table and as JSON, and says what is wrong with an id.
func TestTraceCommand(t *testing.T) {
	n := startNode(t, t.TempDir())
	t.Setenv("PENSTOCK_SERVER", n.http)
	steer(t, "topic", "create", "orders")
	steer(t, "channel", "create", "orders", "billing")
	publishRush(t, n.http, "one")
	publishRush(t, n.http, "two")
	steer(t, "channel", "seek", "orders", "billing", "--to", "+1")
	var list api.PeekList
	must(t, json.Unmarshal([]byte(steer(t, "topic", "peek", "orders", "--json")), &list))
	got := rows(steer(t, "trace", "orders", list.Messages[0].ID))
	text := strings.Join(got, "\n")
	for _, want := range []string{
		"message  0000000000000000, number 0 of partition 0 of topic orders\n", "\nstored  20", " (epoch 1)\n",
		"\nsize  3 bytes, 1 header\n", "\nCHANNEL  STATE  SINCE  BY  DELIVERIES  UNTIL  REMARK\nbilling  passed over  20",
		"  not known  -  -\n\nAT  WHAT THE LOG SAYS  CHANNEL  BY  DELIVERIES  UNTIL  BATCH\n20", "  passed over  billing  ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	var tr node.Trace
	must(t, json.Unmarshal([]byte(steer(t, "trace", "orders", list.Messages[1].ID, "--json")), &tr))
	if len(tr.Channels) != 1 || tr.Channels[0].State != fold.StateWaiting || tr.ID != list.Messages[1].ID {
		t.Errorf("%+v", tr)
	}
	for id, want := range map[string]struct {
		code int
		text string
	}{
		"12":               {cli.ExitUsage, "16 lower-case hex digits"},
		"00000000000000ff": {cli.ExitOther, "no message was ever published with this id"},
		"0009000000000000": {cli.ExitOther, "with this id: it names partition 9, and topic orders has "},
	} {
		if o := execute(t, "trace", "orders", id); o.code != want.code || !strings.Contains(o.stderr, want.text) {
			t.Errorf("%s: %+v", id, o)
		}
	}
	if o := execute(t, "trace", "nothing", "0000000000000000"); o.code != cli.ExitOther ||
		!strings.Contains(o.stderr, "there is no topic nothing") {
		t.Errorf("%+v", o)
	}
}
