package node_test

import (
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"

	"penstock/internal/node"
	"penstock/tests/support/faultaio"
)

// The device of a single node cannot read a segment for a while. When it can, the messages there are served again
// without a restart, and that is logged once.
func TestReadsAreTriedAgain(t *testing.T) {
	disk, ids := closedDirectory(t, 300)
	var log logged
	e := openOnDisk(t, disk, scrubsOften, func(o *node.Options) { o.Logger = log.logger() })
	files := segmentFiles(t, disk, "bad")
	disk.Inject(faultaio.Rule{Kind: faultaio.KindRead, Name: files[len(files)/2], Count: -1, Err: syscall.EIO})
	k := subscribe(t, channelOf(t, topicOf(t, e, "bad"), "c"), 500)
	got := map[node.ID]bool{}
	take := func() {
		for m, ok := k.poll(0); ok; m, ok = k.poll(0) {
			got[m.id] = true
			k.finish(m)
		}
	}
	eventually(t, "the channel stops there", func() bool {
		take()
		return e.Health() != nil && strings.Contains(log.String(), "a channel stops reading")
	})
	if len(got) == len(ids) {
		t.Fatal("nothing was to be read there")
	}
	disk.ClearRules()
	eventually(t, "all messages come", func() bool {
		take()
		return len(got) == len(ids)
	})
	eventually(t, "nothing is damaged any more", func() bool { return e.Health() == nil })
	eventually(t, "each range is told once", func() bool { // it is counted, and then told
		n := strings.Count(log.String(), "read back again")
		return n > 0 && uint64(n) == e.Storage().ReadsRecovered
	})
}

// The same for the only replica of a partition in a cluster: no other node can repair it.
func TestReadsOfASingleReplicaAreTriedAgain(t *testing.T) {
	t.Parallel()
	tc, h := newTestCluster(t, 3, scrubsOften, func(o *node.Options) { o.Cluster.Replicas = 1 }), newAckLog()
	tc.create("t", 1)
	tc.channel("t", "c")
	l := tc.leader("t", 0)
	tc.publishMany(h, l, "t", "m", 2000, 800)
	dir := path.Join(node.TopicDir(l.e, "t"), "0")
	tc.stop(l)
	names := slices.Sorted(maps.Keys(segmentBytes(t, l.disk, dir)))
	if len(names) < 3 {
		t.Fatalf("%d segments", len(names))
	}
	l.disk.Inject(faultaio.Rule{Kind: faultaio.KindRead, Name: path.Join(dir, names[1]), Count: -1, Err: syscall.EIO})
	tc.start(l)
	tc.eventually("the scrub cannot read it", func() bool { return l.e.Storage().DamagedCopies > 0 })
	l.disk.ClearRules()
	k := subscribe(t, tc.channelAt(tc.leader("t", 0), "t", "c"), 500)
	got := map[string]bool{}
	tc.eventually("all messages come", func() bool {
		for m, ok := k.poll(0); ok; m, ok = k.poll(0) {
			got[m.body] = true
			k.finish(m)
		}
		return len(got) == 2000
	})
	tc.publishMany(h, tc.leader("t", 0), "t", "n", 20, 100)
}
