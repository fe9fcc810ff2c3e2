package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"penstock/cmd/engine/internal/devcluster"
	"penstock/internal/cluster/admin"
)

// aloneWorld is the world of a single node.
func aloneWorld(t *testing.T, p *process) *stateWorld {
	return &stateWorld{t: t, nodes: map[string]devcluster.Node{"n1": {HTTP: p.http}}}
}

// A single node that lacks a part of a partition's log in the middle serves what reads back, refuses what is published,
// and says so on every surface of the page. A topic that is whole is not concerned.
func TestReadOnlyPartitionIsOnEverySurface(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	args := []string{
		"--commit-file-bytes", "16MiB", "--commit-live-bytes", "33MiB", "--max-segment-bytes", "4MiB",
		"--buffer-bytes", "4MiB", "--max-batch-bytes", "1MiB",
	}
	p := startNode(t, dir, args...)
	w := aloneWorld(t, p)
	w.must("topic", "create", "orders", "--partitions", "1")
	w.must("channel", "create", "orders", "billing")
	body := strings.Repeat("x", 900_000)
	for range 90 { // more than the commit log keeps: it would mend what is missing
		w.store("orders", body)
	}
	w.eventually(rowOf(t, "read only"), false)
	p.end(syscall.SIGTERM)
	segments, err := filepath.Glob(filepath.Join(dir, "topics", "*", "*", "*.seg"))
	must(t, err)
	slices.Sort(segments)
	if len(segments) < 3 {
		t.Fatalf("the log has the segments %q: there is none in the middle", segments)
	}
	must(t, os.Remove(segments[1]))

	p = startNode(t, dir, args...)
	w = aloneWorld(t, p)
	if n := strings.Count(w.health(), "is read only in 1 partition: "); n != 1 {
		t.Fatalf("health does not say it:\n%s", w.health())
	}
	checkAlert(t, rowOf(t, "read only"))
	w.eventually(rowOf(t, "read only"), true)
	if !w.refuses("orders", "x") {
		t.Error("a message was taken")
	}
	w.must("topic", "create", "whole")
	w.store("whole", "x")
	list := w.command("topic", "list")
	for name, state := range map[string]string{"orders": "read only", "whole": "ok"} {
		if row := lineOf(t, list, name+" "); !strings.HasSuffix(strings.TrimSpace(row), "  "+state) {
			t.Errorf("want %s: %s", state, row)
		}
	}
	t.Log(w.health())
	w.must("topic", "delete", "orders", "--yes")
	w.eventually(rowOf(t, "read only"), false)
}

// A topic that was made while a node was dead has fewer replicas than the default, all of them in sync. It counts as
// under-replicated on every surface: one more failure would lose what others survive.
func TestFewerReplicasAreOnEverySurface(t *testing.T) {
	t.Parallel()
	p := startDevAs(t, realNodes, t.TempDir())
	w := &stateWorld{t: t, p: p, nodes: p.ready(3), dead: map[string]bool{}}
	row := rowOf(t, "made with fewer replicas")
	checkAlert(t, row)
	w.kill("n3")
	w.eventually(rowOf(t, "dead"), true)
	w.eventually(row, false) // there is no topic yet
	w.must("topic", "create", "orders", "--partitions", "1")
	w.must("channel", "create", "orders", "billing")
	w.eventually(row, true)
	var all admin.Topics
	must(t, json.Unmarshal([]byte(w.get("/cluster/topics?topic=orders")[0]), &all))
	if of := all.Topics[0].Partitions[0]; len(of.Replicas) != 2 || len(of.ISR) != 2 {
		t.Errorf("it has the replicas %q, in sync %q: the state was not brought about", of.Replicas, of.ISR)
	}
}
