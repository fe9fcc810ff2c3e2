package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/devcluster"
	"penstock/tests/support/patience"
)

// Definitions that one node exports make another node the same; applied again they change nothing.
func TestDefinitions(t *testing.T) {
	a, b := startNode(t, t.TempDir()), startNode(t, t.TempDir())
	at := func(n *process, args ...string) string {
		t.Helper()
		return steer(t, append(args, "--http-address", n.http)...)
	}
	at(a, "topic", "create", "orders", "--partitions", "2")
	at(a, "topic", "set", "orders", "--retention-age", "72h", "--quota-count", "7")
	at(a, "channel", "create", "orders", "billing")
	at(a, "channel", "set", "orders", "billing", "--max-attempts", "5", "--filter", "kind=rush")
	at(a, "topic", "create", "plain")
	dir := t.TempDir()
	for _, format := range []string{"json", "toml"} {
		file := filepath.Join(dir, "definitions."+format)
		must(t, os.WriteFile(file, []byte(at(a, "definitions", "export", "--format", format)), 0o600))
		if got := at(a, "definitions", "apply", file); got != "nothing differs\n" {
			t.Errorf("%s, applied where it was exported: %s", format, got)
		}
		if got := at(a, "definitions", "apply", file, "--json"); !strings.Contains(got, `"changes": []`) {
			t.Errorf("%s, applied where it was exported: %s", format, got) // null is no list
		}
	}
	file := filepath.Join(dir, "definitions.toml")
	got := at(b, "definitions", "apply", file, "--dry-run")
	if !strings.HasPrefix(got, "+ create topic orders\n~ set topic orders quota_count null -> 7, "+
		"retention_age_ms null -> 259200000\n+ create channel orders/billing\n~ set channel orders/billing ") ||
		!strings.HasSuffix(got, "5 changes would be made; nothing was changed\n") {
		t.Errorf("--dry-run prints\n%s", got)
	}
	if got := at(b, "definitions", "export"); !strings.Contains(got, `"topics": []`) {
		t.Errorf("--dry-run changed something: %s", got)
	}
	if got := at(b, "definitions", "apply", file); !strings.HasSuffix(got, "\n5 changes\n") ||
		strings.Contains(got, "not done") {
		t.Errorf("apply prints\n%s", got)
	}
	if x, y := at(a, "definitions", "export"), at(b, "definitions", "export"); x != y {
		t.Errorf("the nodes differ:\n%s\n%s", x, y)
	}

	// What the document does not name goes only with --prune and --yes.
	at(b, "topic", "create", "mine")
	at(b, "channel", "create", "orders", "audit")
	if got := at(b, "definitions", "apply", file); got != "nothing differs\n" {
		t.Errorf("without --prune: %s", got)
	}
	execute(t, "definitions", "apply", file, "--prune", "--http-address", b.http).check(t, cli.ExitUsage, "say --yes")
	want := "- delete channel orders/audit with its backlog\n- delete topic mine with all its messages\n2 changes\n"
	if got := at(b, "definitions", "apply", file, "--prune", "--yes"); got != want {
		t.Errorf("--prune prints\n%s", got)
	}
	if x, y := at(a, "definitions", "export"), at(b, "definitions", "export"); x != y {
		t.Errorf("after --prune the nodes differ:\n%s\n%s", x, y)
	}
}

// A wrong document changes nothing, and a change that fails is named with what was done before.
func TestDefinitionsRefused(t *testing.T) {
	n := startNode(t, t.TempDir(), "--max-topics", "2")
	t.Setenv("PENSTOCK_SERVER", n.http)
	steer(t, "topic", "create", "orders", "--partitions", "2")
	before := steer(t, "definitions", "export")
	file := filepath.Join(t.TempDir(), "d.json")
	for doc, want := range map[string]string{
		`{"version":1,"topics":[`: "holds no definitions", `{"version":2,"topics":[]}`: "version 2",
		`{"version":1,"topics":[]} x`: "goes on behind", "version = = 1": "neither a JSON object nor TOML",
		topicsDocument(`{"nam":"a"}`):                                                  "changed: unknown field",
		topicsDocument(`{"name":"a b"}`):                                               `"a b" cannot name a topic`,
		topicsDocument(`{"name":"new"},{"name":"a"},{"name":"a"}`):                     "defined twice",
		topicsDocument(`{"name":"new"},{"name":"orders","partitions":1}`):              "none can be taken",
		topicsDocument(`{"name":"new"},{"name":"a","settings":{"quota_bytes":-1}}`):    "quota_bytes is -1",
		topicsDocument(`{"name":"new","channels":[{"name":"c"},{"name":"c"}]}`):        "defined twice",
		topicsDocument(`{"name":"a","channels":[{"name":"c","settings":{"rate":1}}]}`): "unknown field",

		topicsDocument(`{"name":1}`): "changed: topics.name is a number, and must be a string",
	} {
		must(t, os.WriteFile(file, []byte(doc), 0o600))
		execute(t, "definitions", "apply", file).check(t, cli.ExitUsage, want)
		if after := steer(t, "definitions", "export"); after != before {
			t.Fatalf("%s changed something:\n%s", doc, after)
		}
	}
	must(t, os.WriteFile(file, []byte(topicsDocument(`{"name":"one"},{"name":"two"},{"name":"three"}`)), 0o600))
	o := execute(t, "definitions", "apply", file)
	o.check(t, cli.ExitOther, "create topic failed; 1 of 3 changes were done before and stay")
	if o.stdout != "+ create topic one\n+ create topic two  (not done)\n+ create topic three  (not done)\n3 changes\n" {
		t.Errorf("it prints\n%s", o.stdout)
	}
}

// topicsDocument returns a document with these topics.
func topicsDocument(topics string) string { return `{"version":1,"topics":[` + topics + "]}" }

// On a cluster of three nodes definitions have the replicas of each topic, every node exports the same, and what cannot
// be applied is refused before anything is changed. top and consumers show what all three nodes lead.
func TestDefinitionsOnACluster(t *testing.T) {
	t.Parallel()
	p := startDevAs(t, realNodes, t.TempDir())
	all := p.ready(3)
	nodes := []string{all["n1"].HTTP, all["n2"].HTTP, all["n3"].HTTP}
	at := func(i int, args ...string) string {
		t.Helper()
		return steer(t, append(args, "--http-address", nodes[i%3])...)
	}
	awaitEverywhere := func(what string, holds func(exported string) bool) (exported string) {
		t.Helper()
		for i := range nodes {
			for end := time.Now().Add(patience.Or(90 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
				o := execute(t, "definitions", "export", "--http-address", nodes[i])
				if exported = o.stdout; o.code == 0 && holds(exported) {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("node %d: %s: %+v", i+1, what, o)
				}
			}
		}
		return exported
	}
	at(0, "topic", "create", "orders", "--partitions", "3", "--replicas", "2")
	at(0, "channel", "create", "orders", "billing")
	before := awaitEverywhere("the replicas are missing", func(got string) bool {
		return strings.Contains(got, `"replicas": 2`) && strings.Contains(got, `"billing"`) &&
			strings.Contains(got, `"min_isr": 0`)
	})
	file := filepath.Join(t.TempDir(), "d.json")
	apply := func(i int, doc string, more ...string) outcome {
		t.Helper()
		must(t, os.WriteFile(file, []byte(doc), 0o600))
		return execute(t, append([]string{"definitions", "apply", file, "--http-address", nodes[i]}, more...)...)
	}
	for i := range nodes {
		if o := apply(i, before); o.stdout != "nothing differs\n" || o.code != 0 {
			t.Errorf("applied where it was exported: %+v", o)
		}
	}
	for doc, want := range map[string]string{
		topicsDocument(`{"name":"new"},{"name":"a","replicas":4}`):                          "there are 3 nodes",
		topicsDocument(`{"name":"new"},{"name":"orders","replicas":99}`):                    "it can have 1 to",
		topicsDocument(`{"name":"new"},{"name":"orders","replicas":-1}`):                    "it can have 1 to",
		topicsDocument(`{"name":"new"},{"name":"orders","settings":{"min_isr":3}}`):         "min_isr of 3 with 2",
		topicsDocument(`{"name":"new"},{"name":"a","replicas":1,"settings":{"min_isr":2}}`): "min_isr of 2 with 1",
		topicsDocument(`{"name":"new"},{"name":"orders","replicas":3,"partitions":1}`):      "none can be taken",
		topicsDocument(
			`{"name":"new"},{"name":"orders","channels":[{"name":"billing","settings":{"max_in_flight":2}}]}`,
		): "cannot have a max_in_flight of 2 with 3 partitions",
		strings.Replace(before, `"replicas": 2`, `"replicas": "two"`, 1):                          "holds no definitions",
		topicsDocument(`{"name":"new"},{"name":"orders","channels":[{"name":"c"},{"name":"c"}]}`): "defined twice",
	} {
		apply(1, doc).check(t, cli.ExitUsage, want)
	}
	awaitEverywhere("something was changed", func(got string) bool { return got == before })

	doc := topicsDocument(
		`{"name":"orders","replicas":3,"settings":{"min_isr":3}},{"name":"one","replicas":1,"partitions":2}`)
	want := "~ set replicas orders 2 -> 3\n~ set topic orders min_isr null -> 3\n+ create topic one\n3 changes"
	if o := apply(2, doc, "--dry-run"); o.stdout != want+" would be made; nothing was changed\n" {
		t.Errorf("--dry-run: %+v", o)
	}
	awaitEverywhere("--dry-run changed something", func(got string) bool { return got == before })
	if o := apply(2, doc); o.stdout != want+"\n" || o.code != 0 {
		t.Errorf("apply: %+v", o)
	}
	awaitEverywhere("it was not applied", func(got string) bool {
		return strings.Contains(got, `"replicas": 3`) && strings.Contains(got, `"replicas": 1`) &&
			strings.Contains(got, `"min_isr": 3`)
	})
	down := topicsDocument(`{"name":"orders","replicas":2,"settings":{"min_isr":1}}`)
	if o := apply(0, down); o.stdout != "~ set topic orders min_isr 3 -> 1\n~ set replicas orders 3 -> 2\n2 changes\n" {
		t.Errorf("fewer replicas: %+v", o)
	}

	showOfThreeNodes(t, all, at)
	p.signal(p.cmd.Process.Pid, syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d:\n%s", code, p.stderr)
	}
}

// showOfThreeNodes looks at topic orders, whose partitions three nodes lead, with top and consumers.
func showOfThreeNodes(t *testing.T, nodes map[string]devcluster.Node, at func(i int, args ...string) string) {
	t.Helper()
	conn, err := net.Dial("tcp", nodes["n2"].NSQ)
	must(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "  V2SUB orders billing\nRDY 5\n")
	must(t, err)
	for i, name := range []string{"n1", "n2", "n3"} {
		publishRush(t, nodes[name].HTTP, fmt.Sprint("order ", i))
	}
	for i := range nodes {
		i := int(i[1] - '0')
		got := rows(at(i, "top", "--once", "--interval", "200ms"))
		if len(got) < 3 || !strings.HasPrefix(strings.Join(got[2:], "\n"), "orders  billing  ") &&
			!strings.Contains(strings.Join(got, "\n"), "\norders  billing  ") {
			t.Errorf("top: %q", got)
		}
		for end := time.Now().Add(patience.Or(90 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
			got = rows(at(i, "channel", "consumers", "orders", "billing"))
			if len(got) > 1 && strings.Contains(got[1], "127.0.0.1") {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("consumers: %q", got)
			}
		}
	}
	countOfThreeNodes(t, nodes, at)
}

// countOfThreeNodes subscribes at each of three nodes, like one consumer that looks for the leaders. channel list
// counts it once: the most subscriptions that one leader has.
func countOfThreeNodes(t *testing.T, nodes map[string]devcluster.Node, at func(i int, args ...string) string) {
	t.Helper()
	for _, n := range nodes {
		conn, err := net.Dial("tcp", n.NSQ)
		must(t, err)
		defer conn.Close()
		_, err = io.WriteString(conn, "  V2SUB orders billing\nRDY 5\n")
		must(t, err)
	}
	for end := time.Now().Add(patience.Or(90 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
		var list []struct {
			Leader string `json:"leader"`
		}
		must(t, json.Unmarshal([]byte(at(1, "channel", "consumers", "orders", "billing", "--json")), &list))
		most, of := 0, map[string]int{}
		for _, c := range list {
			of[c.Leader]++
			most = max(most, of[c.Leader])
		}
		var channels []cli.ChannelNumbers
		must(t, json.Unmarshal([]byte(at(1, "channel", "list", "orders", "--json")), &channels))
		if len(of) == 3 && len(list) >= 4 && len(channels) == 1 && channels[0].ClientCount == most {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("subscriptions %+v, channel list says %+v", list, channels)
		}
	}
}
