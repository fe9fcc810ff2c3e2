package node_test

import (
	"fmt"
	"path"
	"slices"
	"testing"

	"penstock/internal/node"
	"penstock/segment"
)

// verify compares all copies of a partition, through node m.
func (tc *testCluster) verify(m *testNode, topic string, n uint32) (bytes int64, found []node.Difference) {
	tc.t.Helper()
	at := segment.Offset(0)
	for range 10_000 {
		var v *node.Verified
		tc.eventually("all nodes answer", func() bool { // each in time, on a machine that may be busy
			var err error
			v, err = m.e.VerifySome(tc.t.Context(), topic, n, at)
			return err == nil
		})
		bytes += v.Bytes
		found = append(found, v.Found...)
		if at = v.Next; v.Done {
			if len(v.Nodes) != len(tc.nodes) {
				tc.t.Errorf("the copies of %v were compared", v.Nodes)
			}
			return bytes, found
		}
	}
	tc.t.Fatal("it does not come to an end")
	return
}

// While everything is whole, all copies are equal, whichever node compares them, in memory and in segments. A bit that
// rots in one copy is found, reported with its node, and repaired: the next comparison finds nothing.
func TestClusterVerify(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	h := newAckLog()
	l := tc.leader("t", 0)
	tc.publishMany(h, l, "t", "m", 6000, 400)
	stop := tc.startProducer(h, l, "t", "more", never)
	for _, m := range tc.nodes {
		if n, found := tc.verify(m, "t", 0); n < 100_000 || len(found) > 0 {
			t.Errorf("asked at %s: %d bytes, %+v", m.name, n, found)
		}
	}
	stop()
	tc.awaitEqualCopies("t", 0)
	f := tc.others(l)[0]
	flip(t, f, path.Join(node.TopicDir(f.e, "t"), "0"), 1)
	var found []node.Difference
	tc.eventually("it is found, when memory does not have these bytes any more", func() bool {
		tc.publishMany(h, l, "t", fmt.Sprint("x", len(h.acked)), 500, 400)
		_, found = tc.verify(l, "t", 0)
		return len(found) > 0
	})
	if len(found) != 1 || !slices.Equal(found[0].Damaged, []string{f.name}) ||
		len(found[0].Differing) > 0 || found[0].First == 0 || found[0].Count == 0 {
		t.Fatalf("a flipped bit at %s: %+v", f.name, found)
	}
	tc.eventually("it is repaired", func() bool { return f.e.Health() == nil })
	if _, found = tc.verify(f, "t", 0); len(found) > 0 {
		t.Errorf("after the repair: %+v", found)
	}
	tc.awaitInSync("t")
	tc.checkCopies(h, "t", 1)
}
