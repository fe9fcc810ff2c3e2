package node_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/tests/support/faultaio"
)

// readsHang prepares a leader of "t" whose disk answers no reads, and a follower that comes back. The follower lacks a
// few batches that the leader's machine still remembers (replicate: recent) and that are not in memory any more,
// because another partition may have needed the buffers. own is a partition of "other" that the same node leads.
func readsHang(t *testing.T, change ...func(*node.Options)) (tc *testCluster, l *testNode, own int) {
	tc = newTestCluster(t, 3, append(change, impatient, func(o *node.Options) {
		o.Cluster.Replication.LagMaxNs = int64(time.Second)
	})...)
	tc.create("t", 1)
	tc.create("other", 6)
	l = tc.leader("t", 0)
	for own < 5 && tc.leader("other", own) != l {
		own++
	}
	back := tc.others(l)[0]
	h := newAckLog()
	stored := func(what string, count int) { // a busy machine leaves the outcome of some puts unknown
		for i := range count {
			tc.eventually(what+" is stored", func() bool {
				return h.publish(t.Context(), tc.topic(l, "t"), fmt.Sprint(what, i, time.Now().UnixNano())) == nil
			})
		}
	}
	stored("what all have", 10)
	tc.awaitEqualCopies("t", 0)
	tc.network.isolate(back.name, true)
	stored("what the follower misses", 5)
	tc.eventually("nothing is in memory", func() bool { return node.EvictCopy(l.e, "t", 0) })
	l.disk.Inject(faultaio.Rule{Kind: faultaio.KindRead, Name: "topics/*/0/*", Hold: true, Count: -1})
	t.Cleanup(func() {
		l.disk.ClearRules()
		l.disk.ReleaseHeld()
	})
	tc.network.isolate(back.name, false)
	// Nothing is appended meanwhile, so the machine goes on remembering these batches.
	tc.eventually("a read for the follower hangs", func() bool { return l.disk.Blocked() > 0 })
	return tc, l, own
}

// No write hangs, and the leader's other follower is in sync: puts are stored.
func TestClusterLeaderGoesOnWhileAReadHangs(t *testing.T) {
	t.Parallel()
	tc, l, own := readsHang(t)
	for topic, n := range map[string]int{"t": 0, "other": own} {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if err := node.PutTo(ctx, tc.topic(l, topic), n, &node.Put{Messages: [][]byte{[]byte("x")}}); err != nil {
			t.Errorf("a put to %s: %v", topic, err)
		}
	}
}

// F6: when writes hang as well, the node gives its leadership away.
func TestClusterLeaderGivesUpWhileAReadHangs(t *testing.T) {
	t.Parallel()
	tc, l, _ := readsHang(t, shortPatience)
	release := l.hang()
	defer release()
	_ = node.PutTo(within(t, time.Second), tc.topic(l, "other"), 0, &node.Put{Messages: [][]byte{[]byte("x")}})
	rest := tc.others(l)
	tc.eventually("another node leads", func() bool {
		return rest[0].row("t", 0).State.Leader != l.e.Node().ID
	})
}
