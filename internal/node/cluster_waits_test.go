package node_test

import (
	"maps"
	"path"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"penstock/internal/node"
	"penstock/netproto"
	"penstock/segment"
	"penstock/tests/support/faultaio"
)

// waiting is a cluster of three nodes. One node is down and outside of the ISR. One of the two members of the ISR
// cannot read the segments of its copy of "t": all of them, in a log whose beginning was trimmed, or all but the first.
type waiting struct {
	*testCluster
	h       *ackLog
	l, x, z *testNode // the leader, the one whose device fails, the one that is down
	dir     string
	names   []string // of x's segments
	// Frames of its leader that x has received since it cannot read: the ends of exchanges, and orders to begin anew.
	asked, reset atomic.Int32
}

func newWaiting(t *testing.T, trimmed bool) *waiting {
	t.Helper()
	w := &waiting{testCluster: newTestCluster(t, 3, scrubsOften), h: newAckLog()}
	w.create("t", 1)
	c := w.channel("t", "c")
	if trimmed {
		publish(t, c.Topic(), numbered("m", 200, 12<<10)...)
		if got := readAll(t, c); len(got) != 200 {
			t.Fatalf("%d messages came", len(got))
		}
	}
	w.l = w.leader("t", 0)
	w.x, w.z = w.others(w.l)[0], w.others(w.l)[1]
	w.dir = path.Join(node.TopicDir(w.x.e, "t"), "0")
	w.stop(w.z)
	w.publishMany(w.h, w.l, "t", "m", 3000, 800) // so many that most of it is in segments
	w.awaitEqualCopies("t", 0)
	w.eventually("the log begins where it should", func() bool {
		c, err := node.CopyOf(w.x.e, "t", 0)
		return err == nil && (c.Start > 0) == trimmed
	})
	w.eventually("two are in sync", func() bool { return len(w.l.row("t", 0).State.ISR) == 2 })
	w.stop(w.x)
	w.names = slices.Sorted(maps.Keys(segmentBytes(t, w.x.disk, w.dir)))
	bad := w.names
	if !trimmed {
		bad = bad[1:]
	}
	for _, name := range bad {
		w.x.disk.Inject(faultaio.Rule{Kind: faultaio.KindRead, Name: path.Join(w.dir, name), Count: -1, Err: syscall.EIO})
	}
	w.network.rules(func(_, to string, kind netproto.Type) int {
		switch {
		case to != w.x.name:
		case kind == netproto.TypeMatch:
			w.asked.Add(1)
		case kind == netproto.TypeReset:
			w.reset.Add(1)
		}
		return 1
	})
	w.start(w.x)
	return w
}

// waits checks that x is not discarded, although it has received as many frames of its leader as would lead to that.
func (w *waiting) waits(trimmed bool) {
	w.t.Helper()
	w.eventually("the store knows that it is damaged", func() bool { return len(w.l.row("t", 0).Damaged) == 1 })
	if from := w.asked.Load(); trimmed {
		w.eventually("it asks again and again", func() bool { return w.asked.Load() > from+3 || w.reset.Load() > 0 })
	} else {
		from := w.x.e.Storage().ScrubRounds
		w.eventually("its leader is asked again and again", func() bool {
			return w.x.e.Storage().ScrubRounds > from+3 || w.reset.Load() > 0
		})
	}
	if n, d := w.reset.Load(), w.x.e.Storage().Dropped; n != 0 || d != 0 {
		w.t.Fatalf("the copy was given up: %d resets, %d dropped", n, d)
	}
}

// The device of one of two members of the ISR cannot read for a while. Meanwhile the other member's copy rots and its
// node ends; the third replica is outside of the ISR. The acknowledged messages are only in the copy that could not be
// read. When it reads again, in the same process or in the next one, it leads, and nothing is lost.
func TestClusterCopyWaitsForItsDevice(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ trimmed, restart bool }{
		"the beginning, the same process": {true, false},
		"the beginning, the next process": {true, true},
		"a segment, the same process":     {false, false},
		"a segment, the next process":     {false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWaiting(t, c.trimmed)
			w.waits(c.trimmed)
			w.kill(w.l)
			for name := range segmentBytes(t, w.l.disk, w.dir) {
				if !w.l.disk.Corrupt(path.Join(w.dir, name), []byte("rotten"), segment.SegmentHeaderBytes+3000) {
					t.Fatal("the segment is gone")
				}
			}
			if c.restart {
				w.kill(w.x)
			}
			w.x.disk.ClearRules()
			if c.restart {
				w.start(w.x)
			}
			w.start(w.z)
			w.eventually("the copy that waited leads", func() bool { return node.Leads(w.x.e, "t", 0) })
			w.awaitHeld(w.h, []*testNode{w.x, w.z})
			w.publishMany(w.h, w.x, "t", "n", 20, 100)
			w.start(w.l)
			w.awaitInSync("t")
			w.awaitHeld(w.h, w.nodes)
			w.awaitEqualCopies("t", 0)
			if n := w.x.e.Storage().Dropped; n != 0 {
				t.Errorf("it was dropped %d times", n)
			}
			if !c.trimmed {
				w.checkCopies(w.h, "t", 1)
			}
		})
	}
}

// A device that never reads again keeps the copy waiting until another replica has joined the ISR; then the copy is
// fetched anew.
func TestClusterCopyIsFetchedWhenAnotherHasJoined(t *testing.T) {
	t.Parallel()
	for name, trimmed := range map[string]bool{"the beginning": true, "a segment": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWaiting(t, trimmed)
			w.waits(trimmed)
			w.start(w.z)
			w.eventually("the copy is given up", func() bool { return w.x.e.Storage().Dropped == 1 })
			w.x.disk.ClearRules() // the new files have the old names
			w.awaitInSync("t")
			w.awaitHeld(w.h, w.nodes)
			w.publishMany(w.h, w.l, "t", "n", 20, 100)
			w.awaitEqualCopies("t", 0)
		})
	}
}

// Bytes that read again and are wrong are damage: the copy does not wait any longer.
func TestClusterCopyThatReadsBackDamagedIsFetched(t *testing.T) {
	t.Parallel()
	w := newWaiting(t, true)
	w.waits(true)
	if !w.x.disk.Corrupt(path.Join(w.dir, w.names[0]), []byte("rotten"), segment.SegmentHeaderBytes+segment.HeaderBytes) {
		t.Fatal("the segment is gone")
	}
	w.x.disk.ClearRules()
	w.eventually("the copy is given up", func() bool { return w.x.e.Storage().Dropped == 1 })
	w.start(w.z)
	w.awaitInSync("t")
	w.awaitHeld(w.h, w.nodes)
	w.awaitEqualCopies("t", 0)
}
