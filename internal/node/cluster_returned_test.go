package node_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/tests/support/faultaio"
)

// A copy is not needed for a while and then needed again, in the same process. It counts as durable what the commit log
// has made durable, and not all that was appended. While its disk hangs it acknowledges nothing more; writes that the
// disk has completed meanwhile count.
func TestClusterReturnedCopyHoldsWhatIsDurable(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	l := tc.leader("t", 0)
	tc.awaitEqualCopies("t", 0)
	back := tc.others(l)[0]
	tc.eventually("all is durable there", func() bool { h := node.HoldsOf(back.e, "t", 0); return h.Durable == h.End })
	before := node.HoldsOf(back.e, "t", 0)
	back.disk.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Name: "clog/*", Hold: true, Count: -1})
	t.Cleanup(func() { // before the cluster ends
		back.disk.ClearRules()
		back.disk.ReleaseHeld()
	})
	done, err := submit(tc.topic(l, "t"), time.Time{}, "message")
	if err != nil {
		t.Fatal(err)
	}
	tc.eventually("it has the message, not durably", func() bool {
		return node.HoldsOf(back.e, "t", 0).End > before.End
	})
	for round := range 3 {
		if err := node.ReopenCopy(back.e, "t", 0); err != nil {
			t.Fatal(err)
		}
		if h := node.HoldsOf(back.e, "t", 0); h.Durable != before.Durable || h.End != before.End+1 {
			t.Fatalf("round %d: it was %+v before the message, it says %+v", round, before, h)
		}
	}
	select {
	case r := <-done:
		t.Fatalf("answered although %s did not flush it: %v", back.name, r)
	case <-time.After(30 * time.Millisecond):
	}
	node.RetireCopy(back.e, "t", 0) // its disk goes on while it is not needed
	back.disk.ClearRules()
	back.disk.ReleaseHeld()
	tc.eventually("the message is durable", func() bool { return node.HoldsOf(back.e, "t", 0).Durable == before.End+1 })
	if err := node.ReopenCopy(back.e, "t", 0); err != nil {
		t.Fatal(err)
	}
	if h := node.HoldsOf(back.e, "t", 0); h.Durable != before.End+1 {
		t.Errorf("what became durable while it was away does not count: %+v", h)
	}
	if r := answer(t, done); r.err != nil {
		t.Error(fmt.Errorf("the answer: %w", r.err))
	}
	tc.awaitEqualCopies("t", 0)
}

// F10: a node that has no copy of a partition says so to the leader. The replica leaves the ISR, and publishing goes
// on; when the node has a copy again, it joins by itself. Both nodes count the answers, and the leader rarely asks.
func TestClusterAbsentCopy(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, func(o *node.Options) { o.Cluster.Replication.LagMaxNs = 2e9 })
	tc.create("t", 1)
	l := tc.leader("t", 0)
	tc.awaitEqualCopies("t", 0)
	tc.eventually("every node is at level 2 or above, where a node can say that it has no copy", func() bool {
		return tc.nodes[0].e.Level() >= 2 && tc.nodes[1].e.Level() >= 2 && tc.nodes[2].e.Level() >= 2
	})
	away := tc.others(l)[0]
	node.RetireCopy(away.e, "t", 0)
	h := newAckLog()
	if err := h.publish(context.Background(), tc.topic(l, "t"), "without it"); err != nil {
		t.Fatal(err)
	}
	tc.eventually("the leader was told", func() bool { return l.e.Storage().AbsentReplicas > 1 })
	tc.eventually("its change of the in-sync replicas is counted", func() bool { return l.e.Storage().ISRChanges > 0 })
	if away.e.Storage().FramesNoCopy == 0 {
		t.Error("the node does not count what it was sent")
	}
	if err := node.ReopenCopy(away.e, "t", 0); err != nil {
		t.Fatal(err)
	}
	tc.awaitInSync("t")
	tc.awaitEqualCopies("t", 0)
}
