package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"penstock/cmd/engine/internal/cli"
)

// What waits in each partition, the message that holds up the others of its key, and what is done about it by its id.
func TestLagCommands(t *testing.T) {
	n := startNode(t, t.TempDir())
	t.Setenv("PENSTOCK_SERVER", n.http)
	steer(t, "topic", "create", "orders", "--partitions", "2")
	steer(t, "channel", "create", "orders", "billing")
	steer(t, "channel", "set", "orders", "billing", "--order", "key", "--max-attempts", "1")
	for range 3 {
		reply, err := http.Post("http://"+n.http+"/pub?topic=orders&key=slow", "", strings.NewReader("m"))
		if must(t, err); reply.StatusCode != 200 {
			t.Fatal(reply.Status)
		}
		must(t, reply.Body.Close())
	}
	execute(t, "channel", "list", "--partitions").check(t, cli.ExitUsage, "needs the name of a topic")
	list := func() string { return steer(t, "channel", "list", "orders", "--partitions") }
	got := rows(list())
	if len(got) != 3 || !strings.HasPrefix(got[0], "CHANNEL  PARTITION  LEADER  DEPTH") ||
		!strings.HasPrefix(got[1], "billing  ") || !strings.Contains(got[1], "  3  0  0  ") {
		t.Fatalf("%q", got)
	}
	var first string
	if _, err := fmt.Sscan(rows(steer(t, "channel", "peek", "orders", "billing"))[1], &first); err != nil {
		t.Fatal(err)
	}
	finished := steer(t, "channel", "finish", "orders", "billing", first)
	if !strings.HasPrefix(finished, "message "+first+" is finished") {
		t.Errorf("%q", finished)
	}
	execute(t, "channel", "finish", "orders", "billing", first).check(t, cli.ExitOther, "does not wait in channel billing")
	if got := rows(list()); !strings.Contains(got[1], "  2  0  0  ") {
		t.Errorf("%q", got)
	}
	redriven := steer(t, "channel", "redrive", "orders", "billing", "--id", first)
	if !strings.HasPrefix(redriven, "0 messages were") {
		t.Errorf("%q", redriven)
	}
	execute(t, "channel", "redrive", "orders", "billing", "--id", first, "--count", "1").check(t, cli.ExitUsage, "id")
	execute(t, "topic", "set", "orders", "--retention-bytes", "10").check(t, cli.ExitUsage, "such as 10GiB")
	execute(t, "topic", "set", "orders", "--partitions", "0").check(t, cli.ExitUsage, "a topic has one or more")
}
