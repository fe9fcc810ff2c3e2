package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"penstock/cluster"
	"penstock/cluster/kv/memory"
	"penstock/engine"
	"penstock/engine/meta"
	"penstock/replicate"
	"penstock/segment"
	"penstock/segment/aio/faultaio"
)

// trio is some engines in one process, on one metadata map: real TCP through wires, disks that can fail. Leases last so
// long that they never end unless the test wants it: a machine that is busy is not a dead node.
type trio struct {
	t      *testing.T
	kv     *memory.Map
	wires  *wires
	nodes  []*member
	change []func(*engine.Options)
	store  cluster.Options
}

// member is a node: its disk, and the process that runs on it, if any.
type member struct {
	name   string
	dir    string         // of a real disk; or
	disk   *faultaio.Disk // a simulated one
	seed   uint64
	life   int
	client string // of the metadata map
	store  meta.Store
	e      *engine.Engine
}

const longLease = time.Minute

// newTrio starts n nodes on simulated disks. change applies to each of them, at each start.
func newTrio(t *testing.T, n int, change ...func(*engine.Options)) *trio {
	t.Helper()
	tr := prepareTrio(t, n, change...)
	tr.startAll()
	return tr
}

func prepareTrio(t *testing.T, n int, change ...func(*engine.Options)) *trio {
	tr := &trio{t: t, kv: memory.New(memory.Options{}), wires: newWires(t), change: change}
	tr.store = cluster.Options{LeaseTTL: longLease, ControllerTick: 50 * time.Millisecond}
	for i := range n {
		tr.nodes = append(tr.nodes, &member{
			name: fmt.Sprintf("n%d", i+1), disk: faultaio.New(faultaio.Options{Seed: uint64(i)}),
		})
	}
	t.Cleanup(tr.end)
	return tr
}

func (tr *trio) end() {
	var wg sync.WaitGroup
	for _, m := range tr.nodes {
		if m.e != nil {
			wg.Go(func() { _ = m.e.Close() })
		}
	}
	wg.Wait()
	tr.wires.close()
	tr.kv.Close()
}

// startAll starts every node that is down, at once.
func (tr *trio) startAll() {
	tr.t.Helper()
	var wg sync.WaitGroup
	for _, m := range tr.nodes {
		if m.e == nil {
			wg.Go(func() { tr.start(m) })
		}
	}
	wg.Wait()
	if tr.t.Failed() {
		tr.t.FailNow()
	}
	for _, m := range tr.nodes {
		tr.eventually("all nodes are known", func() bool { return len(m.e.Snapshot().Nodes) >= len(tr.nodes) })
	}
}

func (tr *trio) options(m *member) engine.Options {
	o := smallOptions(nil)
	if m.dir != "" {
		o.DataPath = m.dir
	} else {
		o.Disk = m.disk
	}
	o.NodeID = m.name
	o.DiskPatience, o.DiskFailedAfter = longLease, longLease // a busy machine is no disk that hangs, either
	o.Logger = slog.New(slog.NewTextHandler(testWriter{tr.t, m.name}, nil))
	return o
}

// open is Open with the node's options; the caller keeps the engine.
func (tr *trio) open(m *member) (*engine.Engine, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address, err := tr.wires.open(m.name, ln.Addr().String())
	if err != nil {
		return nil, err
	}
	m.life++
	m.client = fmt.Sprintf("%s.%d", m.name, m.life)
	o := tr.options(m)
	store := tr.store
	store.Logger = o.Logger
	m.store = cluster.New(tr.kv.Store(m.client), store)
	o.Cluster = &engine.ClusterOptions{
		Store: m.store, Listener: ln,
		Node: meta.Node{Host: "127.0.0.1", Peer: address},
		// Half a minute before a follower is dropped for being slow: the machine may be.
		Replication:  replicate.Config{HeartbeatNs: 20e6, RetryNs: 100e6, LagMaxNs: 30e9, JoinNs: 200e6},
		LeaveTimeout: 200 * time.Millisecond, JoinTimeout: patience,
	}
	for _, f := range tr.change {
		f(&o)
	}
	return engine.Open(context.Background(), o)
}

func (tr *trio) start(m *member) {
	tr.t.Helper()
	e, err := tr.open(m)
	if err != nil {
		tr.t.Errorf("%s does not start: %v", m.name, err)
		return
	}
	m.e = e
}

// crash is a power cut: sockets die at once, nothing more reaches the disk, and what was not flushed may be lost.
func (tr *trio) crash(m *member) { tr.die(m, (*faultaio.Disk).Crash) }

// kill is kill -9: what was written stays, flushed or not.
func (tr *trio) kill(m *member) { tr.die(m, (*faultaio.Disk).Kill) }

func (tr *trio) die(m *member, left func(*faultaio.Disk, uint64) *faultaio.Disk) {
	tr.wires.kill(m.name)
	tr.kv.Cut(m.client)
	m.disk.CrashAt(m.disk.Ops())
	_ = m.e.Close() // it cannot reach anything any more
	m.e = nil
	m.seed++
	m.disk = left(m.disk, m.seed)
}

// stop is what an operator does: leaderships are handed over, everything is stored, the lease ends.
func (tr *trio) stop(m *member) {
	tr.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := m.e.Leave(ctx); err != nil {
		tr.t.Errorf("%s leaves: %v", m.name, err)
	}
	tr.wires.shut(m.name)
	if err := m.e.Close(); err != nil {
		tr.t.Errorf("%s closes: %v", m.name, err)
	}
	m.e = nil
	tr.wires.kill(m.name)
	if m.disk != nil {
		m.disk = m.disk.Kill(1) // the next process's view of it
	}
}

// wipe gives a node that is down an empty disk.
func (tr *trio) wipe(m *member) { m.disk = faultaio.New(faultaio.Options{Seed: 99}) }

type testWriter struct {
	t    *testing.T
	name string
}

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(w.name, string(bytes.TrimSpace(p)))
	return len(p), nil
}

func (tr *trio) eventually(what string, holds func() bool) {
	tr.t.Helper()
	eventually(tr.t, what, holds)
}

// up are the nodes that run.
func (tr *trio) up() (all []*member) {
	for _, m := range tr.nodes {
		if m.e != nil {
			all = append(all, m)
		}
	}
	return all
}

// topic is a topic as a node knows it; it is made if there is none.
func (tr *trio) topic(m *member, name string) *engine.Topic {
	tr.t.Helper()
	tr.eventually("the topic is known", func() bool {
		_, ok := m.e.LookupTopic(name)
		return ok
	})
	t, _ := m.e.LookupTopic(name)
	return t
}

// create makes a topic, and waits until all nodes know it and all replicas are in sync.
func (tr *trio) create(name string, partitions int) {
	tr.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	m := tr.up()[0]
	if _, err := m.e.CreateTopic(ctx, name, partitions); err != nil {
		tr.t.Fatal(err)
	}
	for _, m := range tr.up() {
		tr.topic(m, name)
	}
	tr.whole(name)
}

// row is what a node knows of a partition; nil if it knows nothing.
func (m *member) row(name string, n int) *meta.Partition {
	s := m.e.Snapshot()
	if t := s.Names[name]; t != nil {
		return s.Partitions[meta.PartitionID{Topic: t.ID, Partition: uint32(n)}]
	}
	return nil
}

// leader waits until a partition is served, and returns the node that does.
func (tr *trio) leader(name string, n int) *member {
	tr.t.Helper()
	var found *member
	tr.eventually(fmt.Sprintf("%s/%d has a leader that serves", name, n), func() bool {
		for _, m := range tr.up() {
			row := m.row(name, n)
			if row != nil && row.State.Leader == m.e.Node().ID && row.State.Boot == m.e.Node().Boot {
				c, err := engine.CopyOf(m.e, name, n)
				if err == nil && c.Serves {
					found = m
					return true
				}
			}
		}
		return false
	})
	return found
}

// leaders returns which partition each node leads of a topic of which every node leads one.
func (tr *trio) leaders(name string) map[*member]int {
	tr.t.Helper()
	all := map[*member]int{}
	for n := range tr.nodes {
		all[tr.leader(name, n)] = n
	}
	if len(all) != len(tr.nodes) {
		tr.t.Fatalf("%d nodes lead the %d partitions", len(all), len(tr.nodes))
	}
	return all
}

// others are the running nodes but one.
func (tr *trio) others(not *member) []*member {
	return slices.DeleteFunc(tr.up(), func(m *member) bool { return m == not })
}

// whole waits until every replica of a topic is in the ISR, and every node knows it.
func (tr *trio) whole(name string) {
	tr.t.Helper()
	why := ""
	defer func() {
		if tr.t.Failed() {
			tr.t.Log(why)
		}
	}()
	tr.eventually(name+" is whole", func() bool {
		for _, m := range tr.up() {
			t := m.e.Snapshot().Names[name]
			if t == nil {
				return false
			}
			for n := range t.Partitions {
				row := m.row(name, n)
				if row == nil || len(row.State.ISR) < len(row.State.Replicas) || len(row.Damaged) > 0 {
					why = fmt.Sprintf("%s knows: %+v", m.name, row)
					return false
				}
			}
		}
		return true
	})
}

// equal waits until all running nodes hold the same of a partition, byte by byte, and returns it.
//
// B1, B94.
func (tr *trio) equal(name string, n int) engine.Copy {
	tr.t.Helper()
	var all []engine.Copy
	var err error
	same := func() bool {
		all = all[:0]
		err = nil
		for _, m := range tr.up() {
			c, cerr := engine.CopyOf(m.e, name, n)
			if cerr != nil {
				err = fmt.Errorf("%s: %w", m.name, cerr)
				return false
			}
			all = append(all, c)
		}
		for i := range all {
			a, b := &all[0], &all[i]
			if a.End != b.End || !sameFrom(max(a.Start, b.Start), a, b) || !bytes.Equal(a.Cursors, b.Cursors) {
				return false
			}
		}
		// A follower that was started anew may know less to be committed, until there is more to say.
		return slices.ContainsFunc(all, func(c engine.Copy) bool { return c.Committed == c.Next })
	}
	for end := time.Now().Add(patience); !same(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			for i, c := range all {
				tr.t.Logf("%s: [%d, %d) batches %d, committed %d, ids %d, epochs %v, %d bytes of cursors",
					tr.up()[i].name, c.Start, c.End, c.Next, c.Committed, c.NextID, c.Epochs, len(c.Cursors))
			}
			tr.t.Fatalf("the copies of %s/%d do not become equal: %v", name, n, err)
		}
	}
	return all[0]
}

// sameFrom compares what two copies have from start on: each node removes what is confirmed in its own time.
func sameFrom(start segment.Offset, a, b *engine.Copy) bool {
	if !bytes.Equal(a.Bytes[start-a.Start:], b.Bytes[start-b.Start:]) {
		return false
	}
	n := min(len(a.Epochs), len(b.Epochs)) // the older ones are forgotten with the bytes
	return slices.Equal(a.Epochs[len(a.Epochs)-n:], b.Epochs[len(b.Epochs)-n:])
}

// told is what producers were told.
type told struct {
	mu      sync.Mutex
	tried   map[string]bool
	acked   map[string]engine.ID
	batches [][]string
	unknown int
	refused map[string]int
}

func newTold() *told {
	return &told{tried: map[string]bool{}, acked: map[string]engine.ID{}, refused: map[string]int{}}
}

// publish stores a batch and keeps what came of it.
func (h *told) publish(ctx context.Context, topic *engine.Topic, bodies ...string) error {
	var bs [][]byte
	h.mu.Lock()
	for _, b := range bodies {
		h.tried[b] = true
		bs = append(bs, []byte(b))
	}
	h.batches = append(h.batches, bodies)
	h.mu.Unlock()
	id, err := topic.PublishBatch(ctx, bs)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil:
		for i, b := range bodies {
			h.acked[b] = id + engine.ID(i)
		}
	case errors.Is(err, engine.ErrUnknown), errors.Is(err, engine.ErrDisk), errors.Is(err, engine.ErrClosed):
		h.unknown++
	default:
		h.refused[err.Error()]++
		for _, b := range bodies {
			delete(h.tried, b)
		}
	}
	return err
}

// goesOn waits until more than n further messages were acknowledged.
func (tr *trio) goesOn(h *told, n int) {
	tr.t.Helper()
	from := h.count()
	tr.eventually("writes go on", func() bool { return h.count() > from+n })
}

// loadAll is load through each of the nodes; round tells the messages of one call from those of another.
func (tr *trio) loadAll(h *told, nodes []*member, topic, round string, allowed func(error) bool) (stop func()) {
	var stops []func()
	for _, m := range nodes {
		stops = append(stops, tr.load(h, m, topic, m.name+"."+round, allowed))
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// load publishes through a node until stop is called, which returns the first error that was not allowed.
func (tr *trio) load(h *told, m *member, topic, prefix string, allowed func(error) bool) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	t := tr.topic(m, topic)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			var bodies []string
			for j := range 1 + i%3 {
				bodies = append(bodies, fmt.Sprintf("%s/%d.%d/%s", prefix, i, j, bytes.Repeat([]byte{'x'}, i%400)))
			}
			err := h.publish(context.Background(), t, bodies...)
			if err != nil && !allowed(err) {
				tr.t.Errorf("%s, message %d: %v", prefix, i, err)
				return
			}
			if errors.Is(err, engine.ErrClosed) || errors.Is(err, engine.ErrDisk) {
				return
			}
		}
	}()
	return sync.OnceFunc(func() {
		cancel()
		<-done
	})
}

func never(error) bool { return false }

func (h *told) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.acked)
}

// check compares what is stored with what producers were told: nothing acknowledged is missing or has another id,
// nothing is there that was never published or was refused, and a batch is there whole, in order, or not at all (B14).
func (h *told) check(t *testing.T, stored map[engine.ID]string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	lost := 0
	for body, id := range h.acked {
		if got, ok := stored[id]; !ok || got != body {
			if lost++; lost < 5 {
				t.Errorf("%s was answered OK for %.40q; %.40q is there", id, body, got)
			}
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d acknowledged messages lost", lost, len(h.acked))
	}
	for id, body := range stored {
		if !h.tried[body] {
			t.Errorf("%s %.40q is stored and was never published, or refused", id, body)
		}
	}
	ids := map[string]engine.ID{}
	for id, body := range stored {
		if old, ok := ids[body]; ok {
			t.Errorf("%.40q is stored twice, as %s and %s", body, old, id)
		}
		ids[body] = id
	}
	for _, b := range h.batches {
		first, ok := ids[b[0]]
		for i, body := range b {
			if id, found := ids[body]; found != ok || ok && id != first+engine.ID(i) {
				t.Errorf("of a batch of %d the first message is there: %v (%s), number %d: %v (%s)",
					len(b), ok, first, i, found, id)
			}
		}
	}
	t.Logf("%d acknowledged, %d unknown, refused %v", len(h.acked), h.unknown, h.refused)
}

// checkAll waits until all copies are equal and checks them.
func (tr *trio) checkAll(h *told, name string, partitions int) {
	tr.t.Helper()
	stored := map[engine.ID]string{}
	for n := range partitions {
		c := tr.equal(name, n)
		all, err := c.Messages(n)
		if err != nil {
			tr.t.Fatal(err)
		}
		maps.Copy(stored, all)
	}
	h.check(tr.t, stored)
}

// channel is a channel at the node that serves partition 0.
func (tr *trio) channel(topic, name string) *engine.Channel {
	tr.t.Helper()
	m := tr.leader(topic, 0)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := tr.topic(m, topic).Channel(ctx, name)
	if err != nil {
		tr.t.Fatal(err)
	}
	return c
}
