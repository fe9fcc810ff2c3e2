package cluster

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/internal/cluster/kv"
	"penstock/internal/cluster/kv/memory"
	"penstock/internal/meta"
	"penstock/replicate"
	"penstock/tests/support/kvfaults"
	"penstock/tests/support/patience"
)

// world is a cluster of stores on one map.
type world struct {
	t     *testing.T
	m     *kvfaults.Map
	opts  Options
	nodes []*testNode
}

// testNode is a process, and records what its engine would know.
type testNode struct {
	meta.Store
	s    *store
	reg  meta.Registration
	node meta.Node
	logs *syncBuffer

	mu       sync.Mutex
	changes  []*meta.Change
	busy     chan struct{} // the engine takes no change until this is closed
	until    time.Time
	leases   int
	replaced int
	raised   []int // levels to which Join raised the directory
	raiseErr error
	extended chan struct{} // has a value after each extension of the lease
}

// syncBuffer collects a log.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if testing.Verbose() {
		os.Stderr.Write(p)
	}
	return s.b.Write(p)
}

func (s *syncBuffer) contains(text string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Count(s.b.String(), text)
}

// newWorld makes a cluster whose leases do not run out, so that nothing happens because of a lease.
func newWorld(t *testing.T, nodes int) *world {
	return newWorldWith(t, nodes, Options{LeaseTTL: time.Hour, ControllerTick: 50 * time.Millisecond})
}

// quickLeases are for tests that wait for the end of a lease. They run in a bubble (testing/synctest): its clock stands
// while anybody works: on a busy machine a lease would run out by itself.
var quickLeases = Options{LeaseTTL: 400 * time.Millisecond, ControllerTick: 50 * time.Millisecond}

func newWorldWith(t *testing.T, nodes int, o Options) *world {
	w := &world{t: t, m: kvfaults.New(memory.Options{}), opts: o}
	t.Cleanup(w.close)
	for i := range nodes {
		w.start(fmt.Sprintf("n%d", i+1), uuid.New())
	}
	for _, n := range w.nodes {
		w.until(n, "all nodes", func(s *meta.Snapshot) bool { return len(s.Nodes) == nodes })
	}
	return w
}

func (w *world) close() {
	for _, n := range w.nodes {
		if err := n.Close(); err != nil {
			w.t.Error(err)
		}
	}
	w.m.Close()
}

func ctx(t *testing.T) context.Context {
	c, cancel := context.WithTimeout(t.Context(), 120*time.Second)
	t.Cleanup(cancel)
	return c
}

// start lets a process of a node join.
func (w *world) start(name string, disk uuid.UUID) *testNode {
	w.t.Helper()
	n := w.prepare(name, disk)
	w.join(n)
	return n
}

func (w *world) prepare(name string, disk uuid.UUID) *testNode {
	n := &testNode{logs: &syncBuffer{}, extended: make(chan struct{}, 1)}
	o := w.opts
	o.Logger = slog.New(slog.NewTextHandler(n.logs, nil)).With("node", name)
	n.Store = New(w.m.Store(name), o)
	n.s = n.Store.(*store)
	n.reg = meta.Registration{
		Node:    meta.Node{Name: name, Store: disk, Boot: uuid.New(), Peer: name + ":1"},
		Changed: n.onChange,
		Lease: func(until time.Time) {
			n.mu.Lock()
			n.until, n.leases = until, n.leases+1
			n.mu.Unlock()
			poke(n.extended)
		},
		Replaced: func() {
			n.mu.Lock()
			n.replaced++
			n.mu.Unlock()
		},
	}
	return n
}

func (w *world) join(n *testNode) {
	w.t.Helper()
	node, err := n.Join(ctx(w.t), n.reg)
	if err != nil {
		w.t.Fatalf("%s does not join: %v", n.reg.Node.Name, err)
	}
	n.node = node
	w.nodes = append(w.nodes, n)
}

func (n *testNode) onChange(c *meta.Change) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if busy := n.busy; busy != nil {
		n.mu.Unlock()
		<-busy
		n.mu.Lock()
	}
	n.changes = append(n.changes, c)
}

// kill ends a process as kill -9 does: its lease lives on until it runs out.
func (w *world) kill(n *testNode) {
	w.t.Helper()
	if err := n.Close(); err != nil {
		w.t.Fatal(err)
	}
}

// restart begins another process of a killed node, with a given disk.
func (w *world) restart(n *testNode, disk uuid.UUID) *testNode {
	w.t.Helper()
	return w.start(n.reg.Node.Name, disk)
}

// until waits for a condition on a node's snapshot.
func (w *world) until(n *testNode, what string, ok func(s *meta.Snapshot) bool) *meta.Snapshot {
	w.t.Helper()
	deadline := time.Now().Add(patience.Or(120 * time.Second))
	for {
		n.s.mu.Lock()
		changed := n.s.changed
		n.s.mu.Unlock()
		s := n.Snapshot()
		if ok(s) {
			return s
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: never happened; controller %d\n%s", what, s.Controller, describe(s))
		}
		select {
		case <-changed:
		case <-time.After(10 * time.Millisecond): // the condition need not concern the snapshot
		}
	}
}

// untilLease waits until a node's lease was extended more than this many times.
func (w *world) untilLease(n *testNode, count int) {
	w.t.Helper()
	for {
		n.mu.Lock()
		leases := n.leases
		n.mu.Unlock()
		if leases > count {
			return
		}
		select {
		case <-n.extended:
		case <-ctx(w.t).Done():
			w.t.Fatal("the lease was not extended")
		}
	}
}

func describe(s *meta.Snapshot) string {
	var b strings.Builder
	for id, n := range s.Nodes {
		fmt.Fprintf(&b, "node %d live %v draining %v\n", id, n.Live, n.Draining)
	}
	for id, p := range s.Partitions.All() {
		fmt.Fprintf(&b, "%v %+v damaged %v\n", id, p.State, p.Damaged)
	}
	return b.String()
}

func (w *world) create(n *testNode, t meta.Topic) *meta.Topic {
	w.t.Helper()
	made, err := n.CreateTopic(ctx(w.t), t)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, o := range w.nodes {
		if o.s.ctx.Err() == nil {
			w.until(o, "the topic", func(s *meta.Snapshot) bool { return s.Topics[made.ID] != nil })
		}
	}
	return made
}

func (w *world) byID(id replicate.NodeID) *testNode {
	for _, n := range slices.Backward(w.nodes) {
		if n.node.ID == id {
			return n
		}
	}
	w.t.Fatalf("no node %d", id)
	return nil
}

// alive returns a process that was not killed, of a node other than those.
func (w *world) alive(not ...replicate.NodeID) *testNode {
	for _, n := range slices.Backward(w.nodes) {
		if !slices.Contains(not, n.node.ID) && n.s.ctx.Err() == nil {
			return n
		}
	}
	w.t.Fatal("nobody is alive")
	return nil
}

func (n *testNode) member() replicate.Member {
	return replicate.Member{Node: n.node.ID, Store: n.node.Store}
}

func (n *testNode) row(id meta.PartitionID) replicate.State {
	return n.Snapshot().Partitions.Get(id).State
}

func part(t *meta.Topic, n int) meta.PartitionID {
	return meta.PartitionID{Topic: t.ID, Partition: uint32(n)}
}

// addToISR does what a leader does when a follower has caught up.
func (w *world) addToISR(id meta.PartitionID, n *testNode) {
	w.t.Helper()
	for {
		leader := w.byID(n.row(id).Leader)
		want := leader.row(id)
		want.ISR = append(slices.Clone(want.ISR), n.member())
		if _, err := leader.ChangeISR(ctx(w.t), id, &want); err == nil {
			return
		} else if ctxErr := w.t.Context().Err(); ctxErr != nil || !strings.Contains(err.Error(), "somebody else was faster") {
			w.t.Fatal(err)
		}
	}
}

type kvEntry = kv.Entry

func opsOf(key string, row any) []kv.Op { return []kv.Op{put(key, row)} }
