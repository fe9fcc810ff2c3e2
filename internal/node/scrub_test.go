package node_test

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/replicate"
	"penstock/segment"
)

func scrubsOften(o *node.Options) { o.ScrubInterval = 100 * time.Millisecond }

// A bit rots in a copy that no consumer reads. The scrub finds it, and it is repaired from the other copies.
func TestClusterScrubRepairs(t *testing.T) {
	t.Parallel()
	// A round reads 16 MiB a second, and the next one finds what rotted behind it: few bytes are in memory and in all.
	const maxCount = 30_000
	tc := newTestCluster(t, 3, scrubsOften, func(o *node.Options) { o.BufferBytes = 4 << 20 })
	tc.create("t", 1)
	h := newAckLog()
	l := tc.leader("t", 0)
	tc.publishMany(h, l, "t", "m", 6000, 400) // so many that most of it is in segments
	tc.awaitEqualCopies("t", 0)
	f := tc.others(l)[0]
	flip(t, f, path.Join(node.TopicDir(f.e, "t"), "0"), 1)
	tc.eventually("the scrub finds it, when memory does not have these bytes any more", func() bool {
		if len(h.acked) < maxCount {
			tc.publishMany(h, l, "t", fmt.Sprint("x", len(h.acked)), 500, 400)
		}
		return f.e.Storage().ScrubDamaged > 0
	})
	tc.eventually("it is repaired", func() bool { return f.e.Health() == nil })
	from := f.e.Storage()
	tc.eventually("another round finds nothing", func() bool { return f.e.Storage().ScrubRounds > from.ScrubRounds+1 })
	if n := f.e.Storage().ScrubDamaged; n != from.ScrubDamaged {
		t.Errorf("%d ranges were damaged, and then %d", from.ScrubDamaged, n)
	}
	self := replicate.NodeID(0)
	for id, n := range l.e.Snapshot().Nodes {
		if n.Name == f.name {
			self = id
		}
	}
	faults, err := l.e.FaultsOf(t.Context(), self)
	isDamage := func(x node.Fault) bool { return x.Name == "scrub_damaged" && x.Count > 0 }
	if err != nil || !slices.ContainsFunc(faults, isDamage) {
		t.Errorf("another node is told %+v, %v", faults, err)
	}
	for _, m := range tc.others(f) {
		if s := m.e.Storage(); s.ScrubDamaged != 0 {
			t.Errorf("%s found damage in %d ranges of a whole copy", m.name, s.ScrubDamaged)
		}
	}
	tc.awaitInSync("t")
	tc.checkCopies(h, "t", 1)
}

// On a single node the scrub reports where the damage is, before a consumer reads it.
func TestScrubTells(t *testing.T) {
	t.Parallel()
	disk, _ := closedDirectory(t, 300)
	files := segmentFiles(t, disk, "bad")
	if !disk.Corrupt(files[len(files)/2], []byte("rotten"), segment.SegmentHeaderBytes+20_000) {
		t.Fatal("no such file")
	}
	var log logged
	e := openOnDisk(t, disk, scrubsOften, func(o *node.Options) { o.Logger = log.logger() })
	eventually(t, "the scrub finds it", func() bool { return e.Storage().ScrubDamaged == 1 && e.Health() != nil })
	eventually(t, "two rounds", func() bool { return e.Storage().ScrubRounds > 2 })
	if n := strings.Count(log.String(), "the scrub found"); n != 1 ||
		e.Storage().ScrubDamaged != 1 || e.Storage().ScrubBytes == 0 {
		t.Errorf("told %d times, counted %d", n, e.Storage().ScrubDamaged)
	}
}
