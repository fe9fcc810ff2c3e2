package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/server/api"
)

// The commands show what a real node knows of producers, and remove one from all partitions.
func TestProducerCommands(t *testing.T) {
	n := startNode(t, t.TempDir())
	t.Setenv("PENSTOCK_SERVER", n.http)
	steer(t, "topic", "create", "orders", "--partitions", "6")
	for _, query := range []string{
		"a&partition=0", "a&partition=2", "b&partition=0", "b&partition=1", "b&partition=2", "b&partition=3", "b&partition=4",
		"b&partition=4",
	} {
		reply, err := http.Post("http://"+n.http+"/producer/open?topic=orders&producer="+query, "", nil)
		must(t, err)
		must(t, reply.Body.Close())
		if reply.StatusCode != 200 {
			t.Fatal(query, reply.Status)
		}
	}
	text := strings.Join(rows(steer(t, "producer", "list", "orders")), "\n")
	for _, want := range []string{
		"PRODUCER  OWNER  PARTITIONS  LAST USED  EPOCH  NEXT NUMBER\na  -  0,2  20", "\nb  -  5 partitions  20", "  2  0",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	text = strings.Join(rows(steer(t, "producer", "list", "orders", "b")), "\n")
	if strings.Count(text, "\nb  -  ") != 5 {
		t.Errorf("one producer is shown as\n%s", text)
	}
	got := steer(t, "producer", "remove", "orders", "b")
	if got != "producer b was removed from 5 partitions of topic orders\n" {
		t.Errorf("%q", got)
	}
	var left api.ProducerRows
	must(t, json.Unmarshal([]byte(steer(t, "producer", "list", "orders", "--json")), &left))
	if len(left.Producers) != 2 || left.Producers[0].Producer != "a" {
		t.Errorf("%+v", left)
	}
	if o := execute(t, "producer", "remove", "orders", "b"); o.code != cli.ExitOther || !strings.Contains(o.stderr,
		"no partition knows a producer of this name; nothing was changed") {
		t.Errorf("%+v", o)
	}
}
