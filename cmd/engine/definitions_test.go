package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
	execute(t, "definitions", "apply", file, "--prune", "--http-address", b.http).check(t, exitUsage, "say --yes")
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
	t.Setenv("ENGINE_HTTP_ADDRESS", n.http)
	steer(t, "topic", "create", "orders", "--partitions", "2")
	before := steer(t, "definitions", "export")
	file := filepath.Join(t.TempDir(), "d.json")
	for doc, want := range map[string]string{
		`{"version":1,"topics":[`: "holds no definitions", `{"version":2,"topics":[]}`: "version 2",
		`{"version":1,"topics":[]} x`: "goes on behind", "version = = 1": "neither a JSON object nor TOML",
		topicsDocument(`{"nam":"a"}`): "unknown field", topicsDocument(`{"name":"a b"}`): `"a b" cannot name a topic`,
		topicsDocument(`{"name":"new"},{"name":"a"},{"name":"a"}`):                     "defined twice",
		topicsDocument(`{"name":"new"},{"name":"orders","partitions":1}`):              "none can be taken",
		topicsDocument(`{"name":"new"},{"name":"a","settings":{"quota_bytes":-1}}`):    "quota_bytes is -1",
		topicsDocument(`{"name":"new","channels":[{"name":"c"},{"name":"c"}]}`):        "defined twice",
		topicsDocument(`{"name":"a","channels":[{"name":"c","settings":{"rate":1}}]}`): "unknown field",
	} {
		must(t, os.WriteFile(file, []byte(doc), 0o600))
		execute(t, "definitions", "apply", file).check(t, exitUsage, want)
		if after := steer(t, "definitions", "export"); after != before {
			t.Fatalf("%s changed something:\n%s", doc, after)
		}
	}
	must(t, os.WriteFile(file, []byte(topicsDocument(`{"name":"one"},{"name":"two"},{"name":"three"}`)), 0o600))
	o := execute(t, "definitions", "apply", file)
	o.check(t, exitOther, "create topic failed; 1 of 3 changes were done before and stay")
	if o.stdout != "+ create topic one\n+ create topic two  (not done)\n+ create topic three  (not done)\n3 changes\n" {
		t.Errorf("it prints\n%s", o.stdout)
	}
}

// topicsDocument returns a document with these topics.
func topicsDocument(topics string) string { return `{"version":1,"topics":[` + topics + "]}" }
