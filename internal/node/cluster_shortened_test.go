package node_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"penstock/clog"
	"penstock/internal/cluster/kv"
	"penstock/internal/node"
	"penstock/segment"
	"penstock/tests/support/faultaio"
)

// lastGroup returns the last group of a commit log that is not a mark; rest says whether a mark follows it.
func lastGroup(t *testing.T, d *faultaio.Disk) (file string, g clog.GroupInfo, rest bool) {
	t.Helper()
	err := clog.Scan(d, func(f clog.FileInfo, info clog.GroupInfo, _ []clog.RecordInfo) error {
		if rest = info.Records == 0; !rest {
			file, g = f.Name, info
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return file, g, rest
}

// rests says whether the commit log ends with a mark. While the log still works on its files, it does not.
func rests(d *faultaio.Disk) (rest bool) {
	err := clog.Scan(d, func(_ clog.FileInfo, info clog.GroupInfo, _ []clog.RecordInfo) error {
		rest = info.Records == 0
		return nil
	})
	return rest && err == nil
}

// flipBit changes one bit of a file.
func flipBit(t *testing.T, d *faultaio.Disk, file string, off int64, bit int) {
	t.Helper()
	p, err := d.ReadFile(file, 1<<30)
	if err != nil || !d.Corrupt(file, []byte{p[off] ^ 1<<bit}, off) {
		t.Fatalf("%s at %d: %v", file, off, err)
	}
}

// killAll ends all processes at a moment without writes. Then the disks become what they were before the end: they lack
// the last writes, such as the mark of a clean stop.
func (tc *testCluster) killAll() {
	left := map[*testNode]*faultaio.Disk{}
	for _, m := range tc.nodes {
		left[m] = m.disk.Kill(m.seed)
		tc.kv.Cut(m.client) // no ISR changes while they die one after the other
	}
	for _, m := range tc.nodes {
		tc.network.kill(m.name)
		m.disk.CrashAt(m.disk.Ops())
	}
	var wg sync.WaitGroup
	for _, m := range tc.nodes {
		wg.Go(func() { tc.kill(m) })
	}
	wg.Wait()
	for m, d := range left {
		m.disk = d
	}
	// The leases end, too, so that the first node that starts does not wait for the others.
	var gone []kv.Op
	entries, _ := tc.kv.Entries()
	for _, e := range entries {
		if e.Lease != 0 {
			gone = append(gone, kv.Op{Key: e.Key, Delete: true})
		}
	}
	end := tc.kv.Store("the end of leases")
	if ok, _, err := end.Txn(context.Background(), nil, gone); !ok || err != nil || len(gone) < len(tc.nodes) {
		tc.t.Fatal(len(gone), ok, err)
	}
}

// All nodes end in the moment after an OK. When they come back, one bit of the last group of one copy has changed,
// which looks like a torn write there; that node starts first and is elected. Every acknowledged message remains on all
// nodes.
func TestClusterShortenedLogYields(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, func(o *node.Options) { node.SetMarkAfter(o, time.Hour) })
	tc.create("t", 1)
	h := newAckLog()
	yielded := uint64(0)
	for round := range 10 {
		topic := tc.topic(tc.leader("t", 0), "t")
		for i := range 5 {
			if err := h.publish(context.Background(), topic, fmt.Sprintf("message %d of round %d", i, round)); err != nil {
				t.Fatal(err)
			}
		}
		tc.awaitEqualCopies("t", 0)
		x := tc.nodes[round%3]
		tc.killAll()
		file, g, rest := lastGroup(t, x.disk)
		if rest {
			t.Fatal("there is a mark")
		}
		// The bits are in the header, the record header, the batch header and the body: all over the group.
		flipBit(t, x.disk, file, g.Offset+int64(round*23), round%8)
		tc.start(x)
		if n := x.e.Storage().TornGroups; n != 1 {
			t.Fatalf("round %d: %d torn groups", round, n)
		}
		tc.eventually("the shortened copy is elected", func() bool { return node.Leads(x.e, "t", 0) })
		tc.startAll()
		tc.awaitHeld(h, tc.nodes)
		yielded += x.e.Storage().Yielded
		tc.eventually("the copy is whole", func() bool { return x.e.Storage().Shortened == 0 })
	}
	if yielded < 10 {
		t.Errorf("a shortened copy gave its leadership away %d times in 10 rounds", yielded)
	}
	tc.checkCopies(h, "t", 1)
}

// A copy that recovery shortened, and whose process ends again before the copy is whole, is still a shortened copy,
// although the group is not at the end of its log any more.
func TestClusterShortenedLogIsRemembered(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, func(o *node.Options) { node.SetMarkAfter(o, time.Hour) })
	tc.create("t", 1)
	h := newAckLog()
	tc.publishReplicated(h, 5)
	x := tc.leader("t", 0)
	tc.killAll()
	file, g, _ := lastGroup(t, x.disk)
	flipBit(t, x.disk, file, g.Offset+100, 3)
	tc.staysShortened(h, x, func() {})
}

// A copy may have no other batches than those of the group that recovery cut. Here the node had got an empty disk, and
// the whole log had come at once. Then recovery does not know of the copy, while the store counts it as in sync. The
// copy compares itself with others like any other shortened copy, even in a later process than the one that cut it, and
// makes no other copy cut its log to nothing.
func TestClusterShortenedLogOfOneGroup(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, func(o *node.Options) { node.SetMarkAfter(o, time.Hour) })
	tc.create("t", 1)
	h := newAckLog()
	tc.publishReplicated(h, 5)
	x := tc.others(tc.leader("t", 0))[0]
	var file string
	var g clog.GroupInfo
	// These are the beginning of the epoch and the messages; a busy machine may receive them in two pieces.
	for try := 0; g.Records < 6; try++ {
		if try == 10 {
			t.Fatalf("the last group has %d records", g.Records)
		}
		tc.kill(x)
		tc.wipe(x)
		tc.start(x)
		tc.awaitHeld(h, tc.nodes)
		tc.awaitInSync("t")
		file, g, _ = lastGroup(t, x.disk)
	}
	tc.killAll()
	flipBit(t, x.disk, file, g.Offset+100, 3)
	tc.openWithoutStore(x)
	tc.staysShortened(h, x, func() {
		tc.eventually("the copy is there", func() bool { return node.Leads(x.e, "t", 0) })
	})
	tc.eventually("the copy is whole", func() bool { return x.e.Storage().Shortened == 0 })
}

// staysShortened starts x, which is down like all nodes, three times, and kills it twice. Its one copy is shortened
// each time, once await has returned. With the others, nothing is lost.
func (tc *testCluster) staysShortened(h *ackLog, x *testNode, await func()) {
	tc.t.Helper()
	for life := range 3 {
		if life > 0 {
			tc.kill(x)
		}
		tc.start(x)
		await()
		if s := x.e.Storage(); s.Shortened != 1 {
			tc.t.Fatalf("life %d: %d copies are shortened", life, s.Shortened)
		}
	}
	tc.startAll()
	tc.awaitHeld(h, tc.nodes)
	tc.checkCopies(h, "t", 1)
}

// openWithoutStore starts a node that is down and cannot reach the store: it recovers its directory, and fails to join.
func (tc *testCluster) openWithoutStore(m *testNode) {
	tc.t.Helper()
	tc.kv.Cut(fmt.Sprintf("%s.%d", m.name, m.life+1))
	before := tc.change
	tc.change = append(slices.Clone(before), func(o *node.Options) { o.Cluster.JoinTimeout = 50 * time.Millisecond })
	if _, err := tc.open(m); err == nil {
		tc.t.Fatalf("%s has joined", m.name)
	}
	tc.change = before
	tc.network.kill(m.name)
	m.seed++
	m.disk = m.disk.Kill(m.seed)
}

// After a pause the last group is marked as durable. So the node with the changed bit knows that its log is damaged,
// and the other nodes go on with all messages.
func TestClusterRottenAfterRest(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	h := newAckLog()
	tc.publishReplicated(h, 5)
	x := tc.leader("t", 0)
	tc.eventually("the log rests", func() bool { return rests(x.disk) })
	tc.killAll()
	file, g, _ := lastGroup(t, x.disk)
	flipBit(t, x.disk, file, g.Offset+150, 5)
	tc.start(x)
	if err := x.e.Health(); !errors.As(err, new(*segment.CorruptError)) {
		t.Errorf("Health says %v", err)
	}
	for _, m := range tc.nodes {
		if m != x {
			tc.start(m)
		}
	}
	tc.awaitHeld(h, tc.others(x))
}

// A single node has no other copy to ask. After a pause it knows that the last group is damaged, and drops nothing
// silently.
func TestRottenAfterRest(t *testing.T) {
	for _, off := range []int64{9, 57, 70, 150, 190} {
		disk := newDisk()
		e := openOnDisk(t, disk)
		topic := topicOf(t, e, "t")
		publish(t, topic, numbered("m", 10, 100)...)
		eventually(t, "the log rests", func() bool { return rests(disk) })
		disk.CrashAt(disk.Ops())
		_ = e.Close()
		disk = disk.Kill(1)
		file, g, _ := lastGroup(t, disk)
		flipBit(t, disk, file, g.Offset+off, int(off%8))
		e = openOnDisk(t, disk)
		var corrupt *segment.CorruptError
		if err := e.Health(); !errors.As(err, &corrupt) || corrupt.Path != file {
			t.Errorf("byte %d: Health says %v", off, err)
		}
		if _, err := e.CreateTopic(context.Background(), "u", 1); err == nil {
			if u, ok := e.Catalog().LookupTopic("u"); ok {
				if _, err := u.PublishMessage(context.Background(), node.Outgoing{Body: []byte("x")}); err == nil {
					t.Errorf("byte %d: a damaged log takes a message", off)
				}
			}
		}
		_ = e.Close()
	}
}
