package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/replicate"
	"penstock/tests/support/seedtest"
)

// model is a cluster without disks and networks: the real store of each node, on one map, and leaders that append
// numbers. Operators and faults come at random: nodes die for a while or for good, in the middle of each operation;
// disks hang or are replaced, copies are damaged, a node hears of changes late, the map does not answer. Then the
// faults end, and what was begun must end, too. The seed decides everything.
type model struct {
	t      *testing.T
	rng    *rand.Rand
	now    time.Time
	kv     *modelKV
	nodes  []*modelNode // the removed ones, too: the id is the index + 1
	faults bool
	second time.Duration // how long a step takes
	racks  int
	leases map[kv.LeaseID]time.Time // of dead processes: when they end
	acked  map[meta.PartitionID][]int
	number int // the last one that was appended
	topics int // names given
	last   []string
}

// modelNode is one node: its processes, one after the other, and what its present disk holds.
type modelNode struct {
	w       *model
	s       *store // of the present process
	row     meta.Node
	lease   kv.LeaseID
	heard   int  // of the map's events
	alive   bool // the process runs
	removed bool
	disk    meta.DiskState
	differs bool // its clock
	copies  map[meta.PartitionID]*modelCopy
	stuck   map[meta.PartitionID]bool
	seen    presence
}

// modelCopy is a log: what the leader of the newest epoch has sent.
type modelCopy struct {
	log     []int // shared, never changed
	epoch   uint64
	damaged bool
}

func (w *model) uuid() (id uuid.UUID) {
	for i := range id {
		id[i] = byte(w.rng.Uint32())
	}
	return id
}

// say notes what happens, for the report of a failure.
func (w *model) say(format string, args ...any) {
	w.last = append(w.last, fmt.Sprintf(format, args...))
}

func (w *model) fail(format string, args ...any) {
	w.t.Helper()
	for _, line := range w.last[max(0, len(w.last)-60):] {
		w.t.Log(line)
	}
	w.t.Fatalf(format, args...)
}

func newModel(t *testing.T, seed uint64) *model {
	w := &model{
		t: t, rng: rand.New(rand.NewPCG(seed, 37)), now: time.Unix(1e9, 0), acked: map[meta.PartitionID][]int{},
		leases: map[kv.LeaseID]time.Time{}, faults: true, second: time.Second,
	}
	w.kv = &modelKV{w: w, rows: map[string]kv.Entry{}}
	w.racks = w.rng.IntN(3)
	w.kv.apply([]kv.Op{
		put(DefaultPrefix+clusterKey, w.uuid()), put(DefaultPrefix+levelKey, levelRow{Level: 2}),
	})
	for range 3 + w.rng.IntN(3) {
		w.join()
	}
	return w
}

// join adds a node to the cluster.
func (w *model) join() {
	id := replicate.NodeID(len(w.nodes) + 1)
	n := &modelNode{w: w, row: meta.Node{ID: id, Name: fmt.Sprintf("n%d", id), Level: 3, StoreLevel: 3}}
	if w.racks > 0 {
		n.row.Rack = fmt.Sprintf("r%d", w.rng.IntN(w.racks+1))
	}
	w.nodes = append(w.nodes, n)
	w.kv.apply([]kv.Op{put(DefaultPrefix+lastIDKey, id)})
	n.replaceDisk()
	n.start()
}

func (n *modelNode) replaceDisk() {
	n.row.Store, n.copies = n.w.uuid(), map[meta.PartitionID]*modelCopy{}
}

// start begins a new process, which registers as store.tryRegister does.
func (n *modelNode) start() {
	w := n.w
	o := Options{
		Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return w.now }, Host: modelHost{n},
		RebalanceAfter: 20 * time.Second,
	}
	n.s = New(w.kv, o).(*store)
	n.s.ctx, n.s.joined = context.Background(), true
	n.heard, n.alive, n.disk, n.differs = 0, true, meta.DiskGood, false
	n.stuck, n.seen = map[meta.PartitionID]bool{}, presence{}
	n.s.cur.Store(newState())
	n.hear()
	if own := n.s.cur.Load().snap.Nodes[n.row.ID]; own != nil {
		n.row.Draining = own.Draining
	}
	n.row.Boot, n.row.Disk, n.row.ClockDiffers = w.uuid(), meta.DiskGood, false
	n.lease, _ = w.kv.Grant(context.Background(), 0)
	n.s.node, n.s.lease = n.row, n.lease
	w.kv.apply([]kv.Op{
		put(DefaultPrefix+nodeKey(nodesDir, n.row.ID), n.row),
		{
			Key:   DefaultPrefix + nodeKey(liveDir, n.row.ID),
			Value: encode(processRow{Node: n.row.ID, Boot: n.row.Boot}), Lease: n.lease,
		},
		remove(DefaultPrefix + nodeKey(downDir, n.row.ID)),
	})
	n.hear()
	w.say("%s starts", n.row.Name)
}

// hear lets the node hear of everything that has been written.
func (n *modelNode) hear() {
	if n.heard == len(n.w.kv.events) {
		return
	}
	b := build(n.s.cur.Load(), DefaultPrefix, n.s.log)
	for ; n.heard < len(n.w.kv.events); n.heard++ {
		b.apply(&n.w.kv.events[n.heard])
	}
	st, change := b.finish(n.w.kv.rev)
	n.s.publish(st)
	n.s.deliver(&meta.Registration{}, change)
}

func (n *modelNode) kill() {
	n.alive = false
	n.w.leases[n.lease] = n.w.now.Add(DefaultLeaseTTL)
	n.w.say("%s dies", n.row.Name)
}

// state returns what the map has now.
func (w *model) state() *state {
	for _, n := range w.nodes {
		if n.alive {
			n.hear()
			return n.s.cur.Load()
		}
	}
	panic("no node is alive")
}

// works says whether a node stores what it is sent.
func (n *modelNode) works() bool {
	return n.alive && !n.removed && n.disk.Rank() < meta.DiskHung.Rank()
}

func (n *modelNode) copyOf(id meta.PartitionID) *modelCopy {
	c := n.copies[id]
	if c == nil {
		c = new(modelCopy)
		n.copies[id] = c
	}
	return c
}

func (n *modelNode) member() replicate.Member {
	return replicate.Member{Node: n.row.ID, Store: n.row.Store}
}

// step lets some time pass: leases end, the nodes lead, the controller acts.
func (w *model) step() {
	w.now = w.now.Add(w.second)
	for lease, at := range w.leases {
		if !w.now.Before(at) {
			delete(w.leases, lease)
			w.kv.end(lease)
		}
	}
	for _, i := range w.rng.Perm(len(w.nodes)) {
		n := w.nodes[i]
		if !n.alive {
			continue
		}
		if !w.faults || w.rng.IntN(4) != 0 {
			n.hear()
		}
		n.revive()
		n.lead()
		if !w.faults || w.rng.IntN(3) != 0 {
			err := n.s.act(n.s.cur.Load(), n.stuck, n.seen)
			if err != nil && !w.faults {
				w.fail("%s: the controller: %v", n.row.Name, err)
			}
		}
	}
}

// revive writes the live row again, if a wrong report took it away.
func (n *modelNode) revive() {
	own := n.s.cur.Load().nodes[n.row.ID]
	if own.rev != 0 && own.row.Boot == n.row.Boot && own.liveRev == 0 {
		_ = n.s.revive(context.Background(), &meta.Registration{Clock: n.s.opts.Now})
	}
}

// TestModel lets operators and faults work on a model of a cluster, and looks at what is left when the faults have
// ended: every move, drain, growth, shrinking, transfer and rebalance has ended, whoever died meanwhile; nothing that
// was acknowledged is lost; the controller has nothing more to do.
func TestModel(t *testing.T) {
	for seed := range seedtest.Each(t, 150, 50) {
		w := newModel(t, seed)
		w.createTopic()
		for range 20 + w.rng.IntN(100) {
			switch w.rng.IntN(4) {
			case 0:
				w.order()
			case 1:
				w.fault()
			}
			w.step()
		}
		w.endFaults()
		w.checkEnd()
	}
}

// A node was reported gone though it runs, and then all others died: it takes over, and is alive again.
func TestLastNodeWasReportedGone(t *testing.T) {
	w := newModel(t, 1)
	w.faults = false
	w.step()
	last := w.nodes[0]
	for _, n := range w.nodes[1:] {
		if err := n.s.ReportDown(t.Context(), last.row.ID, last.row.Boot); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range w.nodes[1:] {
		n.kill()
	}
	w.second = 10 * time.Second
	for range 6 {
		w.step()
	}
	st := w.state()
	if own := st.nodes[last.row.ID]; st.controller.Node != last.row.ID || !own.alive() {
		w.fail("the controller is %+v, and the last node %+v", st.controller, own)
	}
}
