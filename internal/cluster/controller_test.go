package cluster

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/replicate"
)

// engines plays the part of every node's engine: followers catch up at once, and leaders bring them into the ISR and
// hand over to the preferred leader.
func (w *world) engines(s *meta.Snapshot) {
	w.t.Helper()
	for id, p := range s.Partitions.All() {
		leader := w.byID(p.State.Leader)
		if leader.s.ctx.Err() != nil || p.State.Boot != leader.reg.Node.Boot {
			continue
		}
		st := p.State
		want := st
		want.ISR = slices.Clone(st.ISR)
		for _, r := range st.Replicas {
			n := s.Nodes[r]
			m := replicate.Member{Node: r, Store: n.Store}
			if n.Live && !slices.ContainsFunc(want.ISR, func(o replicate.Member) bool { return o.Node == r }) {
				want.ISR = append(want.ISR, m)
			}
		}
		var err error
		if len(want.ISR) > len(st.ISR) {
			_, err = leader.ChangeISR(ctx(w.t), id, &want)
		} else if to := PreferredLeader(s, id); to != 0 && to != st.Leader {
			err = leader.HandOver(ctx(w.t), id, &st, to)
		}
		if err != nil && !errors.Is(err, meta.ErrConflict) && !errors.Is(err, meta.ErrUnsafe) &&
			!errors.Is(err, meta.ErrNotFound) {
			w.t.Fatal(err)
		}
	}
}

// settle lets the engines work until a condition holds, and checks at every step that each partition keeps min_isr
// replicas in sync.
func (w *world) settle(n *testNode, what string, ok func(s *meta.Snapshot) bool) *meta.Snapshot {
	w.t.Helper()
	return w.until(n, what, func(s *meta.Snapshot) bool {
		for id, p := range s.Partitions.All() {
			if len(p.State.ISR) < p.State.MinISR {
				w.t.Fatalf("%v: %+v", id, p.State)
			}
		}
		if ok(s) {
			return true
		}
		w.engines(s)
		return false
	})
}

func holders(s *meta.Snapshot) map[replicate.NodeID]int { return loadOf(s).replicas }

// B89, P23: at every revision during a move the partition has min_isr replicas in sync, and the old replica stays until
// the new one is in sync.
func TestMovePartition(t *testing.T) {
	w := newWorldWith(t, 4, slowLeases)
	a := w.nodes[0]
	topic := w.create(a, meta.Topic{Name: "x", Partitions: 1, Replicas: 3})
	id := part(topic, 0)
	leader := a.row(id).Leader
	free := w.outside(a, id)
	if err := a.MovePartition(ctx(t), id, leader, free.node.ID); err != nil {
		t.Fatal(err)
	}
	s := w.settle(a, "the leader's replica has moved", func(s *meta.Snapshot) bool {
		return !slices.Contains(s.Partitions.Get(id).State.Replicas, leader)
	})
	if st := s.Partitions.Get(id).State; len(st.Replicas) != 3 || st.Replicas[0] != free.node.ID || len(st.ISR) != 3 ||
		st.Leader == leader || st.Epoch != 2 {
		t.Errorf("%+v", st)
	}
	a.mu.Lock()
	for i, c := range a.changes {
		p := c.Snapshot.Partitions.Get(id)
		if p == nil {
			continue
		}
		isNode := func(n replicate.NodeID) func(replicate.Member) bool {
			return func(m replicate.Member) bool { return m.Node == n }
		}
		before := slices.ContainsFunc(p.State.ISR, isNode(leader))
		after := slices.ContainsFunc(p.State.ISR, isNode(free.node.ID))
		if !before && !after || len(p.State.ISR) < 3 {
			t.Errorf("change %d: %+v", i, p.State)
		}
	}
	a.mu.Unlock()
	w.until(a, "the move is forgotten", func(*meta.Snapshot) bool { return len(a.s.cur.Load().moves) == 0 })

	for _, c := range []struct {
		from, to replicate.NodeID
		err      error
	}{
		{9, 1, meta.ErrNotFound},
		{free.node.ID, 9, meta.ErrNotFound},
		{free.node.ID, s.Partitions.Get(id).State.Replicas[1], meta.ErrExists},
		{free.node.ID, free.node.ID, nil},
	} {
		if err := a.MovePartition(ctx(t), id, c.from, c.to); !errors.Is(err, c.err) {
			t.Errorf("from %d to %d: %v, want %v", c.from, c.to, err, c.err)
		}
	}
	if err := a.MovePartition(ctx(t), part(topic, 1), 1, 2); !errors.Is(err, meta.ErrNotFound) {
		t.Errorf("an unknown partition: %v", err)
	}
}

// outside returns a node that has no replica of the partition.
func (w *world) outside(n *testNode, id meta.PartitionID) *testNode {
	w.t.Helper()
	return w.alive(n.row(id).Replicas...)
}

// B76, B89: a move can be cancelled while the new replica catches up, and another one begun.
func TestMoveChanges(t *testing.T) {
	w := newWorldWith(t, 5, slowLeases)
	a := w.nodes[0]
	topic := w.create(a, meta.Topic{Name: "x", Partitions: 1, Replicas: 3})
	id := part(topic, 0)
	original := a.row(id).Replicas
	from := original[1]
	first := w.outside(a, id)
	if err := a.MovePartition(ctx(t), id, from, first.node.ID); err != nil {
		t.Fatal(err)
	}
	w.until(a, "the new replica is there", func(s *meta.Snapshot) bool {
		return len(s.Partitions.Get(id).State.Replicas) == 4
	})
	if err := a.MovePartition(ctx(t), id, from, w.outside(a, id).node.ID); !errors.Is(err, meta.ErrConflict) {
		t.Errorf("a second move at the same time: %v", err)
	}
	if err := a.MovePartition(ctx(t), id, from, from); err != nil {
		t.Fatal(err)
	}
	w.until(a, "it is as it was", func(s *meta.Snapshot) bool {
		return slices.Equal(s.Partitions.Get(id).State.Replicas, original)
	})

	second := w.alive(append(slices.Clone(original), first.node.ID)...)
	if err := a.MovePartition(ctx(t), id, from, second.node.ID); err != nil {
		t.Fatal(err)
	}
	s := w.settle(a, "the replica is where the second call wanted it", func(s *meta.Snapshot) bool {
		r := s.Partitions.Get(id).State.Replicas
		return len(r) == 3 && slices.Contains(r, second.node.ID)
	})
	if r := s.Partitions.Get(id).State.Replicas; slices.Contains(r, from) || r[1] != second.node.ID {
		t.Errorf("replicas %v", r)
	}
}

// B90, B80: a drained node ends up with no replica, while every partition keeps its number of replicas. Then the node
// can be removed, and its id is not given again.
func TestDrain(t *testing.T) {
	w := newWorldWith(t, 4, slowLeases)
	a, b := w.nodes[0], w.nodes[1]
	w.create(a, meta.Topic{Name: "x", Partitions: 40, Replicas: 3})
	victim := w.nodes[3]
	if err := b.Drain(ctx(t), victim.node.ID, true); err != nil {
		t.Fatal(err)
	}
	if err := b.RemoveNode(ctx(t), victim.node.ID); !errors.Is(err, meta.ErrConflict) {
		t.Errorf("a live node is removed: %v", err)
	}
	most := 0
	s := w.settle(a, "it holds nothing", func(s *meta.Snapshot) bool {
		most = max(most, len(a.s.cur.Load().moves))
		return holders(s)[victim.node.ID] == 0
	})
	if leads(s, victim.node.ID) || most > MaxDrainMoveCount || most == 0 {
		t.Errorf("leads %v; %d moves at once", leads(s, victim.node.ID), most)
	}
	for id, p := range s.Partitions.All() {
		if len(p.State.Replicas) != 3 || len(p.State.ISR) != 3 {
			t.Errorf("%v: %+v", id, p.State)
		}
	}
	if made := w.create(a, meta.Topic{Name: "y", Partitions: 9, Replicas: 3}); leads(a.Snapshot(), victim.node.ID) ||
		made.Replicas != 3 {
		t.Error("something new was placed on it")
	}
	if err := victim.Leave(ctx(t)); err != nil {
		t.Fatal(err)
	}
	w.until(b, "it left", func(s *meta.Snapshot) bool { return !s.Nodes[victim.node.ID].Live })
	if err := b.RemoveNode(ctx(t), victim.node.ID); err != nil {
		t.Fatal(err)
	}
	if s := b.Snapshot(); s.Nodes[victim.node.ID] != nil {
		t.Error("it is still registered")
	}
	if again := w.start("n4", victim.node.Store); again.node.ID <= 4 {
		t.Errorf("id %d was given again", again.node.ID)
	}
	if err := b.RemoveNode(ctx(t), victim.node.ID); !errors.Is(err, meta.ErrNotFound) {
		t.Errorf("removed twice: %v", err)
	}
}

// A dead node that holds replicas is not removed. If it is drained, it gives away the replicas of which others have
// copies.
func TestRemoveDeadNode(t *testing.T) { synctest.Test(t, testRemoveDeadNode) }

func testRemoveDeadNode(t *testing.T) {
	w := newWorldWith(t, 4, quickLeases)
	a := w.nodes[0]
	w.create(a, meta.Topic{Name: "x", Partitions: 8, Replicas: 3})
	dead := w.nodes[3]
	w.kill(dead)
	w.settle(a, "it is dead", func(s *meta.Snapshot) bool {
		return !s.Nodes[dead.node.ID].Live && !leads(s, dead.node.ID)
	})
	if err := a.RemoveNode(ctx(t), dead.node.ID); !errors.Is(err, meta.ErrUnsafe) {
		t.Errorf("removed with replicas: %v", err)
	}
	if err := a.Drain(ctx(t), dead.node.ID, true); err != nil {
		t.Fatal(err)
	}
	w.settle(a, "others hold everything", func(s *meta.Snapshot) bool { return holders(s)[dead.node.ID] == 0 })
	if err := a.RemoveNode(ctx(t), dead.node.ID); err != nil {
		t.Fatal(err)
	}
}

// A stale controller can do nothing: its commands compare the controller's row.
func TestControllerFenced(t *testing.T) {
	w := newWorldWith(t, 3, slowLeases)
	topic := w.create(w.nodes[0], meta.Topic{Name: "x", Partitions: 3})
	a := w.byID(w.until(w.nodes[0], "a controller", func(s *meta.Snapshot) bool { return s.Controller != 0 }).Controller)
	w.until(a, "that it is the controller", func(s *meta.Snapshot) bool { return s.Controller == a.node.ID })
	stale := a.s.cur.Load()

	// Another node takes over, while the old controller has a command in hand and does not know.
	id := part(topic, 0)
	next := edit(&stale.parts.Get(id).Partition)
	b := w.alive(a.node.ID)
	lead(next, stale.snap.Nodes[b.node.ID])
	commands := []command{{why: "test", next: next, rev: stale.parts.Get(id).rev, chosen: []replicate.NodeID{b.node.ID}}}
	ok, _, err := b.s.txn(ctx(t), nil, []kv.Op{b.s.controllerOp(b.node.ID, b.reg.Node.Boot)})
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := a.s.execute(ctx(t), stale, commands); err != nil {
		t.Fatal(err)
	}
	row, err := a.s.readPartition(ctx(t), id)
	if err != nil || row.rev != stale.parts.Get(id).rev {
		t.Errorf("a stale controller's command was done: %+v, %v", row, err)
	}
	// The same command succeeds when the present controller gives it.
	w.until(b, "it is the controller", func(s *meta.Snapshot) bool { return s.Controller == b.node.ID })
	if err := b.s.execute(ctx(t), b.s.cur.Load(), commands); err != nil {
		t.Fatal(err)
	}
	if row, err = a.s.readPartition(ctx(t), id); err != nil || row.State.Leader != b.node.ID || row.State.Epoch != 2 {
		t.Errorf("%+v, %v", row, err)
	}
}

// B85: a controller that dies in the middle of moves is replaced, and its successor continues from the rows.
func TestControllerDies(t *testing.T) {
	w := newWorldWith(t, 5, slowLeases)
	a := w.nodes[0]
	w.create(a, meta.Topic{Name: "x", Partitions: 20, Replicas: 3})
	first := w.byID(w.until(a, "a controller", func(s *meta.Snapshot) bool { return s.Controller != 0 }).Controller)
	watcher := w.alive(first.node.ID)
	victim := w.alive(first.node.ID, watcher.node.ID)
	if err := watcher.Drain(ctx(t), victim.node.ID, true); err != nil {
		t.Fatal(err)
	}
	held := holders(watcher.Snapshot())[victim.node.ID]
	w.settle(watcher, "some have moved", func(s *meta.Snapshot) bool { return holders(s)[victim.node.ID] < held })
	w.kill(first)
	if err := watcher.ReportDown(ctx(t), first.node.ID, first.reg.Node.Boot); err != nil {
		t.Fatal(err)
	}
	// Moves to the node that died wait for a while whether it comes back.
	w.settle(watcher, "all others have moved", func(s *meta.Snapshot) bool {
		waiting := 0
		for _, m := range s.Moves {
			if m.To != first.node.ID {
				return false
			}
			waiting++
		}
		return holders(s)[victim.node.ID] == waiting
	})
}

// B91: after a node was away, leaderships return to it, and every node leads its share again.
func TestLeadersComeBack(t *testing.T) {
	w := newWorldWith(t, 3, slowLeases)
	a := w.nodes[0]
	w.create(a, meta.Topic{Name: "x", Partitions: 12})
	w.create(a, meta.Topic{Name: "y", Partitions: 7})
	gone := w.nodes[1]
	w.kill(gone)
	if err := a.ReportDown(ctx(t), gone.node.ID, gone.reg.Node.Boot); err != nil {
		t.Fatal(err)
	}
	w.until(a, "others lead", func(s *meta.Snapshot) bool { return !leads(s, gone.node.ID) })
	w.restart(gone, gone.node.Store)
	w.until(a, "it is back", func(s *meta.Snapshot) bool { return s.Nodes[gone.node.ID].Live })
	handed := 0
	s := w.settle(a, "everybody leads a share", func(s *meta.Snapshot) bool {
		for id, p := range s.Partitions.All() {
			if PreferredLeader(s, id) != p.State.Leader {
				return false
			}
		}
		return true
	})
	for _, p := range s.Partitions.All() {
		handed += int(p.State.Epoch - 1)
	}
	for n, count := range loadOf(s).leads {
		if count > 7 { // 19 partitions on three nodes
			t.Errorf("node %d leads %d", n, count)
		}
	}
	if handed > 2*7 { // the node's share, away and back
		t.Errorf("%d changes of leaders\n%s", handed, describe(s))
	}
}

// A thousand partitions fail over in a few transactions.
func TestManyPartitions(t *testing.T) {
	w := newWorldWith(t, 3, slowLeases)
	a := w.nodes[0]
	w.create(a, meta.Topic{Name: "x", Partitions: 1000})
	dead := w.nodes[1]
	w.kill(dead)
	_, before := w.m.Entries()
	begin := time.Now()
	if err := a.ReportDown(ctx(t), dead.node.ID, dead.reg.Node.Boot); err != nil {
		t.Fatal(err)
	}
	w.until(a, "others lead", func(s *meta.Snapshot) bool { return !leads(s, dead.node.ID) })
	took := time.Since(begin)
	_, after := w.m.Entries()
	if after-before > 12 {
		t.Errorf("%d transactions for 333 elections", after-before)
	}
	t.Logf("%v, %d transactions", took, after-before)
}

// Whichever node dies, is reported or restarts within its lease: some node becomes the controller, and work continues.
func TestControllersComeAndGo(t *testing.T) {
	w := newWorldWith(t, 3, slowLeases)
	for i := range 6 {
		watcher := w.alive()
		c := w.byID(w.until(watcher, "a controller", func(s *meta.Snapshot) bool {
			n := s.Nodes[s.Controller]
			return n != nil && n.Live
		}).Controller)
		w.kill(c)
		if i%2 == 0 { // half of them are reported, the others only restart
			if err := w.alive(c.node.ID).ReportDown(ctx(t), c.node.ID, c.reg.Node.Boot); err != nil {
				t.Fatal(err)
			}
		}
		w.restart(c, uuid.New())
		w.create(w.alive(c.node.ID), meta.Topic{Name: fmt.Sprint("t", i), Partitions: 3})
	}
}
