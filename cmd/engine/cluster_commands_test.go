package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/meta"
	"penstock/internal/node/fold"
	"penstock/internal/server/api"
	"penstock/tests/support/patience"
)

// startRealCluster is startDev with three real nodes, which store what they are sent, each with an embedded etcd.
func startRealCluster(t *testing.T) []string {
	t.Helper()
	p := startDevAs(t, realNodes, t.TempDir())
	nodes := p.ready(3)
	t.Cleanup(func() {
		p.signal(p.cmd.Process.Pid, syscall.SIGTERM)
		if code := p.wait(); code != 0 {
			t.Errorf("exit code %d:\n%s", code, p.stderr)
		}
	})
	return []string{nodes["n1"].HTTP, nodes["n2"].HTTP, nodes["n3"].HTTP}
}

// The commands about topics and channels against a cluster of real processes. Through any node they print and do the
// same, whatever that node leads.
func TestCommandsOnACluster(t *testing.T) {
	t.Parallel()
	nodes := startRealCluster(t)
	at := func(i int, args ...string) string {
		t.Helper()
		return steer(t, append(args, "--http-address", nodes[i%3])...)
	}
	if got := at(0, "topic", "create", "orders", "--partitions", "2"); got != "topic orders exists\n" {
		t.Errorf("create prints %q", got)
	}
	eventuallyAll := func(what string, holds func(i int) bool) {
		t.Helper()
		for i := range nodes {
			for end := time.Now().Add(patience.Or(90 * time.Second)); !holds(i); time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("node %d: %s", i+1, what)
				}
			}
		}
	}
	eventuallyAll("the topic is not known", func(i int) bool {
		return execute(t, "topic", "settings", "orders", "--http-address", nodes[i]).code == 0
	})
	at(1, "channel", "create", "orders", "billing")
	for i := range 12 {
		publishRush(t, nodes[i%3], fmt.Sprint("order ", i))
	}
	lookOnACluster(t, nodes, at)
	changeSettingsOnACluster(t, nodes, at)

	at(0, "channel", "seek", "orders", "billing", "--to", "newest")
	at(1, "channel", "seek", "orders", "billing", "--to", "-2")
	var list api.PeekList
	must(t, json.Unmarshal([]byte(at(2, "channel", "peek", "orders", "billing", "--json")), &list))
	if len(list.Messages) != 4 {
		t.Errorf("after a seek 2 back in 2 of 5 partitions %d messages wait", len(list.Messages))
	}
	if got := at(0, "channel", "redrive", "orders", "billing"); !strings.HasPrefix(got, "0 messages") {
		t.Errorf("redrive prints %q", got)
	}
	at(0, "channel", "skip", "orders", "billing")
	if got := rows(at(2, "channel", "list", "orders")); len(got) != 3 ||
		!strings.HasPrefix(got[1], "orders  billing  0  ") || !strings.Contains(got[2], "is skipping: it discards") {
		t.Errorf("after skip channel list prints %q", got)
	}
	at(1, "channel", "unskip", "orders", "billing")
	at(1, "channel", "empty", "orders", "billing")
	at(2, "channel", "delete", "orders", "billing")
	for i := range nodes {
		execute(t, "channel", "pause", "orders", "billing", "--http-address", nodes[i]).check(t, cli.ExitOther,
			"topic orders has no channel billing")
		if got := rows(at(i, "channel", "list")); len(got) != 1 {
			t.Errorf("after its deletion channel list prints %q", got)
		}
	}
	for _, verb := range []string{"pause", "unpause", "empty", "delete"} {
		if got := at(1, "topic", verb, "orders"); !strings.HasPrefix(got, "topic orders ") {
			t.Errorf("%s prints %q", verb, got)
		}
	}
	eventuallyAll("the topic is still there", func(i int) bool {
		return execute(t, "topic", "list", "orders", "--http-address", nodes[i]).code == cli.ExitOther
	})
}

// lookOnACluster shows topic orders with its 12 messages and its channel billing through every node, and pauses the
// channel.
func lookOnACluster(t *testing.T, nodes []string, at func(i int, args ...string) string) {
	t.Helper()
	for i := range nodes {
		if got := rows(at(i, "topic", "list")); len(got) != 2 ||
			!regexp.MustCompile(`^orders  1  0  12  [1-9][0-9]+  0  ok$`).MatchString(got[1]) {
			t.Errorf("topic list prints %q", got)
		}
		if got := rows(at(i, "channel", "list", "orders")); len(got) != 2 ||
			got[1] != "orders  billing  12  0  0  12  0  0  0  0  ok" {
			t.Errorf("channel list prints %q", got)
		}
		var list api.PeekList
		must(t, json.Unmarshal([]byte(at(i, "channel", "peek", "orders", "billing", "--json", "--count", "100")), &list))
		if len(list.Messages) != 12 || list.Messages[0].Headers[0].Name != "kind" {
			t.Errorf("peek prints %+v", list)
		}
		must(t, json.Unmarshal([]byte(at(i, "topic", "peek", "orders", "--json", "--partition", "1", "--count", "2")), &list))
		if len(list.Messages) != 2 || list.Messages[1].Partition != 1 {
			t.Errorf("topic peek prints %+v", list)
		}
		for _, what := range []string{"pending", "deferred"} {
			if got := rows(at(i, "channel", what, "orders", "billing")); len(got) != 1 {
				t.Errorf("%s prints %q", what, got)
			}
		}
		for _, verb := range []string{"pause", "unpause"} {
			at(i, "channel", verb, "orders", "billing")
			want := "ok"
			if verb == "pause" {
				want = "paused"
			}
			if got := rows(at(i+1, "channel", "list", "orders")); len(got) != 2 || !strings.HasSuffix(got[1], want) {
				t.Errorf("after %s channel list prints %q", verb, got)
			}
		}
	}
}

// changeSettingsOnACluster changes the settings of topic orders and of its channel billing, through one node after the
// other. The settings are stored in etcd and in the log.
func changeSettingsOnACluster(t *testing.T, nodes []string, at func(i int, args ...string) string) {
	t.Helper()
	var cs fold.ChannelSettings
	must(t, json.Unmarshal([]byte(at(2, "channel", "set", "orders", "billing", "--max-attempts", "5", "--json")), &cs))
	must(t, json.Unmarshal([]byte(at(0, "channel", "set", "orders", "billing", "--order", "key", "--json")), &cs))
	if cs.Version != 2 || cs.MaxAttempts != 5 || cs.Order != fold.OrderKey {
		t.Errorf("channel set prints %+v", cs)
	}
	var ts meta.TopicSettings
	must(t, json.Unmarshal([]byte(at(1, "topic", "set", "orders", "--partitions", "5", "--retention-age", "72h",
		"--min-isr", "1", "--json")), &ts))
	if ts.Version != 1 || ts.Partitions != 5 || ts.MinISR != 1 || ts.Durability != "synced" {
		t.Errorf("topic set prints %+v", ts)
	}
	for i := range nodes {
		if got := at(i, "channel", "settings", "orders", "billing", "--json"); !strings.Contains(got, `"max_attempts": 5`) {
			t.Errorf("channel settings prints %q", got)
		}
		for end := time.Now().Add(patience.Or(90 * time.Second)); ; time.Sleep(10 * time.Millisecond) {
			// the other nodes learn of it a moment later
			var now meta.TopicSettings
			must(t, json.Unmarshal([]byte(at(i, "topic", "settings", "orders", "--json")), &now))
			if now == ts {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("node %d has the settings %+v", i+1, now)
			}
		}
		execute(t, "topic", "set", "orders", "--partitions", "4", "--http-address", nodes[i]).check(t, cli.ExitUsage,
			"the topic has 5, and none can be taken away")
		execute(t, "topic", "set", "orders", "--min-isr", "4", "--http-address", nodes[i]).check(t, cli.ExitUsage,
			"the topic has 3 replicas")
	}
	if got := steer(t, "cluster", "topics", "--http", nodes[0]); !strings.Contains(got, "orders") {
		t.Errorf("cluster topics prints %q", got)
	}
}
