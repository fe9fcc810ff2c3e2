package node_test

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/aside"
	"penstock/netproto"
	"penstock/segment"
	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
)

// asideBodies returns the messages that an entry keeps.
func asideBodies(t *testing.T, disk aio.Disk, e *aside.Entry) (out []string) {
	t.Helper()
	err := aside.Scan(disk, e, func(h *segment.Header, body []byte) error {
		var it segment.RecordIter
		it.Reset(h, body)
		for r := it.NextRef(); r != nil; r = it.NextRef() {
			out = append(out, string(r.Body))
		}
		return it.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// asides lists what is kept of the cuts of a node's copies.
func (m *testNode) asides(t *testing.T) []aside.Entry {
	t.Helper()
	all, err := aside.List(m.disk)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// oneAside returns the only entry of a node, which has these messages.
func (m *testNode) oneAside(t *testing.T, want []string) aside.Entry {
	t.Helper()
	all := m.asides(t)
	if len(all) != 1 {
		t.Fatalf("%d cuts are kept", len(all))
	}
	if got := asideBodies(t, m.disk, &all[0]); !slices.Equal(got, want) {
		t.Errorf("%q are kept, want %q", got, want)
	}
	return all[0]
}

// newCommonCluster starts three nodes with a topic "t", and publishes a message of which h knows.
func newCommonCluster(t *testing.T, edit ...func(*node.Options)) (tc *testCluster, h *ackLog) {
	t.Helper()
	tc, h = newTestCluster(t, 3, edit...), newAckLog()
	tc.create("t", 1)
	if err := h.publish(t.Context(), tc.topic(tc.leader("t", 0), "t"), "common"); err != nil {
		t.Fatal(err)
	}
	return tc, h
}

// deposeWithTail makes a leader of "t" append messages that no other node gets, and makes another node lead. The old
// leader does not know it before heal is called.
func (tc *testCluster) deposeWithTail(bodies ...string) (l, heir *testNode, heal func()) {
	tc.t.Helper()
	l = tc.leader("t", 0)
	tc.awaitEqualCopies("t", 0)
	before, _ := node.StateOf(l.e, "t", 0)
	tc.kv.Cut(l.client)
	tc.network.rules(func(from, to string, _ netproto.Type) int {
		if from == l.name || to == l.name {
			return 0
		}
		return 1
	})
	if len(bodies) > 0 {
		if _, err := submit(tc.topic(l, "t"), time.Time{}, bodies...); err != nil {
			tc.t.Fatal(err)
		}
	}
	tc.eventually("the old leader appended", func() bool {
		c, _ := node.StateOf(l.e, "t", 0)
		return int(c.NextID) >= int(before.NextID)+len(bodies)
	})
	heir = tc.depose(l)
	return l, heir, func() {
		tc.network.rules(nil)
		tc.kv.Heal(l.client)
	}
}

// depose makes another node lead "t" than l, which does not hear of it, and returns a node that heard: what is
// published there is not sent to l any more, which would not answer. The others take nothing from l any more: the new
// leader's epoch has begun in the logs of all of them.
func (tc *testCluster) depose(l *testNode) (heir *testNode) {
	tc.t.Helper()
	heir = tc.others(l)[0]
	if err := heir.store.ReportDown(tc.t.Context(), l.e.Node().ID, l.e.Node().Boot); err != nil {
		tc.t.Fatal(err)
	}
	tc.awaitOtherLeader(heir, l)
	tc.eventually("the new leader's epoch is committed", func() bool {
		return slices.ContainsFunc(tc.others(l), func(m *testNode) bool {
			c, err := node.StateOf(m.e, "t", 0)
			return err == nil && c.Serves
		})
	})
	return heir
}

// awaitOtherLeader waits until m sends what it is to publish in "t" to another node than l. It learns of the row first,
// and of the leader a moment later.
func (tc *testCluster) awaitOtherLeader(m, l *testNode) {
	tc.t.Helper()
	tc.eventually("another leads", func() bool { return node.LeaderOf(m.e, "t", 0) != l.e.Node().ID })
}

// What a cut takes from a copy is kept: all of its messages, in order, with what tells where they were. It survives a
// power cut and the deletion of the topic, and ends when its time is over.
func TestClusterCutKeepsWhatItTakes(t *testing.T) {
	t.Parallel()
	said := new(logged)
	tc, h := newCommonCluster(t, func(o *node.Options) { o.Logger = said.logger() })
	lost := numbered("lost", 50, 300)
	l, heir, heal := tc.deposeWithTail(lost...)
	epoch := heir.row("t", 0).State.Epoch
	heal()
	for i := range 5 {
		if err := h.publish(t.Context(), tc.topic(heir, "t"), fmt.Sprint("kept", i)); err != nil {
			t.Fatal(err)
		}
	}
	tc.awaitInSync("t")
	tc.checkCopies(h, "t", 1)
	e := l.oneAside(t, lost)
	if e.FromID != 1 || e.NextID != 51 || e.Messages != 50 || e.Lost() != 0 || e.Topic != "t" || e.Node != l.name ||
		e.Reason != aside.ReasonCut || e.LeaderEpoch < epoch || e.Committed > e.From || e.FirstTime.IsZero() {
		t.Errorf("it says %+v", e.Cut)
	}
	if s := l.e.Storage(); s.AsideCuts != 1 || s.AsideMessages != 50 || s.AsideBytes != e.Bytes {
		t.Errorf("the node counts %d, %d, %d", s.AsideCuts, s.AsideMessages, s.AsideBytes)
	}
	if v := l.e.Verdict(); !v.Healthy || !strings.Contains(v.Health, "50 messages that cuts took are kept aside") {
		t.Errorf("the node says %q", v.Health)
	}
	if n := strings.Count(said.String(), "a cut takes messages from a copy"); n != 1 {
		t.Errorf("%d lines say so", n)
	}
	node.SweepAside(l.e)
	tc.crash(l)
	tc.start(l)
	tc.awaitInSync("t")
	l.oneAside(t, lost)
	if err := heir.store.DeleteTopic(t.Context(), heir.row("t", 0).ID.Topic); err != nil {
		t.Fatal(err)
	}
	tc.eventually("the topic is gone", func() bool { _, ok := l.e.Catalog().LookupTopic("t"); return !ok })
	node.SweepAside(l.e)
	l.oneAside(t, lost)
}

// A cut that takes no message keeps nothing: each change of leaders can take the batch that begins an epoch.
func TestClusterCutOfNoMessagesKeepsNothing(t *testing.T) {
	t.Parallel()
	tc, _ := newCommonCluster(t)
	l := tc.leader("t", 0)
	tc.awaitEqualCopies("t", 0)
	before := node.EndOf(l.e, "t", 0)
	tc.network.isolate(l.name, true)
	if err := node.AppendChannel(l.e, "t", 0, "c"); err != nil {
		t.Fatal(err)
	}
	tc.eventually("a control batch is appended", func() bool { return node.EndOf(l.e, "t", 0).Next > before.Next })
	tc.kv.Cut(l.client)
	tc.depose(l)
	tc.network.isolate(l.name, false)
	tc.kv.Heal(l.client)
	tc.awaitInSync("t")
	tc.awaitEqualCopies("t", 0)
	if s := l.e.Storage(); s.AsideCuts != 0 {
		t.Errorf("%d cuts are kept", s.AsideCuts)
	}
	if _, err := l.disk.ReadDir(aside.Dir); err == nil {
		t.Error("there is a directory")
	}
}

// The record of a cut is not written before what it takes is kept durably. The power is cut at each step of keeping:
// the copy has everything afterwards, the cut is made again, and what it takes is there once.
func TestClusterCutWaitsForWhatItKeeps(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]faultaio.Rule{
		"a directory": {Kind: faultaio.KindMkdir, Name: path.Join(aside.Dir, "*")},
		"a file":      {Kind: faultaio.KindCreate, Name: path.Join(aside.Dir, "*", aside.BatchesFile)},
		"the batches": {Kind: faultaio.KindSync, Name: path.Join(aside.Dir, "*", aside.BatchesFile)},
		"what it is":  {Kind: faultaio.KindRename, Name: path.Join(aside.Dir, "*", aside.CutFile+"*")},
		"the names":   {Kind: faultaio.KindSyncDir, Name: path.Join(aside.Dir, "*")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc, h := newCommonCluster(t)
			lost := numbered("lost", 20, 100)
			l, heir, heal := tc.deposeWithTail(lost...)
			tail, disk := node.EndOf(l.e, "t", 0), l.disk
			rule.Hold = true
			disk.Inject(rule)
			t.Cleanup(disk.ReleaseHeld) // a node that closes waits for it
			heal()
			for i := range 5 {
				if err := h.publish(t.Context(), tc.topic(heir, "t"), fmt.Sprint("kept", i)); err != nil {
					t.Fatal(err)
				}
			}
			tc.eventually("it keeps what it cuts", func() bool { return disk.Blocked() > 0 })
			if got := node.EndOf(l.e, "t", 0); got != tail {
				t.Errorf("the log ends at %+v, and before the cut at %+v", got, tail)
			}
			tc.crash(l)
			tc.start(l)
			tc.awaitInSync("t")
			tc.checkCopies(h, "t", 1)
			l.oneAside(t, lost)
			if got, err := l.disk.ReadDir(aside.Dir); err != nil || len(got) != 1 {
				t.Errorf("there are %d directories: %v", len(got), err)
			}
		})
	}
}

// While the disk is full, or the process has too many files open, a cut waits.
func TestClusterCutWaitsForRoom(t *testing.T) {
	t.Parallel()
	for _, why := range []error{syscall.ENOSPC, syscall.EMFILE, syscall.ENOMEM} {
		t.Run(why.Error(), func(t *testing.T) {
			t.Parallel()
			tc, h := newCommonCluster(t)
			lost := numbered("lost", 20, 100)
			l, heir, heal := tc.deposeWithTail(lost...)
			l.disk.Inject(faultaio.Rule{Kind: faultaio.KindCreate, Name: path.Join(aside.Dir, "*", "*"), Err: why, Count: 2})
			heal()
			if err := h.publish(t.Context(), tc.topic(heir, "t"), "kept"); err != nil {
				t.Fatal(err)
			}
			tc.awaitInSync("t")
			tc.checkCopies(h, "t", 1)
			l.oneAside(t, lost)
		})
	}
}

// The files of a cut wait, too, while the process has too many files open: nothing has failed.
func TestClusterCutOfFilesWaits(t *testing.T) {
	t.Parallel()
	tc, h := newCommonCluster(t)
	l, heir, heal := tc.deposeWithTail("lost")
	round, dir := 0, path.Join(node.TopicDir(l.e, "t"), "0")
	tc.eventually("there are segments", func() bool {
		round++
		lost := numbered(fmt.Sprint("lost", round, "/"), 100, 400)
		if _, err := submit(tc.topic(l, "t"), time.Time{}, lost...); err != nil {
			t.Fatal(err)
		}
		files, _ := l.disk.ReadDir(dir) // none: nothing was flushed yet
		return len(files) > 4
	})
	l.disk.Inject(faultaio.Rule{Kind: faultaio.KindSyncDir, Name: dir, Err: syscall.EMFILE, Count: 5})
	heal()
	if err := h.publish(t.Context(), tc.topic(heir, "t"), "kept"); err != nil {
		t.Fatal(err)
	}
	tc.awaitInSync("t")
	tc.awaitEqualCopies("t", 0)
	if s := l.e.Storage(); s.Dropped != 0 || l.e.Health() != nil {
		t.Errorf("%d copies were dropped; health: %v", s.Dropped, l.e.Health())
	}
}

// A copy that is damaged beyond repair in place begins anew. What it has is kept as far as it can be read, until the
// copy has it again and it is committed.
func TestClusterCopyBegunAnewKeepsUntilItIsBack(t *testing.T) {
	t.Parallel()
	said := new(logged)
	tc := newTestCluster(t, 3, func(o *node.Options) { o.Logger = said.logger() })
	tc.create("t", 1)
	h := newAckLog()
	l := tc.leader("t", 0)
	tc.publishMany(h, l, "t", "m", 6000, 400)
	tc.awaitEqualCopies("t", 0)
	x := tc.others(l)[0]
	dir := path.Join(node.TopicDir(x.e, "t"), "0")
	tc.stop(x)
	first := slices.Min(slices.Collect(maps.Keys(segmentBytes(t, x.disk, dir))))
	if !x.disk.Corrupt(path.Join(dir, first), []byte("rotten"), segment.SegmentHeaderBytes/64) {
		t.Fatal("the segment is gone")
	}
	tc.start(x)
	tc.eventually("the copy is dropped", func() bool { return x.e.Storage().Dropped == 1 })
	tc.awaitInSync("t")
	tc.eventually("the copy has it again", func() bool {
		node.SweepAside(x.e)
		s := x.e.Storage()
		return s.AsideCuts == 0 && s.AsideBytes == 0
	})
	for _, line := range []string{"Only some could be kept aside", "is not kept aside any longer"} {
		if !strings.Contains(said.String(), line) {
			t.Errorf("no line says %q", line)
		}
	}
	tc.awaitEqualCopies("t", 0)
}
