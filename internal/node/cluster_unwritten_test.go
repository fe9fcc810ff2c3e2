package node_test

import (
	"errors"
	"fmt"
	"path"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/netproto"
	"penstock/tests/support/faultaio"
)

// failSegments makes operations of one kind on the segments of a node's copy of "t" fail; count is that of a
// faultaio.Rule.
func (m *testNode) failSegments(kind faultaio.Kind, count int) {
	m.disk.Inject(faultaio.Rule{
		Kind: kind, Name: path.Join(node.TopicDir(m.e, "t"), "0", "*.seg"), Count: count, Err: syscall.EIO,
	})
}

// awaitFetchedAnew waits until a node has fetched its copy of "t" anew, and checks that the copy has all messages and
// can lead.
func (tc *testCluster) awaitFetchedAnew(h *ackLog, m *testNode) {
	tc.t.Helper()
	tc.eventually("the copy is dropped", func() bool { return m.e.Storage().Dropped == 1 })
	tc.awaitInSync("t")
	tc.awaitHeld(h, tc.nodes)
	tc.eventually("it is whole", func() bool { return m.e.Storage().Shortened == 0 && m.e.Health() == nil })
	tc.moveLeadership("t", 0, m)
	tc.publishReplicated(h, 5)
	tc.checkCopies(h, "t", 1)
}

var segmentFailures = map[string]faultaio.Kind{"a write": faultaio.KindWrite, "a sync": faultaio.KindSync}

// A segment of the leader's copy cannot be written or synced once. Another replica of the ISR becomes the leader, no
// put is refused unless that takes longer than puts wait for it, and the copy begins anew.
func TestClusterLeaderThatCannotWriteHandsOver(t *testing.T) {
	t.Parallel()
	for name, kind := range segmentFailures {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc := newTestCluster(t, 3)
			tc.create("t", 1)
			h := newAckLog()
			l := tc.leader("t", 0)
			l.failSegments(kind, 1)
			var refused atomic.Bool
			stop := tc.startProducers(h, tc.nodes, "t", "1", func(err error) bool {
				refused.Store(true)
				return errors.Is(err, errs.ErrDisk)
			})
			defer func() { stop() }()
			tc.eventually("it cannot be written", func() bool { return l.e.Health() != nil })
			began := time.Now()
			tc.eventually("another node leads", func() bool { return tc.leader("t", 0) != l })
			if refused.Load() {
				if took := time.Since(began); took < 500*time.Millisecond {
					t.Errorf("puts were refused although they had to wait for only %v", took)
				}
				stop() // the machine stood still for longer than puts wait for a new leader
				stop = tc.startProducers(h, tc.nodes, "t", "2", never)
			}
			tc.awaitMoreAcks(h, 50)
			stop()
			tc.awaitFetchedAnew(h, l)
		})
	}
}

// A leader whose segments cannot be written and that is alone in the ISR refuses puts, until another replica has
// joined.
func TestClusterLeaderThatCannotWriteIsAlone(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 2)
	if _, err := tc.nodes[0].store.CreateTopic(t.Context(), meta.Topic{
		Name: "t", Partitions: 1, Replicas: 2, MinISR: 1,
	}); err != nil {
		t.Fatal(err)
	}
	tc.awaitInSync("t")
	h := newAckLog()
	l := tc.leader("t", 0)
	x := tc.others(l)[0]
	tc.stop(x)
	tc.eventually("it is alone", func() bool { return len(l.row("t", 0).State.ISR) == 1 })
	l.failSegments(faultaio.KindWrite, 1)
	topic, n := tc.topic(l, "t"), 0
	tc.eventually("puts are refused", func() bool {
		n++
		return errors.Is(h.publish(t.Context(), topic, fmt.Sprintf("%d/%s", n, make([]byte, 3000))), errs.ErrDisk)
	})
	tc.start(x)
	tc.eventually("another node leads", func() bool { return tc.leader("t", 0) != l })
	tc.awaitFetchedAnew(h, l)
}

// A segment of a follower's copy cannot be written or synced once. The copy begins anew, and the commit log need not
// keep what its segments lacked.
func TestClusterFollowerThatCannotWriteBeginsAnew(t *testing.T) {
	t.Parallel()
	for name, kind := range segmentFailures {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc := newTestCluster(t, 3)
			tc.create("t", 1)
			h := newAckLog()
			l := tc.leader("t", 0)
			x := tc.others(l)[0]
			x.failSegments(kind, 1)
			tc.publishMany(h, l, "t", "m", 6000, 400) // more than a commit log holds
			tc.awaitFetchedAnew(h, x)
		})
	}
}

// A member of the smallest possible ISR whose segments cannot be written keeps its copy, and its acknowledgements
// count. It begins anew when another replica has joined the ISR.
func TestClusterFollowerThatCannotWriteIsNeeded(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	h := newAckLog()
	l := tc.leader("t", 0)
	x, z := tc.others(l)[0], tc.others(l)[1]
	tc.stop(z)
	tc.eventually("two are in sync", func() bool { return len(x.row("t", 0).State.ISR) == 2 })
	x.failSegments(faultaio.KindWrite, 1)
	published := 0 // no more than is needed: from the failure on, the commit log of x keeps everything
	tc.eventually("it cannot be written", func() bool {
		published++
		tc.publishMany(h, l, "t", fmt.Sprintf("m%d", published), 10, 400)
		return x.e.Health() != nil
	})
	node.Tick(x.e, "t", 0)
	tc.publishMany(h, l, "t", "n", 100, 400)
	if row := l.row("t", 0); len(row.State.ISR) != 2 || len(row.Damaged) > 0 || x.e.Storage().Dropped != 0 {
		t.Errorf("%d dropped, the row is %+v", x.e.Storage().Dropped, row)
	}
	tc.start(z)
	tc.awaitFetchedAnew(h, x)
}

// twoTopics returns a cluster of three nodes that have the same messages of "t". l leads "t", and x leads "u".
func twoTopics(t *testing.T) (tc *testCluster, h *ackLog, l, x *testNode) {
	t.Helper()
	tc = newTestCluster(t, 3, impatient)
	tc.create("t", 1)
	tc.create("u", 1)
	h = newAckLog()
	l = tc.leader("t", 0)
	x = tc.others(l)[0]
	tc.moveLeadership("u", 0, x)
	tc.publishMany(h, l, "t", "m", 100, 400)
	tc.awaitEqualCopies("t", 0)
	return tc, h, l, x
}

// failWhileAlone makes the segments of l, which leads "t", fail while no other node gets what l appends: a put is
// pending then. x leads "u", whose messages fill the commit log of l, so that its segments are written.
func (tc *testCluster) failWhileAlone(h *ackLog, l, x *testNode) {
	tc.t.Helper()
	tc.network.rules(func(from, _ string, kind netproto.Type) int {
		if from == l.name && kind == netproto.TypePutMessagesOnReplica {
			return 0
		}
		return 1
	})
	l.failSegments(faultaio.KindWrite, 1)
	if h.publish(tc.t.Context(), tc.topic(l, "t"), "beyond the others") == nil {
		tc.t.Fatal("it was answered OK")
	}
	for i := 0; l.e.Health() == nil; i++ {
		tc.publishMany(newAckLog(), x, "u", fmt.Sprint("m", i), 100, 400)
	}
}

// A leader whose segments cannot be written cannot hand over in time, because a put is pending, and refuses puts then.
// It tries again soon: all publishers of the partition wait for it.
func TestClusterLeaderThatCannotWriteTriesAgainSoon(t *testing.T) {
	t.Parallel()
	tc, h, l, x := twoTopics(t)
	tc.failWhileAlone(h, l, x)
	tc.eventually("puts are refused", func() bool {
		return errors.Is(h.publish(t.Context(), tc.topic(l, "t"), "refused"), errs.ErrDisk)
	})
	tc.network.rules(nil)
	began := time.Now()
	tc.eventually("another node leads", func() bool { return tc.leader("t", 0) != l })
	if took := time.Since(began); took > 6*time.Second { // the first attempt began a second before puts were refused
		t.Errorf("it handed over after %v", took)
	}
	tc.awaitFetchedAnew(h, l)
}

// A leader whose segments cannot be written loses its leadership to a replica that has fewer batches. The batches
// beyond that cannot be cut off, so the copy begins anew.
func TestClusterLeaderThatCannotWriteIsCut(t *testing.T) {
	t.Parallel()
	tc, h, l, x := twoTopics(t)
	end := node.EndOf(l.e, "t", 0)
	tc.failWhileAlone(h, l, x)
	if node.EndOf(l.e, "t", 0) == end {
		t.Fatal("the leader has no more than the others")
	}
	tc.moveLeadership("t", 0, x)
	tc.network.rules(nil)
	tc.awaitFetchedAnew(h, l)
}

// If the disk accepts no segment of a copy any more, the copy does not begin anew again and again, and it does not keep
// the commit log from going on.
func TestClusterCopyThatIsNeverWritten(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	tc.create("u", 1)
	h := newAckLog()
	l := tc.leader("t", 0)
	x := tc.others(l)[0]
	x.failSegments(faultaio.KindWrite, -1)
	tc.publishMany(h, l, "t", "m", 3000, 400)
	tc.eventually("the copy is dropped again", func() bool { return x.e.Storage().Dropped == 2 })
	tc.eventually("it is emptied again", func() bool { return node.BeganAnew(x.e, "t", 0) == 2 })
	at := x.e.CommitStats().Current
	for i := 0; x.e.CommitStats().Current < at+10; i++ { // its commit log holds four files
		tc.publishMany(newAckLog(), tc.leader("u", 0), "u", fmt.Sprint("m", i), 100, 4000)
		tc.publishMany(h, l, "t", fmt.Sprint("n", i), 10, 400)
	}
	if n := x.e.Storage().Dropped; n != 2 {
		t.Errorf("it was dropped %d times", n)
	}
	if row := l.row("u", 0); len(row.State.ISR) != 3 {
		t.Errorf("%d replicas of the other topic are in sync", len(row.State.ISR))
	}
	if n := node.BeganAnew(x.e, "t", 0); n != 2 {
		t.Errorf("it began anew %d times", n)
	}
}
