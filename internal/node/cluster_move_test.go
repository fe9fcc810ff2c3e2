package node_test

import (
	"bytes"
	"context"
	"errors"
	"path"
	"slices"
	"syscall"
	"testing"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/tests/support/faultaio"
)

// segmentFiles returns the names of the segment files that a node's disk has of partition 0 of a topic.
func (m *testNode) segmentFiles(t *testing.T, topic string) (names []string) {
	t.Helper()
	files, err := m.disk.ReadDir(path.Join(node.TopicDir(m.e, topic), "0"))
	if err != nil {
		return nil // it has never had any
	}
	for _, f := range files {
		names = append(names, f.Name())
	}
	return names
}

// awaitRemoved waits until a node has no bytes of a partition any more.
func (tc *testCluster) awaitRemoved(m *testNode, topic string) {
	tc.t.Helper()
	tc.eventually(m.name+" has nothing of it", func() bool {
		c, err := node.StateOf(m.e, topic, 0)
		return (err != nil || c.End == 0) && len(m.segmentFiles(tc.t, topic)) == 0
	})
}

// awaitSameBytes waits until a node has all bytes of a partition that another node has.
func (tc *testCluster) awaitSameBytes(topic string, has, gets *testNode) {
	tc.t.Helper()
	tc.eventually(gets.name+" has what "+has.name+" has", func() bool {
		a, err := node.CopyOf(gets.e, topic, 0)
		b, _ := node.CopyOf(has.e, topic, 0)
		return err == nil && a.End == b.End && bytes.Equal(a.Bytes, b.Bytes)
	})
}

// moved starts four nodes with a topic of three replicas and some segments, and returns the leader, the followers and
// the node without a copy.
func moved(
	t *testing.T, change ...func(*node.Options),
) (tc *testCluster, h *ackLog, leader *testNode, followers []*testNode, free *testNode) {
	t.Helper()
	tc = newTestCluster(t, 4, append(change, func(o *node.Options) { o.Cluster.Replicas = 3 })...)
	tc.create("t", 1)
	leader = tc.leader("t", 0)
	for _, m := range tc.others(leader) {
		if slices.Contains(leader.row("t", 0).State.Replicas, m.e.Node().ID) {
			followers = append(followers, m)
		} else {
			free = m
		}
	}
	h = newAckLog()
	tc.publishMany(h, leader, "t", "before", 2000, 200)
	for _, m := range followers {
		tc.eventually("there are segments", func() bool { return len(m.segmentFiles(t, "t")) > 2 })
	}
	return tc, h, leader, followers, free
}

// move moves partition 0 of topic t, and waits until the new replica is in sync. The leader may not know yet that a
// node which has just started is alive; then move asks it again.
func (tc *testCluster) move(l, from, to *testNode) {
	tc.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tc.eventually("the node that the partition moves to is alive", func() bool {
		err := l.store.MovePartition(ctx, l.row("t", 0).ID, from.e.Node().ID, to.e.Node().ID)
		if err != nil && !errors.Is(err, meta.ErrTooFewNodes) {
			tc.t.Fatal(err)
		}
		return err == nil
	})
	id := from.e.Node().ID
	tc.eventually("it has moved", func() bool {
		return !slices.Contains(l.row("t", 0).State.Replicas, id) && inSync(l.row("t", 0), to)
	})
}

// The segments of a copy cannot be written, and the batches that they lack have filled the node's commit log. When the
// partition moves away, the copy is removed nevertheless, and the commit log has room again. The files are removed at
// the next start.
func TestClusterMovedBytesGoFromAFullLog(t *testing.T) {
	t.Parallel()
	tc, h, l, followers, free := moved(t)
	from := followers[0]
	configure(t, tc.topic(l, "t"), func(s *meta.TopicSettings) { s.MinISR = 3 }) // so that the copy is needed as it is
	tc.eventually("it is in force", func() bool { return l.row("t", 0).State.MinISR == 3 })
	segments := node.TopicDir(from.e, "t") + "/*/*.seg"
	from.disk.Inject(faultaio.Rule{Kind: faultaio.KindWrite, Name: segments, Count: -1, Err: syscall.EIO})
	stop := tc.startProducer(h, l, "t", "full", never)
	defer stop()
	tc.eventually("the commit log is full", func() bool { return from.e.CommitStats().Full })
	tc.move(l, from, free)
	stop()
	tc.eventually("the commit log has room", func() bool { return !from.e.CommitStats().Full })
	tc.eventually("the record of the removal is written", func() bool {
		c, err := node.CopyOf(from.e, "t", 0)
		return err == nil && c.End == 0
	})
	tc.crash(from)
	from.disk.ClearRules()
	tc.start(from)
	tc.topic(from, "t")
	tc.awaitRemoved(from, "t")
	tc.move(l, followers[1], from)
	tc.awaitRemoved(followers[1], "t")
	tc.publishMany(h, l, "t", "after", 300, 200)
	tc.awaitSameBytes("t", l, from)
	tc.awaitHeld(h, []*testNode{l, free, from})
}

// A node begins a copy and ends before its commit log has anything of it. If the node is no replica any more when it
// comes back, it removes the files.
func TestFilesOfACopyThatNeverBeganGo(t *testing.T) {
	t.Parallel()
	tc, h, l, followers, free := moved(t)
	tc.awaitRemoved(free, "t")
	tc.stop(free)
	dir := path.Join(node.TopicDir(l.e, "t"), "0")
	if err := free.disk.MkdirAll(dir); err != nil {
		t.Fatal(err)
	}
	f, err := free.disk.Create(path.Join(dir, "0000000000.seg"), 64<<10)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	tc.start(free)
	tc.topic(free, "t")
	tc.awaitRemoved(free, "t")
	tc.move(l, followers[0], free)
	tc.publishMany(h, l, "t", "after", 100, 200)
	tc.awaitSameBytes("t", l, free)
}

// While a replica of the new set is not in sync, the old bytes stay: they may be needed to repair it.
//
// B89.
func TestClusterMovedBytesStayUntilSettled(t *testing.T) {
	t.Parallel()
	tc, _, l, followers, free := moved(t)
	from, third := followers[0], followers[1]
	id := third.e.Node().ID
	tc.crash(third)
	tc.eventually("the third is out of the ISR", func() bool {
		for _, m := range l.row("t", 0).State.ISR {
			if m.Node == id {
				return false
			}
		}
		return true
	})
	tc.move(l, from, free)
	tc.eventually("it takes no part any more", func() bool { return !node.Present(from.e, "t", 0) })
	before, err := node.CopyOf(from.e, "t", 0)
	if err != nil || before.End == 0 {
		t.Fatalf("the old copy is gone (%v) while a replica is not in sync", err)
	}
	tc.crash(from)
	tc.start(from)
	tc.topic(from, "t")
	tc.eventually("it takes no part any more", func() bool {
		return from.row("t", 0) != nil && !node.Present(from.e, "t", 0)
	})
	if after, err := node.CopyOf(from.e, "t", 0); err != nil || after.End != before.End {
		t.Fatalf("the old copy ends at %d after a restart, at %d before: %v", after.End, before.End, err)
	}
	tc.start(third)
	tc.awaitInSync("t")
	tc.awaitRemoved(from, "t")
}
