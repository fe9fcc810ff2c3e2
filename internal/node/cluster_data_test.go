package node_test

import (
	"strings"
	"testing"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/tests/support/faultaio"
)

const olderItself = "this data directory is an older state of itself"

// rowReaches waits until the row of m says that its commit log went as far as it does now.
func (tc *testCluster) rowReaches(m *testNode) {
	tc.t.Helper()
	group := node.DurableGroup(m.e)
	tc.eventually("the row says how far the commit log went", func() bool {
		row := m.e.Snapshot().Nodes[m.e.Node().ID].Logged
		if durable := node.DurableGroup(m.e); row > durable {
			tc.t.Fatalf("the row says %d, and the commit log went to %d", row, durable)
		}
		return row >= group
	})
}

// comesBackAs starts m with an older disk. It is noticed, all copies are shortened, and nothing is lost.
func (tc *testCluster) comesBackAs(m *testNode, older *faultaio.Disk, logs *lines, h *ackLog) {
	tc.t.Helper()
	told := logs.count(olderItself)
	m.disk = older
	tc.start(m)
	if s := m.e.Storage(); s.OlderDirectory != 1 || s.Shortened != 1 {
		tc.t.Errorf("with a state of its last life: %d, and %d copies are shortened", s.OlderDirectory, s.Shortened)
	}
	id := meta.PartitionID{Topic: m.e.Snapshot().Names["t"].ID}
	if !m.e.CopyShortened(id) || m.e.CopyShortened(meta.PartitionID{Topic: id.Topic, Partition: 1}) {
		tc.t.Error("the node does not say which copy is shortened")
	}
	if n := logs.count(olderItself) - told; n != 1 {
		tc.t.Errorf("%d lines say so", n)
	}
	tc.awaitInSync("t")
	tc.awaitHeld(h, tc.nodes)
	tc.eventually("the copies are whole", func() bool { return m.e.Storage().Shortened == 0 })
}

// startsAsItself starts m, which is not taken for an older state of itself.
func (tc *testCluster) startsAsItself(m *testNode, how string) {
	tc.t.Helper()
	tc.start(m)
	if m.e.Storage().OlderDirectory != 0 {
		tc.t.Errorf("%s: it is taken for an older one", how)
	}
	tc.awaitInSync("t")
}

// The leader comes back with a state of its disk that was taken while its last process ran, and that process stored
// more: the node knows it before it registers. So does one that stopped, however soon. A node that is killed at any
// time, and starts at once, is not taken for that.
func TestClusterStateOfTheLastLife(t *testing.T) {
	t.Parallel()
	tc, h, logs := newLoggedCluster(t)
	x := tc.leader("t", 0)
	tc.registeredDurably(x)
	older := x.disk.Kill(7)
	tc.publishPart(h, "b")
	tc.rowReaches(x)
	tc.kill(x)
	tc.comesBackAs(x, older, logs, h)

	tc.registeredDurably(x)
	older = x.disk.Kill(8)
	tc.publishPart(h, "c")
	tc.stop(x)
	tc.comesBackAs(x, older, logs, h)

	told := logs.count(olderItself)
	for _, part := range []string{"d", "e", "f"} {
		tc.publishPart(h, part)
		tc.kill(x)
		tc.startsAsItself(x, "killed and started")
	}
	tc.rowReaches(x)
	tc.kill(x)
	tc.startsAsItself(x, "killed when the row said all")
	tc.stop(x)
	tc.startsAsItself(x, "stopped and started")
	if n := logs.count(olderItself) - told; n != 0 {
		t.Errorf("%d lines about an older state", n)
	}
	tc.publishPart(h, "g")
	tc.checkCopies(h, "t", 1)
}

// The metadata become older than a topic. Every node says which others have messages that the cluster does not know,
// also of a node that is dead.
func TestClusterTopicUnknownToTheCluster(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	tc.publishPart(newAckLog(), "a")
	says := func(asked *testNode, what string) {
		t.Helper()
		tc.eventually(asked.name+" says it", func() bool { return strings.Contains(asked.e.Verdict().Health, what) })
	}
	store := tc.kv.Store("operator")
	entries, _, err := store.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	var ops []kv.Op
	for _, e := range entries {
		if strings.Contains(e.Key, "topics/") || strings.Contains(e.Key, "parts/") {
			ops = append(ops, kv.Op{Key: e.Key, Delete: true})
		}
	}
	if _, _, err := store.Txn(t.Context(), nil, ops); err != nil || len(ops) != 2 {
		t.Fatal(err, ops)
	}
	says(tc.nodes[0], "the cluster does not know a topic of this node's data directory (t), and topics of the data "+
		"directories of nodes n2, n3: the messages are kept and not served")
	tc.kill(tc.nodes[2])
	tc.kill(tc.nodes[0])
	tc.start(tc.nodes[0])
	says(tc.nodes[0], "topics of the data directories of nodes n2, n3")
	says(tc.nodes[1], "topics of the data directories of nodes n1, n3")
}
