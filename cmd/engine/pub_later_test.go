package main

import (
	"strings"
	"testing"

	"penstock/cmd/engine/internal/cli"
)

// Messages published with a delay wait in the channel until they are due.
func TestPubWithDelay(t *testing.T) {
	n := startNode(t, t.TempDir())
	t.Setenv("PENSTOCK_SERVER", n.http)
	steer(t, "topic", "create", "orders")
	steer(t, "channel", "create", "orders", "billing")
	o := feed(t, "one\ntwo\n", "pub", "orders", "--lines", "--defer", "10m")
	if o.code != 0 || !strings.Contains(o.stdout+o.stderr, "2 messages") {
		t.Fatalf("%+v", o)
	}
	if got := rows(steer(t, "channel", "deferred", "orders", "billing")); len(got) != 3 {
		t.Errorf("deferred: %q", got)
	}
	feed(t, "x\n", "pub", "orders", "--defer", "10m", "--header", "a=b").check(t, cli.ExitUsage, "header")
	feed(t, "x\n", "pub", "orders", "--defer", "9999h").check(t, cli.ExitUsage, "max-defer")
}

// Dead letters are chosen at a path that a node of the version before does not know: it would publish all of them.
func TestRedriveSomeIsNotRedriveAll(t *testing.T) {
	t.Parallel()
	n := startNode(t, t.TempDir())
	at := []string{"--http-address", n.http}
	for _, args := range [][]string{{"topic", "create", "orders"}, {"channel", "create", "orders", "billing"}} {
		execute(t, append(args, at...)...).well(t)
	}
	some := append([]string{"channel", "redrive", "orders", "billing", "--filter", "region=eu"}, at...)
	if got := execute(t, some...).well(t); !strings.HasPrefix(got, "0 messages were") {
		t.Errorf("%q", got)
	}
	const query = "?topic=orders&channel=billing"
	for path, want := range map[string]int{
		"/channel/redrive" + query:                         200,
		"/channel/redrive" + query + "&filter=region%3Deu": 400,
		"/channel/redrive/chosen" + query:                  400,
	} {
		if code, text := post(n.http, path, ""); code != want {
			t.Errorf("%s is answered %d %s", path, code, text)
		}
	}
}
