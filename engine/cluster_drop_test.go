package engine_test

import (
	"path"
	"slices"
	"testing"

	"penstock/engine"
	"penstock/segment"
)

// The head of a segment of one copy does not read any more: it cannot be repaired in place. The copy is dropped and
// fetched anew, nothing that was acknowledged is lost, and it counts and may lead again.
//
// B37.
func TestClusterDropsWhatCannotBeRepaired(t *testing.T) {
	t.Parallel()
	for name, which := range map[string]int{"the first segment": 0, "the second segment": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr := newTrio(t, 3)
			tr.create("t", 1)
			h := newTold()
			l := tr.leader("t", 0)
			tr.fill(h, l, "t", "m", 6000, 400) // so many that most of it is in segments
			tr.equal("t", 0)
			x := tr.others(l)[0]
			dir := path.Join(engine.TopicDir(x.e, "t"), "0")
			tr.stop(x)
			var names []string
			for name := range segmentBytes(t, x.disk, dir) {
				names = append(names, name)
			}
			slices.Sort(names)
			if len(names) < 3 {
				t.Fatalf("%d segments", len(names))
			}
			if !x.disk.Corrupt(path.Join(dir, names[which]), []byte("rotten"), segment.SegmentHeaderBytes/64) {
				t.Fatal("the segment is gone")
			}
			tr.start(x)
			tr.eventually("the copy is dropped", func() bool { return x.e.Storage().Dropped == 1 })
			tr.whole("t")
			tr.hold(h, tr.nodes)
			tr.eventually("it is whole", func() bool { return x.e.Storage().Shortened == 0 && x.e.Health() == nil })
			tr.equal("t", 0)
			if n := x.e.Storage().Dropped; n != 1 {
				t.Errorf("it was dropped %d times", n)
			}
			tr.stop(x)
			tr.start(x)
			tr.hold(h, tr.nodes)
			tr.checkAll(h, "t", 1)
		})
	}
}
