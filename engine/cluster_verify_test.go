package engine_test

import (
	"fmt"
	"path"
	"slices"
	"testing"

	"penstock/engine"
	"penstock/segment"
)

// verify compares all of a partition's copies by way of m.
func (tr *trio) verify(m *member, topic string, n uint32) (bytes int64, found []engine.Difference) {
	tr.t.Helper()
	at := segment.Offset(0)
	for range 10_000 {
		var v *engine.Verified
		tr.eventually("all nodes answer", func() bool { // each in time, on a machine that may be busy
			var err error
			v, err = m.e.VerifySome(tr.t.Context(), topic, n, at)
			return err == nil
		})
		bytes += v.Bytes
		found = append(found, v.Found...)
		if at = v.Next; v.Done {
			if len(v.Nodes) != len(tr.nodes) {
				tr.t.Errorf("the copies of %v were compared", v.Nodes)
			}
			return bytes, found
		}
	}
	tr.t.Fatal("it does not come to an end")
	return
}

// Copies are the same while all runs, and whoever asks, in memory and in segments. A bit that rots in one of them is
// found, named with its node, and repaired: the next comparison finds nothing.
func TestClusterVerify(t *testing.T) {
	t.Parallel()
	tr := newTrio(t, 3)
	tr.create("t", 1)
	h := newTold()
	l := tr.leader("t", 0)
	tr.fill(h, l, "t", "m", 6000, 400)
	stop := tr.load(h, l, "t", "more", never)
	for _, m := range tr.nodes {
		if n, found := tr.verify(m, "t", 0); n < 100_000 || len(found) > 0 {
			t.Errorf("asked at %s: %d bytes, %+v", m.name, n, found)
		}
	}
	stop()
	tr.equal("t", 0)
	f := tr.others(l)[0]
	flip(t, f, path.Join(engine.TopicDir(f.e, "t"), "0"), 1)
	var found []engine.Difference
	tr.eventually("it is found, when memory does not have these bytes any more", func() bool {
		tr.fill(h, l, "t", fmt.Sprint("x", len(h.acked)), 500, 400)
		_, found = tr.verify(l, "t", 0)
		return len(found) > 0
	})
	if len(found) != 1 || !slices.Equal(found[0].Damaged, []string{f.name}) ||
		len(found[0].Differing) > 0 || found[0].First == 0 || found[0].Count == 0 {
		t.Fatalf("a flipped bit at %s: %+v", f.name, found)
	}
	tr.eventually("it is repaired", func() bool { return f.e.Health() == nil })
	if _, found = tr.verify(f, "t", 0); len(found) > 0 {
		t.Errorf("after the repair: %+v", found)
	}
	tr.whole("t")
	tr.checkAll(h, "t", 1)
}
