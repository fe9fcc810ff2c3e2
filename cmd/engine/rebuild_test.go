package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/data"
	"penstock/internal/cluster"
)

// rebuild runs penstock rebuild-cluster with the directories of nodes, the first one first.
func (m *members) rebuild(which ...int) string {
	m.t.Helper()
	return execute(m.t, append([]string{"rebuild-cluster", "--yes"}, m.paths(which...)...)...).well(m.t)
}

func (m *members) paths(which ...int) (paths []string) {
	for _, i := range which {
		paths = append(paths, m.data[i])
	}
	return paths
}

// plan asks what the command would do.
func (m *members) plan(which ...int) (p data.RebuildPlan) {
	m.t.Helper()
	out := execute(m.t, append([]string{"rebuild-cluster", "--dry-run", "--json"}, m.paths(which...)...)...).well(m.t)
	must(m.t, json.Unmarshal([]byte(out), &p))
	return p
}

// loseEtcd removes the embedded etcd of nodes.
func (m *members) loseEtcd(which ...int) {
	m.t.Helper()
	for _, i := range which {
		must(m.t, os.RemoveAll(filepath.Join(m.data[i], "etcd")))
	}
}

// files lists a directory with the content of small files, to see whether anything changed.
func files(t *testing.T, dir string) (all []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.Name() == "LOCK" {
			return err
		}
		text := path
		if st, err := e.Info(); err == nil && st.Mode().IsRegular() && st.Size() < 1<<20 {
			data, err := os.ReadFile(path)
			must(t, err)
			text += ": " + string(data)
		}
		all = append(all, text)
		return nil
	}))
	return all
}

// The etcd of a majority is lost, and all messages are there: the one with fewer messages is named first. The longest
// copies lead, and nothing is lost.
func TestRebuildCluster(t *testing.T) {
	t.Parallel()
	m := newMembers(t)
	m.start(0, 1, 2)
	m.create()
	m.publish(0, "first")
	m.healthy(0)
	m.end(syscall.SIGKILL, 0)
	m.publish(1, "second")
	m.end(syscall.SIGKILL, 1, 2)
	m.loseEtcd(1, 2)

	before := files(t, m.dir)
	m.refuses()
	p := m.plan(0, 1, 2)
	if p.Done || p.Metadata == nil || p.Metadata.Node != "n1" || p.Metadata.From != "its etcd" || len(p.Missing) != 0 {
		t.Errorf("%+v", p)
	}
	longer := 0
	for _, part := range p.Partitions {
		if part.Topic != "orders" {
			continue
		}
		for _, c := range part.Copies {
			if c.Node == "n1" && !c.Longest || c.Node != "n1" && c.Longest {
				longer++
			}
		}
	}
	if longer == 0 {
		t.Errorf("the copies of n1 are not known to be shorter: %+v", p.Partitions)
	}
	if p := m.plan(0, 1); !slices.Equal(p.Missing, []string{"n3"}) {
		t.Errorf("missing: %v", p.Missing)
	}
	if after := files(t, m.dir); !slices.Equal(before, after) {
		t.Errorf("something was changed: %d files, then %d", len(before), len(after))
	}

	out := m.rebuild(0, 1, 2)
	if !strings.Contains(out, "the old files of etcd are kept in "+filepath.Join(m.data[0], "etcd", "older-")) ||
		!strings.Contains(out, "start all nodes: node n1 begins the cluster anew") {
		t.Errorf("%s", out)
	}
	// It was interrupted before its last step: the first node refuses to start, and the command finishes what it began.
	older, err := filepath.Glob(filepath.Join(m.data[0], "etcd", "older-*"))
	must(t, err)
	must(t, os.Rename(older[0], filepath.Join(m.data[0], "etcd", "member")))
	unfinished := launch(t, "", binary(t), append([]string{"serve", "--data-path", m.data[0]}, m.nodes[0].Args[3:]...))
	unfinished.waitLog(t, "penstock rebuild-cluster did not finish")
	if err := <-unfinished.exited; err == nil {
		t.Error("it ends well")
	}
	m.rebuild(0, 1, 2)
	m.rebuild(0, 1, 2) // once more, without etcd: nothing is left out
	m.start(0, 1)
	if code, text := m.tryPublish(0, "early"); code == 200 {
		t.Errorf("a partition goes on although a node that may have more is not there: %s", text)
	}
	m.start(2)
	m.consume("first", "second")
	m.publish(0, "third")
	m.healthy(0)

	// The cluster lives on, and its metadata are rebuilt once more: the newest count, not what the first time left.
	m.end(syscall.SIGKILL, 0, 1, 2)
	m.loseEtcd(0, 1)
	if p := m.plan(0, 1, 2); p.Metadata.Node != "n3" || p.Metadata.Generation != 1 {
		t.Errorf("%+v", p.Metadata)
	}
	m.rebuild(0, 1, 2)
	m.start(0, 1, 2)
	m.publish(0, "fourth")
	m.consume("third", "fourth")
	m.healthy(0)
}

// refuses tries what does not belong together. All nodes are stopped.
func (m *members) refuses() {
	m.t.Helper()
	t := m.t
	data := t.TempDir()
	single := startNode(t, data)
	rebuild := func(args ...string) outcome { return execute(t, append([]string{"rebuild-cluster"}, args...)...) }
	rebuild().check(t, cli.ExitUsage, "DATA_PATH")
	rebuild(data, "--dry-run").check(t, cli.ExitData, "stop it first")
	single.end(syscall.SIGTERM)
	rebuild(data, "--dry-run").check(t, cli.ExitData, data+" belongs to a single node")
	rebuild(m.data[0], data, "--yes").check(t, cli.ExitData, data+" belongs to a single node")
	rebuild(m.data[0], m.data[0]+"/", "--yes").check(t, cli.ExitData, "a process runs on")
	rebuild(m.data[0], t.TempDir(), "--yes").check(t, cli.ExitData, "is not a data directory")
	rebuild(m.data[1], m.data[2], "--yes").check(t, cli.ExitData, "none of the directories has the cluster's metadata")
	rebuild(m.data[0]).check(t, cli.ExitUsage, "--yes")
	rebuild(m.data[0], "--yes", "--etcd-data-path", "n9=/x").check(t, cli.ExitData, "n9")
	twice := filepath.Join(t.TempDir(), "twice")
	must(t, os.Mkdir(twice, 0o700))
	copyFile(t, filepath.Join(m.data[0], "node.json"), filepath.Join(twice, "node.json"))
	rebuild(m.data[0], twice, "--yes").check(t, cli.ExitData, "both belong to node n1")
	rebuild(twice, m.data[1], "--yes").check(t, cli.ExitData, "cannot begin the cluster anew")
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	must(t, err)
	must(t, os.WriteFile(to, data, 0o600))
}

// Of nodes on other machines, node.json and their metadata are enough. There, the same command with --rejoin ends it.
func TestRebuildWithOtherMachines(t *testing.T) {
	t.Parallel()
	m := newMembers(t)
	m.start(0, 1, 2)
	m.create()
	m.publish(0, "some")
	m.healthy(0)
	m.end(syscall.SIGKILL, 0, 1, 2)
	m.loseEtcd(0, 2)
	args := []string{"rebuild-cluster", "--yes", m.data[0]}
	for i := 1; i < 3; i++ {
		part := filepath.Join(t.TempDir(), "part")
		must(t, os.Mkdir(part, 0o700))
		copyFile(t, filepath.Join(m.data[i], "node.json"), filepath.Join(part, "node.json"))
		if i == 1 {
			must(t, os.CopyFS(filepath.Join(part, "etcd"), os.DirFS(filepath.Join(m.data[i], "etcd"))))
		}
		args = append(args, part)
	}
	out := execute(t, args...).well(t)
	for _, says := range []string{
		"not looked at", "on the machine of node n2: penstock rebuild-cluster --rejoin ITS_DATA_PATH",
	} {
		if !strings.Contains(out, says) {
			t.Errorf("it does not say %q: %s", says, out)
		}
	}
	if _, err := os.Stat(filepath.Join(m.data[0], cluster.SeedFile)); err != nil {
		t.Error(err)
	}
	for i := 1; i < 3; i++ {
		execute(t, "rebuild-cluster", "--rejoin", "--yes", m.data[i]).well(t)
	}
	m.start(0, 1, 2)
	m.publish(1, "more")
	m.consume("some", "more")
	m.healthy(0)
}

// A survivor that was not named does not start, and keeps what it has, until it is named.
func TestRebuildWithoutASurvivor(t *testing.T) {
	t.Parallel()
	m := newMembers(t)
	m.start(0, 1, 2)
	m.create()
	m.publish(0, "first")
	m.healthy(0)
	m.end(syscall.SIGKILL, 0)
	m.publish(1, "second")
	m.end(syscall.SIGKILL, 1, 2)
	m.loseEtcd(1, 2)
	m.rebuild(0)
	m.start(0)
	p := launch(t, "", binary(t), append([]string{"serve", "--data-path", m.data[1]}, m.nodes[1].Args[3:]...))
	p.waitLog(t, "were rebuilt without the data directory of node n2")
	if err := <-p.exited; err == nil {
		t.Error("it ends well")
	}
	// It did not enter etcd either: without it, the first node would have no majority any more.
	execute(t, "topic", "create", "another", "--replicas", "1", "--http-address", m.http(0)).well(t)
	m.end(syscall.SIGTERM, 0)
	m.rebuild(0, 1, 2)
	m.start(0, 1, 2)
	m.consume("first", "second")
	m.healthy(0)
}
