package node_test

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/tests/support/faultaio"
)

// duringFailover accepts the errors that a producer may get while its partition has no leader, or its node ends.
func duringFailover(err error) bool {
	for _, may := range []error{
		errs.ErrUnknown, errs.ErrNoLeader, errs.ErrDisk, errs.ErrClosed, errs.ErrNoQuorum,
	} {
		if errors.Is(err, may) {
			return true
		}
	}
	return false
}

// The leader ends again and again, by kill -9 or by a power cut, and comes back at once, while producers on all nodes
// go on. No acknowledged message is lost, and every put is answered.
//
// B17, B79, B81, B84, C7.
func TestClusterLeaderDies(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 2)
	h := newAckLog()
	for round := range 4 {
		stop := tc.startProducers(h, tc.nodes, "t", fmt.Sprint(round), duringFailover)
		tc.awaitMoreAcks(h, 150)
		l := tc.leader("t", round%2)
		if round%2 == 0 {
			tc.kill(l)
		} else {
			tc.crash(l)
		}
		if round < 2 {
			tc.start(l)
			tc.awaitInSync("t")
		} else { // two of three go on alone for a while
			tc.awaitMoreAcks(h, 100)
			tc.start(l)
			tc.awaitInSync("t")
		}
		stop()
	}
	tc.checkCopies(h, "t", 2)
}

// The power of all nodes is cut at the same time.
//
// B16, B17.
func TestClusterAllDie(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 3)
	h := newAckLog()
	for round := range 3 {
		stop := tc.startProducers(h, tc.nodes, "t", fmt.Sprint(round), duringFailover)
		tc.awaitMoreAcks(h, 100)
		var wg sync.WaitGroup
		for _, m := range tc.nodes {
			tc.network.kill(m.name)
			m.disk.CrashAt(m.disk.Ops())
		}
		for _, m := range tc.nodes {
			wg.Go(func() { tc.crash(m) })
		}
		wg.Wait()
		stop()
		tc.startAll()
		tc.awaitInSync("t")
	}
	tc.checkCopies(h, "t", 3)
}

// After an orderly stop of all nodes their segment files are equal byte by byte, and the next start has all stored
// messages.
//
// B1, B79, B94.
func TestClusterSegments(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	h := newAckLog()
	stop := tc.startProducer(h, tc.nodes[0], "t", "p", never)
	tc.eventually("several segments are full", func() bool {
		c, _ := node.StateOf(tc.nodes[0].e, "t", 0)
		return c.Segments > 3
	})
	stop()
	tc.awaitEqualCopies("t", 0)
	dir := path.Join(node.TopicDir(tc.nodes[0].e, "t"), "0")
	var wg sync.WaitGroup
	for _, m := range tc.nodes {
		tc.kv.Cut(m.client) // no leadership is handed over: that would write more
	}
	for _, m := range tc.nodes {
		wg.Go(func() {
			_ = m.e.Close()
			m.e, m.disk = nil, m.disk.Kill(1)
		})
	}
	wg.Wait()
	var first map[string]string
	for _, m := range tc.nodes {
		files := segmentBytes(t, m.disk, dir)
		if first == nil {
			first = files
		}
		if len(files) < 3 || len(files) != len(first) {
			t.Errorf("%s has %d segments, the first node %d", m.name, len(files), len(first))
		}
		for name, data := range files {
			if data != first[name] {
				t.Errorf("%s: %s differs", m.name, name)
			}
		}
	}
	tc.startAll()
	tc.awaitInSync("t")
	tc.checkCopies(h, "t", 1)
}

// segmentBytes returns the contents of the segments in a directory, by file name.
func segmentBytes(t *testing.T, d *faultaio.Disk, dir string) map[string]string {
	t.Helper()
	list, err := d.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, f := range list {
		if !strings.HasSuffix(f.Name(), ".seg") {
			continue
		}
		data, err := d.ReadFile(path.Join(dir, f.Name()), 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		files[f.Name()] = string(data)
	}
	return files
}

// Each node is stopped in order and started again while producers on the other nodes go on. Not one put fails, and
// consumers get every message.
//
// B80.
func TestClusterRolling(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 3)
	h := newAckLog()
	for _, m := range tc.nodes {
		stop := tc.startProducers(h, tc.others(m), "t", m.name, never)
		stopOwn := tc.startProducer(h, m, "t", m.name, func(err error) bool {
			return errors.Is(err, errs.ErrClosed) || errors.Is(err, errs.ErrUnknown) // its own node is closed
		})
		tc.awaitMoreAcks(h, 100)
		tc.stop(m)
		tc.awaitMoreAcks(h, 100)
		tc.start(m)
		tc.awaitInSync("t")
		stop()
		stopOwn()
	}
	tc.checkCopies(h, "t", 3)
}

// A leader that is cut off stops before another one begins: it answers, delivers and confirms nothing after the end of
// its lease.
//
// B4, B83, B84.
func TestClusterLease(t *testing.T) {
	t.Parallel()
	tc := prepareTestCluster(t, 3, impatient, func(o *node.Options) { o.Cluster.Replication.LagMaxNs = 300e6 })
	tc.store.LeaseTTL = 1500 * time.Millisecond
	tc.startAll()
	tc.create("t", 1)
	h := newAckLog()
	l := tc.leader("t", 0)
	other := tc.others(l)[0]
	for i := range 4 {
		if err := h.publish(t.Context(), tc.topic(l, "t"), fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	c := tc.channel("t", "c")
	s := subscribe(t, c, 1)
	first := s.next()
	tc.awaitEqualCopies("t", 0)
	tc.kv.Cut(l.client)
	tc.network.isolate(l.name, true)
	tc.eventually("the lease of the one that is cut off ends", func() bool {
		led := other.row("t", 0).State.Leader
		c, _ := node.StateOf(l.e, "t", 0)
		if c.Serves && led != l.e.Node().ID {
			t.Fatal("another leads before the lease has ended")
		}
		return !c.Serves
	})
	if err := s.Finish(first.id); !errors.Is(err, errs.ErrNotInFlight) {
		t.Errorf("a FIN after the lease: %v", err)
	}
	_ = s.Ready(10)
	s.Pump()
	s.expectNothing("after the lease")
	if err := h.publish(t.Context(), tc.topic(l, "t"), "after the lease"); !errors.Is(err, errs.ErrNoLeader) {
		t.Errorf("a publish after the lease: %v", err)
	}
	tc.awaitOtherLeader(other, l)
	heir := other
	if other.row("t", 0).State.Leader != other.e.Node().ID {
		heir = tc.others(l)[1]
	}
	tc.eventually("writes go on", func() bool {
		return h.publish(t.Context(), tc.topic(heir, "t"), fmt.Sprint("new ", len(h.batches))) == nil
	})
	tc.network.isolate(l.name, false)
	tc.kv.Heal(l.client)
	tc.awaitInSync("t")
	tc.checkCopies(h, "t", 1)
	stored := tc.awaitEqualCopies("t", 0) // perhaps with messages whose publisher got no answer
	all, err := stored.Messages(0)
	if err != nil {
		t.Fatal(err)
	}
	got := readAll(t, tc.channel("t", "c"))
	if len(got) != len(all) {
		t.Errorf("%d of %d messages came after the failover: the FIN that was refused must not count", len(got), len(all))
	}
}

// A leader that cannot reach the store, although it reaches all its followers, gives up when its lease ends. The puts
// that waited there go to the new leader, although the old one does not learn from the store which node that is.
//
// B83.
func TestClusterStoreLost(t *testing.T) {
	t.Parallel()
	tc := prepareTestCluster(t, 3)
	tc.store.LeaseTTL = time.Second
	tc.startAll()
	tc.create("t", 1)
	h := newAckLog()
	l := tc.leader("t", 0)
	other := tc.others(l)[0]
	stop := tc.startProducer(h, other, "t", "p", func(err error) bool { return errors.Is(err, errs.ErrUnknown) })
	defer stop()
	tc.eventually("writes go on", func() bool { return h.count() > 50 })
	tc.kv.Cut(l.client)
	tc.eventually("another leads", func() bool { return other.row("t", 0).State.Leader != l.e.Node().ID })
	tc.awaitMoreAcks(h, 50)
	tc.kv.Heal(l.client)
	tc.awaitInSync("t")
	stop()
	tc.checkCopies(h, "t", 1)
}

// The leader ends with puts of another node's producers in flight. Each of them gets ErrUnknown, neither a refusal nor
// OK. The followers had their batches, so the messages are stored in the end.
//
// B19, B84.
func TestClusterForwardsLost(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	h := newAckLog()
	l := tc.leader("t", 0)
	from := tc.others(l)[0]
	if err := h.publish(t.Context(), tc.topic(from, "t"), "first"); err != nil {
		t.Fatal(err)
	}
	tc.network.rules(func(_, _ string, kind netproto.Type) int {
		if kind == netproto.TypePutAck {
			return 0
		}
		return 1
	})
	var flying []chan result
	for i := range 10 {
		body := fmt.Sprint("flying", i)
		done, err := submit(tc.topic(from, "t"), time.Time{}, body)
		if err != nil {
			t.Fatal(err)
		}
		h.tried[body] = true
		flying = append(flying, done)
	}
	tc.eventually("the follower has the first of them", func() bool {
		c, _ := node.StateOf(from.e, "t", 0)
		return c.NextID > 1
	})
	tc.kill(l)
	tc.network.rules(nil)
	for i, done := range flying {
		if r := answer(t, done); !errors.Is(r.err, errs.ErrUnknown) {
			t.Errorf("put %d: %v", i, r.err)
		}
	}
	if err := h.publish(t.Context(), tc.topic(from, "t"), "last"); err != nil {
		t.Error(err)
	}
	tc.start(l)
	tc.awaitInSync("t")
	tc.checkCopies(h, "t", 1)
	c := tc.awaitEqualCopies("t", 0)
	all, _ := c.Messages(0)
	if len(all) < 3 {
		t.Errorf("of what the followers had and the leader did not answer %d are there", len(all)-2)
	}
}

// Puts that one producer submits without waiting, through any node, are stored in the order in which they were
// submitted.
//
// B15, C7.
func TestClusterOrder(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	h := newAckLog()
	var all []chan result
	for i := range 300 {
		for _, m := range tc.nodes {
			body := fmt.Sprintf("%s/%04d", m.name, i)
			done, err := submit(tc.topic(m, "t"), time.Time{}, body)
			if err != nil {
				t.Fatal(err)
			}
			h.tried[body] = true
			all = append(all, done)
		}
	}
	last := map[int]node.ID{}
	for i, done := range all {
		r := answer(t, done)
		if r.err != nil {
			t.Fatal(r.err)
		}
		if p := i % 3; i >= 3 && r.id <= last[p] {
			t.Fatalf("%s: message %d has id %s, the one before %s", tc.nodes[p].name, i/3, r.id, last[p])
		}
		last[i%3] = r.id
	}
	tc.checkCopies(h, "t", 1)
}

// A node that comes back with an empty disk is in no ISR until it has all batches again, and does not lead before.
//
// B79, B82; P10.
func TestClusterWiped(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, impatient)
	tc.create("t", 1)
	h := newAckLog()
	l := tc.leader("t", 0)
	for i := range 50 {
		if err := h.publish(t.Context(), tc.topic(l, "t"), fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	tc.awaitEqualCopies("t", 0)
	empty := tc.others(l)[0]
	for _, m := range tc.nodes {
		tc.crash(m)
	}
	tc.wipe(empty)
	tc.start(empty)
	if err := h.publish(t.Context(), tc.topic(empty, "t"), "to an empty disk"); !errors.Is(err, errs.ErrNoLeader) {
		t.Errorf("only a node with an empty disk is up, and a publish says: %v", err)
	}
	tc.startAll()
	onNewDisk := func(m replicate.Member) bool { return m.Store == empty.e.Node().Store }
	tc.eventually("the new disk is in the ISR", func() bool { // until the old one is removed, the ISR looks whole
		return slices.ContainsFunc(tc.leader("t", 0).row("t", 0).State.ISR, onNewDisk)
	})
	tc.awaitInSync("t")
	tc.checkCopies(h, "t", 1)
}
