package node_test

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"syscall"
	"testing"

	"penstock/internal/node"
	"penstock/internal/node/aside"
	"penstock/tests/support/faultaio"
)

// stopBehindRetention makes a cluster with the topic "t", and stops a follower in good order. Then the leader's
// retention removes all that the follower has, so the follower must begin anew. oldest is the follower's oldest file.
func stopBehindRetention(t *testing.T) (tc *testCluster, back *testNode, oldest string) {
	t.Helper()
	tc = newTestCluster(t, 3, func(o *node.Options) { o.RetentionBytes = 200 << 10 })
	tc.create("t", 1)
	h := newAckLog()
	l := tc.leader("t", 0)
	c := tc.channel("t", "c")
	tc.publishMany(h, l, "t", "old", 30, 400)
	readAll(t, c)
	back = tc.others(l)[0]
	was := tc.awaitEqualCopies("t", 0)
	dir := path.Join(node.TopicDir(l.e, "t"), "0")
	tc.stop(back)
	if len(segmentBytes(t, back.disk, dir)) == 0 {
		t.Fatal("the stop has written no segment")
	}
	newer := newAckLog()
	for i := 0; ; i++ {
		tc.publishMany(newer, l, "t", fmt.Sprint("new", i), 200, 400)
		if c, _ := node.StateOf(l.e, "t", 0); c.Start > was.End {
			break
		} else if i == 50 {
			t.Fatalf("retention has removed up to %d, the follower ends at %d", c.Start, was.End)
		}
	}
	return tc, back, path.Join(dir, "0000000000.seg")
}

// awaitNothingLeft waits until a copy that began anew is in sync, and has no file of the log before.
func (tc *testCluster) awaitNothingLeft(m *testNode, oldest string) {
	tc.t.Helper()
	tc.awaitInSync("t")
	tc.eventually("nothing is left of the old log", func() bool {
		return !slices.Contains(m.segmentFiles(tc.t, "t"), path.Base(oldest))
	})
}

// A log that begins anew keeps no file of the log before, not even files that a restart did not list: an orderly stop
// writes segments of which the oldest checkpoint of the commit log does not know. Such a file would look like the
// beginning of a log with a gap.
//
// B74, B28.
func TestClusterFullSyncLeavesNothing(t *testing.T) {
	t.Parallel()
	tc, back, oldest := stopBehindRetention(t)
	tc.start(back)
	tc.awaitNothingLeft(back, oldest)
	if n := len(back.asides(t)); n != 0 {
		t.Errorf("%d cuts are kept, and retention removed all of that on purpose", n)
	}
}

// A deposed leader comes back when the next one's retention has gone beyond its end. The next leader never had what
// only the deposed one appended, so that is kept aside.
func TestClusterFullSyncKeepsWhatTheLeaderNeverHad(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, func(o *node.Options) { o.RetentionBytes = 200 << 10 })
	tc.create("t", 1)
	h := newAckLog()
	if err := h.publish(t.Context(), tc.topic(tc.leader("t", 0), "t"), "common"); err != nil {
		t.Fatal(err)
	}
	lost := numbered("lost", 50, 300)
	l, heir, heal := tc.deposeWithTail(lost...)
	was, _ := node.StateOf(l.e, "t", 0)
	newer := newAckLog()
	for i := 0; ; i++ {
		tc.publishMany(newer, heir, "t", fmt.Sprint("new", i), 200, 400)
		if c, _ := node.StateOf(heir.e, "t", 0); c.Start > was.End {
			break
		} else if i == 50 {
			t.Fatalf("retention has removed up to %d, the old leader ends at %d", c.Start, was.End)
		}
	}
	heal()
	tc.awaitInSync("t")
	// Retention has removed the epochs that the two logs shared, too, so nobody can tell that the leader had "common".
	e := l.oneAside(t, append([]string{"common"}, lost...))
	if e.Reason != aside.ReasonAnew || e.Messages != 51 || e.FromID != 0 || e.NextID != 51 {
		t.Errorf("it says %+v", e.Cut)
	}
}

// The power is cut when the record of a reset is durable, and before the old files are removed. The commit log has kept
// the record until then, however much other partitions have stored meanwhile, so the next start removes the old files.
//
// B28, B43.
func TestClusterFullSyncPowerCut(t *testing.T) {
	t.Parallel()
	tc, back, oldest := stopBehindRetention(t)
	tc.create("u", 1)
	f, err := back.disk.Open(oldest)
	if err == nil {
		err = errors.Join(f.Sync(), f.Close(), back.disk.SyncDir(path.Dir(oldest))) // so that the power cut leaves the file
	}
	if err != nil {
		t.Fatal(err)
	}
	back.disk.Inject(faultaio.Rule{Kind: faultaio.KindRename, Name: oldest, Hold: true, Err: syscall.EIO})
	t.Cleanup(back.disk.ReleaseHeld) // a node that closes waits for it
	tc.start(back)
	tc.eventually("an old file is being removed", func() bool { return back.disk.Blocked() > 0 })
	from := back.e.CommitStats().Current
	always := func(error) bool { return true } // the leadership may move meanwhile
	stop := tc.startProducer(newAckLog(), tc.leader("u", 0), "u", "meanwhile", always)
	defer stop()
	tc.eventually("the commit log is used again, or full", func() bool {
		s := back.e.CommitStats()
		return s.Full || s.Oldest > from
	})
	tc.crash(back)
	tc.start(back)
	stop()
	if found := back.e.Info().CorruptionsAtRecover; len(found) > 0 {
		t.Errorf("after the power cut: %q", found)
	}
	tc.awaitNothingLeft(back, oldest)
	if n := back.e.Storage().Dropped; n != 0 {
		t.Errorf("%d copies were dropped", n)
	}
}
