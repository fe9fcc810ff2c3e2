package node_test

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"slices"
	"syscall"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/netproto"
	"penstock/segment"
	"penstock/tests/support/faultaio"
)

// The head of a segment of one copy cannot be read any more, which cannot be repaired in place. The copy is discarded
// and fetched anew. No acknowledged message is lost; the copy joins the ISR and may lead again.
//
// B37.
func TestClusterDropsWhatCannotBeRepaired(t *testing.T) {
	t.Parallel()
	const last = -1 // with more for it in the commit log
	for name, which := range map[string]int{"the first segment": 0, "the second segment": 1, "the last segment": last} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc := newTestCluster(t, 3)
			tc.create("t", 1)
			h := newAckLog()
			l := tc.leader("t", 0)
			tc.publishMany(h, l, "t", "m", 6000, 400) // so many that most of it is in segments
			tc.awaitEqualCopies("t", 0)
			x := tc.others(l)[0]
			dir := path.Join(node.TopicDir(x.e, "t"), "0")
			if which == last {
				tc.kill(x)
			} else {
				tc.stop(x)
			}
			var names []string
			for name := range segmentBytes(t, x.disk, dir) {
				names = append(names, name)
			}
			slices.Sort(names)
			if len(names) < 3 {
				t.Fatalf("%d segments", len(names))
			}
			mayStay := which == last // the commit log may have all of that file: then it is made anew
			if which == last {
				which = len(names) - 1
			}
			if !x.disk.Corrupt(path.Join(dir, names[which]), []byte("rotten"), segment.SegmentHeaderBytes/64) {
				t.Fatal("the segment is gone")
			}
			tc.start(x)
			if !mayStay {
				tc.eventually("the copy is dropped", func() bool { return x.e.Storage().Dropped == 1 })
			}
			tc.awaitInSync("t")
			tc.awaitHeld(h, tc.nodes)
			tc.eventually("it is whole", func() bool { return x.e.Storage().Shortened == 0 && x.e.Health() == nil })
			tc.awaitEqualCopies("t", 0)
			if n := x.e.Storage().Dropped; n != 1 && !(n == 0 && mayStay) {
				t.Errorf("it was dropped %d times", n)
			}
			tc.moveLeadership("t", 0, x)
			tc.publishReplicated(h, 5) // it takes what any leader takes
			tc.stop(x)
			tc.start(x)
			tc.awaitHeld(h, tc.nodes)
			tc.checkCopies(h, "t", 1)
		})
	}
}

// Batches that the commit log has of a copy cannot be written to a segment whose head is damaged: the copy accepts no
// puts. After it has begun anew it accepts them as any leader does.
func TestClusterCopyBegunAnewTakesPuts(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	h := newAckLog()
	l := tc.leader("t", 0)
	tc.publishMany(h, l, "t", "m", 3000, 400) // so many that most of it is in segments
	tc.awaitEqualCopies("t", 0)
	x := tc.others(l)[0]
	dir := path.Join(node.TopicDir(x.e, "t"), "0")
	tc.stop(x)
	first := slices.Min(slices.Collect(maps.Keys(segmentBytes(t, x.disk, dir))))
	if !x.disk.Corrupt(path.Join(dir, first), []byte("rotten"), segment.SegmentHeaderBytes/64) {
		t.Fatal("the segment is gone")
	}
	tc.network.rules(func(_, to string, kind netproto.Type) int { // the flusher comes first
		if to == x.name && kind == netproto.TypeFetchReply {
			return 0
		}
		return 1
	})
	tc.start(x)
	if !node.FailFlush(x.e, "t", 0) {
		t.Fatal("the copy is given up already")
	}
	tc.network.rules(nil)
	tc.eventually("the copy is dropped", func() bool { return x.e.Storage().Dropped == 1 })
	tc.awaitInSync("t")
	tc.awaitHeld(h, tc.nodes)
	tc.moveLeadership("t", 0, x)
	tc.publishReplicated(h, 5)
	tc.checkCopies(h, "t", 1)
}

// The device of a node fails to read during one life only. A copy is discarded, the commit log releases what the
// segments lack, and the process ends before the copy has begun anew. That the copy can be read again proves nothing
// then: the next process does not take it for whole, but the one after it does.
//
// It needs a copy of which the segments lack something when it is dropped. The flusher may have written all of it by
// then, which cannot be told from outside; then another cluster is tried.
func TestClusterDroppedCopyStaysDropped(t *testing.T) {
	t.Parallel()
	for range 4 {
		if droppedCopyStaysDropped(t) {
			return
		}
	}
	t.Error("no copy was marked as dropped")
}

// droppedCopyStaysDropped returns false if the copy needed no mark, or none came in time.
func droppedCopyStaysDropped(t *testing.T) bool {
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	tc.create("u", 1)
	h := newAckLog()
	l := tc.leader("t", 0)
	tc.publishMany(h, l, "t", "m", 6000, 400) // so many that most of it is in segments
	tc.awaitEqualCopies("t", 0)
	x := tc.others(l)[0]
	dir := path.Join(node.TopicDir(x.e, "t"), "0")
	tc.stop(x)
	x.disk.Inject(faultaio.Rule{Kind: faultaio.KindRead, Name: dir + "/*.seg", Err: syscall.EIO, Count: -1})
	tc.network.rules(func(_, to string, kind netproto.Type) int {
		if to == x.name && kind == netproto.TypeReset {
			return 0
		}
		return 1
	})
	tc.start(x)
	tc.eventually("the copy is dropped", func() bool { return x.e.Storage().Dropped == 1 })
	tc.awaitInSync("u")
	tc.publishMany(newAckLog(), tc.leader("u", 0), "u", "m", 6000, 400)
	other := newAckLog()
	marked := func() bool {
		list, err := x.disk.ReadFile("shortened.json", 1<<20)
		return err == nil && bytes.Contains(list, []byte(`"dropped":true`))
	}
	for end := time.Now().Add(patience / 4); !marked(); { // its files are needed: the commit log lets go of it
		if time.Now().After(end) {
			return false
		}
		tc.publishMany(other, tc.leader("u", 0), "u", fmt.Sprint("more ", len(other.acked)), 50, 400)
	}
	tc.kill(x)
	tc.network.rules(nil)
	tc.start(x)
	if n := x.e.Storage().Dropped; n != 1 {
		t.Errorf("%d copies are taken for dropped", n)
	}
	tc.awaitInSync("t")
	tc.awaitHeld(h, tc.nodes)
	tc.eventually("it is whole", func() bool { return x.e.Storage().Shortened == 0 && x.e.Health() == nil })
	tc.awaitEqualCopies("t", 0)
	tc.kill(x)
	tc.start(x)
	if n := x.e.Storage().Dropped; n != 0 {
		t.Errorf("%d copies are taken for dropped after they have begun anew", n)
	}
	tc.awaitHeld(h, tc.nodes)
	tc.checkCopies(h, "t", 1)
	return true
}

// The first batch of a copy whose beginning was trimmed cannot be read any more, so a machine does not know on what the
// log builds. The copy is discarded before its node joins, so that it is not elected, and it is fetched anew.
//
// B37.
func TestClusterDropsWhatHasNoBase(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	c := tc.channel("t", "c")
	publish(t, c.Topic(), numbered("m", 200, 12<<10)...)
	if got := readAll(t, c); len(got) != 200 {
		t.Fatalf("%d messages came", len(got))
	}
	publish(t, c.Topic(), numbered("n", 100, 12<<10)...)
	for _, m := range tc.nodes {
		tc.eventually(m.name+" removes what is confirmed", func() bool {
			c, err := node.StateOf(m.e, "t", 0)
			return err == nil && c.Start > 1<<20
		})
	}
	x := tc.leader("t", 0)
	dir := path.Join(node.TopicDir(x.e, "t"), "0")
	for _, m := range tc.nodes {
		tc.stop(m)
	}
	first := slices.Min(slices.Collect(maps.Keys(segmentBytes(t, x.disk, dir))))
	if !x.disk.Corrupt(path.Join(dir, first), []byte("rotten"), segment.SegmentHeaderBytes+segment.HeaderBytes) {
		t.Fatal("the segment is gone")
	}
	tc.start(x)
	if row := x.row("t", 0); len(row.Damaged) != 1 || row.Damaged[0].Node != x.e.Node().ID {
		t.Errorf("the node has joined, and the row says %+v is damaged", row.Damaged)
	}
	for _, m := range tc.nodes {
		if m != x {
			tc.start(m)
		}
	}
	tc.awaitInSync("t")
	tc.awaitEqualCopies("t", 0)
	if n := x.e.Storage().Dropped; n != 1 {
		t.Errorf("it was dropped %d times", n)
	}
}
