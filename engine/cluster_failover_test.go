package engine_test

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/engine"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/segment/aio/faultaio"
)

// duringFailover are the answers that a producer may get while its partition has no leader, or its node dies.
func duringFailover(err error) bool {
	for _, may := range []error{
		engine.ErrUnknown, engine.ErrNoLeader, engine.ErrDisk, engine.ErrClosed, engine.ErrNoQuorum,
	} {
		if errors.Is(err, may) {
			return true
		}
	}
	return false
}

// The leader dies again and again, by kill -9 or by power cut, and comes back at once; producers on all nodes go on.
// Nothing that was acknowledged is lost, and every write ends.
//
// B17, B79, B81, B84, C7.
func TestClusterLeaderDies(t *testing.T) {
	t.Parallel()
	tr := newTrio(t, 3)
	tr.create("t", 2)
	h := newTold()
	for round := range 4 {
		stop := tr.loadAll(h, tr.nodes, "t", fmt.Sprint(round), duringFailover)
		tr.goesOn(h, 150)
		l := tr.leader("t", round%2)
		if round%2 == 0 {
			tr.kill(l)
		} else {
			tr.crash(l)
		}
		if round < 2 {
			tr.start(l)
			tr.whole("t")
		} else { // two of three go on alone for a while
			tr.goesOn(h, 100)
			tr.start(l)
			tr.whole("t")
		}
		stop()
	}
	tr.checkAll(h, "t", 2)
}

// The power of all nodes goes at once.
//
// B16, B17.
func TestClusterAllDie(t *testing.T) {
	t.Parallel()
	tr := newTrio(t, 3)
	tr.create("t", 3)
	h := newTold()
	for round := range 3 {
		stop := tr.loadAll(h, tr.nodes, "t", fmt.Sprint(round), duringFailover)
		tr.goesOn(h, 100)
		var wg sync.WaitGroup
		for _, m := range tr.nodes {
			tr.wires.kill(m.name)
			m.disk.CrashAt(m.disk.Ops())
		}
		for _, m := range tr.nodes {
			wg.Go(func() { tr.crash(m) })
		}
		wg.Wait()
		stop()
		tr.startAll()
		tr.whole("t")
	}
	tr.checkAll(h, "t", 3)
}

// After an orderly end of all nodes their segment files are the same, byte by byte, and what was stored is there again.
//
// B1, B79, B94.
func TestClusterSegments(t *testing.T) {
	t.Parallel()
	tr := newTrio(t, 3)
	tr.create("t", 1)
	h := newTold()
	stop := tr.load(h, tr.nodes[0], "t", "p", never)
	tr.eventually("several segments are full", func() bool {
		c, _ := engine.CopyOf(tr.nodes[0].e, "t", 0)
		return c.Segments > 3
	})
	stop()
	tr.equal("t", 0)
	dir := path.Join(engine.TopicDir(tr.nodes[0].e, "t"), "0")
	var wg sync.WaitGroup
	for _, m := range tr.nodes {
		tr.kv.Cut(m.client) // no leadership is handed over: that would write more
	}
	for _, m := range tr.nodes {
		wg.Go(func() {
			_ = m.e.Close()
			m.e, m.disk = nil, m.disk.Kill(1)
		})
	}
	wg.Wait()
	var first map[string]string
	for _, m := range tr.nodes {
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
	tr.startAll()
	tr.whole("t")
	tr.checkAll(h, "t", 1)
}

// segmentBytes are the segments in a directory, by name.
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

// Each node is stopped in order and started again while producers on the others go on: not one write fails, and
// consumers get everything.
//
// B80.
func TestClusterRolling(t *testing.T) {
	t.Parallel()
	tr := newTrio(t, 3)
	tr.create("t", 3)
	h := newTold()
	for _, m := range tr.nodes {
		stop := tr.loadAll(h, tr.others(m), "t", m.name, never)
		stopOwn := tr.load(h, m, "t", m.name, func(err error) bool {
			return errors.Is(err, engine.ErrClosed) || errors.Is(err, engine.ErrUnknown) // its own node is closed
		})
		tr.goesOn(h, 100)
		tr.stop(m)
		tr.goesOn(h, 100)
		tr.start(m)
		tr.whole("t")
		stop()
		stopOwn()
	}
	tr.checkAll(h, "t", 3)
}

// A leader that is cut off stops before another begins: no answer, no delivery, no confirmation after the end of its
// lease.
//
// B4, B83, B84.
func TestClusterLease(t *testing.T) {
	t.Parallel()
	tr := prepareTrio(t, 3, impatient, func(o *engine.Options) { o.Cluster.Replication.LagMaxNs = 300e6 })
	tr.store.LeaseTTL = 1500 * time.Millisecond
	tr.startAll()
	tr.create("t", 1)
	h := newTold()
	l := tr.leader("t", 0)
	other := tr.others(l)[0]
	for i := range 4 {
		if err := h.publish(t.Context(), tr.topic(l, "t"), fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	c := tr.channel("t", "c")
	s := sit(t, c, 1)
	first := s.next()
	tr.equal("t", 0)
	tr.kv.Cut(l.client)
	tr.wires.isolate(l.name, true)
	tr.eventually("the lease of the one that is cut off ends", func() bool {
		c, _ := engine.CopyOf(l.e, "t", 0)
		return !c.Serves
	})
	if row := other.row("t", 0); row.State.Leader != l.e.Node().ID {
		t.Error("another led before the lease had ended")
	}
	if err := s.Finish(first.id); !errors.Is(err, engine.ErrNotInFlight) {
		t.Errorf("a FIN after the lease: %v", err)
	}
	_ = s.Ready(10)
	s.Pump()
	s.none("after the lease")
	if err := h.publish(t.Context(), tr.topic(l, "t"), "after the lease"); !errors.Is(err, engine.ErrNoLeader) {
		t.Errorf("a publish after the lease: %v", err)
	}
	tr.eventually("another leads", func() bool { return other.row("t", 0).State.Leader != l.e.Node().ID })
	heir := other
	if other.row("t", 0).State.Leader != other.e.Node().ID {
		heir = tr.others(l)[1]
	}
	tr.eventually("writes go on", func() bool {
		return h.publish(t.Context(), tr.topic(heir, "t"), fmt.Sprint("new ", len(h.batches))) == nil
	})
	tr.wires.isolate(l.name, false)
	tr.kv.Heal(l.client)
	tr.whole("t")
	tr.checkAll(h, "t", 1)
	got := readAll(t, tr.channel("t", "c"))
	if len(got) != len(h.acked) {
		t.Errorf("%d of %d messages came after the failover: the FIN that was refused must not count", len(got), len(h.acked))
	}
}

// A node that cannot reach the store, but all its followers, gives up when its lease ends. What waited there goes to
// the new leader, although the old one does not know who that is.
//
// B83.
func TestClusterStoreLost(t *testing.T) {
	t.Parallel()
	tr := prepareTrio(t, 3)
	tr.store.LeaseTTL = time.Second
	tr.startAll()
	tr.create("t", 1)
	h := newTold()
	l := tr.leader("t", 0)
	other := tr.others(l)[0]
	stop := tr.load(h, other, "t", "p", func(err error) bool { return errors.Is(err, engine.ErrUnknown) })
	defer stop()
	tr.eventually("writes go on", func() bool { return h.count() > 50 })
	tr.kv.Cut(l.client)
	tr.eventually("another leads", func() bool { return other.row("t", 0).State.Leader != l.e.Node().ID })
	tr.goesOn(h, 50)
	tr.kv.Heal(l.client)
	tr.whole("t")
	stop()
	tr.checkAll(h, "t", 1)
}

// The leader dies with puts of another node's producers in flight: each is unknown, not refused and not OK. They were
// with the followers, so they are there in the end.
//
// B19, B84.
func TestClusterForwardsLost(t *testing.T) {
	t.Parallel()
	tr := newTrio(t, 3)
	tr.create("t", 1)
	h := newTold()
	l := tr.leader("t", 0)
	from := tr.others(l)[0]
	if err := h.publish(t.Context(), tr.topic(from, "t"), "first"); err != nil {
		t.Fatal(err)
	}
	tr.wires.rules(func(_, _ string, kind netproto.Type) int {
		if kind == netproto.TypePutAck {
			return 0
		}
		return 1
	})
	var flying []chan result
	for i := range 10 {
		body := fmt.Sprint("flying", i)
		done, err := submit(tr.topic(from, "t"), time.Time{}, body)
		if err != nil {
			t.Fatal(err)
		}
		h.tried[body] = true
		flying = append(flying, done)
	}
	tr.eventually("the follower has the first of them", func() bool {
		c, _ := engine.CopyOf(from.e, "t", 0)
		return c.NextID > 1
	})
	tr.kill(l)
	tr.wires.rules(nil)
	for i, done := range flying {
		if r := answer(t, done); !errors.Is(r.err, engine.ErrUnknown) {
			t.Errorf("put %d: %v", i, r.err)
		}
	}
	if err := h.publish(t.Context(), tr.topic(from, "t"), "last"); err != nil {
		t.Error(err)
	}
	tr.start(l)
	tr.whole("t")
	tr.checkAll(h, "t", 1)
	c := tr.equal("t", 0)
	all, _ := c.Messages(0)
	if len(all) < 3 {
		t.Errorf("of what the followers had and the leader did not answer %d are there", len(all)-2)
	}
}

// Puts that one producer sends without waiting, through any node, are stored in the order in which they were sent.
//
// B15, C7.
func TestClusterOrder(t *testing.T) {
	t.Parallel()
	tr := newTrio(t, 3)
	tr.create("t", 1)
	h := newTold()
	var all []chan result
	for i := range 300 {
		for _, m := range tr.nodes {
			body := fmt.Sprintf("%s/%04d", m.name, i)
			done, err := submit(tr.topic(m, "t"), time.Time{}, body)
			if err != nil {
				t.Fatal(err)
			}
			h.tried[body] = true
			all = append(all, done)
		}
	}
	last := map[int]engine.ID{}
	for i, done := range all {
		r := answer(t, done)
		if r.err != nil {
			t.Fatal(r.err)
		}
		if p := i % 3; i >= 3 && r.id <= last[p] {
			t.Fatalf("%s: message %d has id %s, the one before %s", tr.nodes[p].name, i/3, r.id, last[p])
		}
		last[i%3] = r.id
	}
	tr.checkAll(h, "t", 1)
}

// A node that comes back with an empty disk is nobody until it has everything again; while it has not, it does not
// lead.
//
// B79, B82; P10.
func TestClusterWiped(t *testing.T) {
	t.Parallel()
	tr := newTrio(t, 3, impatient)
	tr.create("t", 1)
	h := newTold()
	l := tr.leader("t", 0)
	for i := range 50 {
		if err := h.publish(t.Context(), tr.topic(l, "t"), fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	tr.equal("t", 0)
	empty := tr.others(l)[0]
	for _, m := range tr.nodes {
		tr.crash(m)
	}
	tr.wipe(empty)
	tr.start(empty)
	if err := h.publish(t.Context(), tr.topic(empty, "t"), "to an empty disk"); !errors.Is(err, engine.ErrNoLeader) {
		t.Errorf("only a node with an empty disk is up, and a publish says: %v", err)
	}
	tr.startAll()
	onNewDisk := func(m replicate.Member) bool { return m.Store == empty.e.Node().Store }
	tr.eventually("the new disk is in the ISR", func() bool { // until the old one is removed, the ISR looks whole
		return slices.ContainsFunc(tr.leader("t", 0).row("t", 0).State.ISR, onNewDisk)
	})
	tr.whole("t")
	tr.checkAll(h, "t", 1)
}
