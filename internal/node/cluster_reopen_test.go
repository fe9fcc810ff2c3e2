package node_test

import (
	"slices"
	"testing"

	"penstock/internal/node"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/tests/support/faultaio"
)

// A node has to cut its copy, and its disk hangs. Meanwhile the node learns that it is no replica any more, and then
// that it is one again. The copy is opened only after the cut has ended: until then its log is the old one, and batches
// of it that the copy acknowledged would be lost in the cut.
func TestClusterReopenWaitsForTheCut(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, neverStranded)
	tc.create("t", 1)
	l := tc.leader("t", 0)
	rest := tc.others(l)
	h := newAckLog()
	if err := h.publish(t.Context(), tc.topic(l, "t"), "before"); err != nil {
		t.Fatal(err)
	}
	tc.awaitEqualCopies("t", 0)
	tc.network.isolate(l.name, true)
	tc.setPublishTimeout(impatience)
	h.publishInVain(t, tc.topic(l, "t"), "nobody else has it")
	tc.eventually("it is durable there", func() bool {
		holds := node.HoldsOf(l.e, "t", 0)
		return holds.Durable == holds.End
	})
	row := l.row("t", 0)
	if err := rest[0].store.HandOver(t.Context(), row.ID, &row.State, rest[0].e.Node().ID); err != nil {
		t.Fatal(err)
	}
	tc.eventually("it leads no more", func() bool { return !node.Leads(l.e, "t", 0) })

	release := func() {
		l.disk.ClearRules()
		l.disk.ReleaseHeld()
	}
	t.Cleanup(release) // before the cluster ends
	l.disk.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Name: "clog/*", Hold: true, Count: -1})
	tc.network.isolate(l.name, false)
	tc.eventually("its copy is being cut", func() bool { return node.CutRuns(l.e, "t", 0) })
	without := *rest[0].row("t", 0)
	without.State.Replicas = without.State.Replicas[:0:0]
	for _, m := range rest {
		without.State.Replicas = append(without.State.Replicas, m.e.Node().ID)
	}
	without.State.ISR = nil // so that its bytes stay
	node.LearnRow(l.e, &without)
	if node.Present(l.e, "t", 0) {
		t.Fatal("it takes part in what it is no replica of")
	}
	for range 3 {
		node.LearnRow(l.e, rest[0].row("t", 0))
		if node.Present(l.e, "t", 0) || !node.CutRuns(l.e, "t", 0) {
			t.Fatal("the copy was opened while its log is being cut")
		}
	}
	release()
	tc.setPublishTimeout(longLease)
	tc.eventually("the copy is opened when the cut has ended", func() bool { return node.Present(l.e, "t", 0) })
	tc.awaitInSync("t")
	if err := h.publish(t.Context(), tc.topic(rest[0], "t"), "after"); err != nil {
		t.Fatal(err)
	}
	tc.checkCopies(h, "t", 1)
}

// A copy has received batches for which its hanging disk has no room yet, and has to be cut to a place among them when
// its partition moves away. The received batches are dropped then, so that the log ends below the place of the cut. The
// cut ends nevertheless, and the copy can be removed, or opened again.
func TestClusterCutBeyondTheLog(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, impatient)
	tc.create("t", 1)
	tc.create("u", 1)
	l := tc.leader("t", 0)
	x, next := tc.others(l)[0], tc.others(l)[1]
	h := newAckLog()
	if err := h.publish(t.Context(), tc.topic(l, "t"), "before"); err != nil {
		t.Fatal(err)
	}
	// A leader takes puts when the first batch of its epoch is committed, which a disk that hangs would prevent.
	if err := newAckLog().publish(t.Context(), tc.topic(l, "u"), "before"); err != nil {
		t.Fatal(err)
	}
	tc.awaitEqualCopies("t", 0)
	tc.awaitEqualCopies("u", 0)
	release := func() {
		x.disk.ClearRules()
		x.disk.ReleaseHeld()
	}
	t.Cleanup(release) // before the cluster ends
	x.disk.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Name: "clog/*", Hold: true, Count: -1})
	end := node.EndOf(x.e, "u", 0)
	held := newAckLog()
	held.publishInVain(t, tc.topic(l, "u"), "in the group on the disk")
	tc.eventually("a group is on the disk", func() bool { return node.EndOf(x.e, "u", 0) != end })
	h.publishInVain(t, tc.topic(l, "t"), "after the group")
	tc.eventually("the other has it", func() bool { return node.EndOf(next.e, "t", 0) == node.EndOf(l.e, "t", 0) })
	tc.network.rules(func(from, to string, _ netproto.Type) int {
		if from != x.name && to != x.name {
			return 0 // l never hears of the epoch of the other
		}
		return 1
	})
	handOver := func(from, to *testNode) {
		row := from.row("t", 0)
		if err := from.store.HandOver(t.Context(), row.ID, &row.State, to.e.Node().ID); err != nil {
			t.Fatal(err)
		}
		tc.eventually("it leads", func() bool { return node.Leads(to.e, "t", 0) })
	}
	handOver(l, next)
	tc.eventually("it has taken what its log has no room for", func() bool { return node.IncomingOf(x.e, "t", 0) >= 2 })
	handOver(next, l)
	tc.eventually("its copy is being cut", func() bool { return node.CutRuns(x.e, "t", 0) })
	moved := *l.row("t", 0)
	moved.State.Replicas = slices.DeleteFunc(slices.Clone(moved.State.Replicas), func(n replicate.NodeID) bool {
		return n == x.e.Node().ID
	})
	moved.State.ISR = nil // so that its bytes stay
	node.LearnRow(x.e, &moved)
	release()
	tc.eventually("the cut ends", func() bool { return !node.CutRuns(x.e, "t", 0) })
	tc.network.rules(nil)
	node.LearnRow(x.e, l.row("t", 0))
	tc.eventually("the copy is opened again", func() bool { return node.Present(x.e, "t", 0) })
	tc.awaitInSync("t")
	tc.eventually("writes go on", func() bool { return h.publish(t.Context(), tc.topic(l, "t"), "after") == nil })
	tc.checkCopies(h, "t", 1)
}
