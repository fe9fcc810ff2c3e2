package cluster

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/replicate"
)

// only is a cluster of three nodes with one partition, which all of them have. Nothing in it happens by itself.
func only(t *testing.T) (*world, meta.PartitionID, *testNode) {
	w := newWorldWith(t, 3, slowLeases)
	topic := w.create(w.nodes[0], meta.Topic{Name: "x", Partitions: 1})
	id := part(topic, 0)
	return w, id, w.byID(w.nodes[0].row(id).Leader)
}

func TestChangeISRRefused(t *testing.T) {
	w, id, leader := only(t)
	follower := w.alive(leader.node.ID)
	third := w.alive(leader.node.ID, follower.node.ID)
	whole := leader.row(id)
	two := []replicate.Member{leader.member(), follower.member()}
	for _, c := range []struct {
		name string
		want func(st *replicate.State)
		err  error
	}{
		{"another version", func(st *replicate.State) { st.Version++ }, meta.ErrConflict},
		{"another epoch", func(st *replicate.State) { st.Epoch++ }, meta.ErrConflict},
		{"another leader", func(st *replicate.State) { st.Leader = follower.node.ID }, meta.ErrConflict},
		{"another process (P3)", func(st *replicate.State) { st.Boot = uuid.New() }, meta.ErrConflict},
		{
			"without the leader", func(st *replicate.State) { st.ISR = []replicate.Member{follower.member(), third.member()} },
			meta.ErrUnsafe,
		},
		{"the leader with another disk", func(st *replicate.State) {
			st.ISR = []replicate.Member{{Node: leader.node.ID, Store: uuid.New()}, follower.member()}
		}, meta.ErrConflict},
		{"fewer than min_isr", func(st *replicate.State) { st.ISR = two[:1] }, meta.ErrUnsafe},
		{"nobody", func(st *replicate.State) { st.ISR = nil }, meta.ErrUnsafe},
		{
			"a stranger", func(st *replicate.State) { st.ISR = append(slices.Clone(two), replicate.Member{Node: 9}) },
			meta.ErrConflict,
		},
		{"somebody twice", func(st *replicate.State) { st.ISR = append(slices.Clone(two), two[1]) }, meta.ErrConflict},
		{"another disk (P10)", func(st *replicate.State) {
			st.ISR = []replicate.Member{two[0], {Node: third.node.ID, Store: uuid.New()}}
		}, meta.ErrConflict},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := whole
			want.ISR = two
			c.want(&want)
			got, err := leader.ChangeISR(ctx(t), id, &want)
			if !errors.Is(err, c.err) {
				t.Errorf("%v, want %v", err, c.err)
			}
			if !errors.Is(err, meta.ErrConflict) {
				return
			}
			if got.Version != whole.Version || !slices.Equal(got.ISR, whole.ISR) {
				t.Errorf("it says %+v", got)
			}
		})
	}
}

func TestChangeISR(t *testing.T) {
	w, id, leader := only(t)
	follower := w.alive(leader.node.ID)
	third := w.alive(leader.node.ID, follower.node.ID)
	whole := leader.row(id)
	two := []replicate.Member{leader.member(), follower.member()}
	// Remove, add and remove again: each proposal builds on the answer to the previous one, without waiting for the
	// watch.
	st := whole
	for i, isr := range [][]replicate.Member{two, {leader.member(), third.member(), follower.member()}, two} {
		want := st
		want.ISR = isr
		var err error
		if st, err = leader.ChangeISR(ctx(t), id, &want); err != nil {
			t.Fatal(err)
		}
		if st.Version != whole.Version+uint64(i)+1 || st.Epoch != whole.Epoch || !slices.Equal(st.ISR, isr) ||
			len(st.Replicas) != 3 {
			t.Fatalf("%+v", st)
		}
	}
	// A proposal whose answer was lost counts as accepted when it is repeated, and is not applied twice.
	want := st
	want.ISR = []replicate.Member{third.member(), leader.member()}
	w.m.LoseAnswers(leader.reg.Node.Name, leader.s.key(partKey(partsDir, id)), 1)
	if _, err := leader.ChangeISR(ctx(t), id, &want); !errors.Is(err, meta.ErrUnavailable) {
		t.Fatal(err)
	}
	got, err := leader.ChangeISR(ctx(t), id, &want)
	if err != nil || got.Version != st.Version+1 || !slices.Equal(got.ISR, want.ISR) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := leader.ChangeISR(ctx(t), part(&meta.Topic{ID: uuid.New()}, 0), &want); !errors.Is(err, meta.ErrNotFound) {
		t.Errorf("an unknown partition: %v", err)
	}
}

// P6: of proposals, elections and reports on one version exactly one is accepted, and each loser gets the row as it is.
func TestChangeISRRace(t *testing.T) {
	w, id, leader := only(t)
	for range 20 {
		st, err := leader.s.readPartition(ctx(t), id)
		if err != nil {
			t.Fatal(err)
		}
		lead := w.byID(st.State.Leader)
		var all sync.WaitGroup
		var mu sync.Mutex
		accepted := 0
		try := func(isr ...replicate.Member) {
			want := st.State
			want.ISR = isr
			got, err := lead.ChangeISR(ctx(t), id, &want)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				accepted++
			case !errors.Is(err, meta.ErrConflict), got.Version <= want.Version:
				t.Errorf("%+v, %v", got, err)
			}
		}
		other := func(not replicate.NodeID) replicate.Member {
			return w.alive(lead.node.ID, not).member()
		}
		all.Go(func() { try(lead.member(), other(0), other(other(0).Node)) })
		all.Go(func() { try(lead.member(), other(0)) })
		all.Go(func() {
			err := lead.HandOver(ctx(t), id, &st.State, 0)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				accepted++
			} else if !errors.Is(err, meta.ErrConflict) {
				t.Error(err)
			}
		})
		all.Wait()
		if accepted != 1 {
			t.Fatalf("%d were accepted", accepted)
		}
		now, err := leader.s.readPartition(ctx(t), id)
		if err != nil || now.State.Version != st.State.Version+1 {
			t.Fatalf("version %d follows %d, %v", now.State.Version, st.State.Version, err)
		}
	}
}

// A leader hands over to the node that leads least, or to the one that it names; never to one that is not in sync, dead
// or damaged.
func TestHandOver(t *testing.T) {
	w, id, leader := only(t)
	follower := w.alive(leader.node.ID)
	third := w.alive(leader.node.ID, follower.node.ID)
	st := leader.row(id)
	st.ISR = []replicate.Member{leader.member(), follower.member()}
	st, err := leader.ChangeISR(ctx(t), id, &st)
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range []replicate.NodeID{third.node.ID, leader.node.ID, 9} {
		if err := leader.HandOver(ctx(t), id, &st, to); !errors.Is(err, meta.ErrUnsafe) {
			t.Errorf("to node %d: %v", to, err)
		}
	}
	if err := follower.ReportCopy(ctx(t), id, follower.member(), meta.CopyDamaged); err != nil {
		t.Fatal(err)
	}
	if err := leader.HandOver(ctx(t), id, &st, 0); !errors.Is(err, meta.ErrConflict) {
		t.Errorf("on an old version: %v", err)
	}
	row, err := leader.s.readPartition(ctx(t), id)
	if err != nil || row.State.Version != st.Version+1 ||
		!slices.Equal(row.Damaged, []replicate.Member{follower.member()}) {
		t.Fatalf("%+v, %v", row, err)
	}
	if err := leader.HandOver(ctx(t), id, &row.State, 0); !errors.Is(err, meta.ErrTooFewNodes) {
		t.Errorf("the only other one is damaged: %v", err)
	}
	if err := follower.ReportCopy(ctx(t), id, follower.member(), meta.CopyWhole); err != nil {
		t.Fatal(err)
	}
	if row, err = leader.s.readPartition(ctx(t), id); err != nil {
		t.Fatal(err)
	}
	if err := leader.HandOver(ctx(t), id, &row.State, 0); err != nil {
		t.Fatal(err)
	}
	if st := leader.row(id); st.Leader != follower.node.ID || st.Boot != follower.reg.Node.Boot || st.Epoch != 2 ||
		st.Version != row.State.Version+1 || len(st.ISR) != 2 {
		t.Errorf("%+v", st)
	}
}

// A leader whose disk hangs does not give way to a slow disk. A leader whose disk has failed does, but not to one that
// hangs.
func TestHandOverOfFailedDisk(t *testing.T) {
	w, id, leader := only(t)
	slow := w.alive(leader.node.ID)
	hung := w.alive(leader.node.ID, slow.node.ID)
	told := func(n *testNode, disk meta.DiskState) {
		t.Helper()
		if err := n.ReportDisk(ctx(t), disk); err != nil {
			t.Fatal(err)
		}
		w.settle(leader, "it hears of it", func(s *meta.Snapshot) bool { return s.Nodes[n.node.ID].Disk == disk })
	}
	told(slow, meta.DiskSlow)
	told(hung, meta.DiskHung)
	told(leader, meta.DiskHung)
	st := leader.row(id)
	if err := leader.HandOver(ctx(t), id, &st, 0); !errors.Is(err, meta.ErrTooFewNodes) {
		t.Fatalf("a hung disk gave way to a slow one: %v", err)
	}
	told(leader, meta.DiskFailed)
	if err := leader.HandOver(ctx(t), id, &st, hung.node.ID); err == nil {
		t.Fatal("a failed disk gave way to a hung one")
	}
	if err := leader.HandOver(ctx(t), id, &st, 0); err != nil {
		t.Fatal(err)
	}
	if now := leader.row(id); now.Leader != slow.node.ID {
		t.Errorf("%+v", now)
	}
}

// A leader whose disk hangs gives way only to good disks, and leaves the ISR as it does so, as long as min_isr is kept.
// A process's report about its disk ends with the process.
func TestHandOverOfHungDisk(t *testing.T) {
	w, id, leader := only(t)
	follower := w.alive(leader.node.ID)
	third := w.alive(leader.node.ID, follower.node.ID)
	told := func(n *testNode, disk meta.DiskState) {
		t.Helper()
		if err := n.ReportDisk(ctx(t), disk); err != nil {
			t.Fatal(err)
		}
		for _, who := range []*testNode{leader, follower} {
			w.settle(who, "it hears of it", func(s *meta.Snapshot) bool { return s.Nodes[n.node.ID].Disk == disk })
		}
	}
	told(follower, meta.DiskSlow)
	told(third, meta.DiskFailed)
	told(leader, meta.DiskHung)
	st := leader.row(id)
	if err := leader.HandOver(ctx(t), id, &st, 0); !errors.Is(err, meta.ErrTooFewNodes) {
		t.Fatalf("all others are slow or worse: %v", err)
	}
	told(follower, meta.DiskGood)
	if err := leader.HandOver(ctx(t), id, &st, 0); err != nil {
		t.Fatal(err)
	}
	now := leader.row(id)
	if now.Leader != follower.node.ID || now.Epoch != st.Epoch+1 || slices.Contains(now.ISR, leader.member()) ||
		len(now.ISR) != 2 {
		t.Errorf("%+v", now)
	}
	told(third, meta.DiskGood)
	told(follower, meta.DiskHung)
	w.until(follower, "the follower knows that it leads", func(s *meta.Snapshot) bool {
		return s.Partitions.Get(id).State.Epoch == now.Epoch
	})
	err := follower.HandOver(ctx(t), id, &now, 0)
	for errors.Is(err, meta.ErrConflict) && t.Context().Err() == nil { // the old leader has returned to the ISR
		now = follower.row(id)
		err = follower.HandOver(ctx(t), id, &now, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	if last := follower.row(id); last.Leader != third.node.ID || len(last.ISR) != 2 {
		t.Errorf("min_isr is 2, and without one of two it would be below: %+v", last)
	}
}

// Damage is reported only for disks that exist, and once. A leader that reports itself is replaced. P18
func TestReportCopy(t *testing.T) {
	w, id, leader := only(t)
	before := leader.row(id)
	for _, m := range []replicate.Member{{Node: leader.node.ID, Store: uuid.New()}, {Node: 9, Store: uuid.New()}} {
		if err := leader.ReportCopy(ctx(t), id, m, meta.CopyDamaged); err != nil {
			t.Error(err)
		}
	}
	if err := leader.ReportCopy(ctx(t), id, leader.member(), meta.CopyWhole); err != nil {
		t.Error(err)
	}
	if st := leader.row(id); st.Version != before.Version {
		t.Errorf("reports that say nothing changed the row: %+v", st)
	}
	if err := leader.ReportCopy(ctx(t), id, leader.member(), meta.CopyDamaged); err != nil {
		t.Fatal(err)
	}
	s := w.until(leader, "another leads", func(s *meta.Snapshot) bool {
		return s.Partitions.Get(id).State.Leader != leader.node.ID
	})
	if p := s.Partitions.Get(id); p.State.Epoch != 2 || !slices.Equal(p.Damaged, []replicate.Member{leader.member()}) {
		t.Errorf("%+v", p)
	}
}

// An operator may make any live node with a replica the leader, and no other.
func TestForceLeader(t *testing.T) {
	w, id, leader := only(t)
	node := w.alive(leader.node.ID)
	outside := w.start("n4", uuid.New())
	w.until(leader, "a fourth node", func(s *meta.Snapshot) bool { return s.Nodes[outside.node.ID] != nil })
	for _, n := range []replicate.NodeID{outside.node.ID, 9} {
		if err := leader.ForceLeader(ctx(t), id, n); !errors.Is(err, meta.ErrNotFound) {
			t.Errorf("node %d: %v", n, err)
		}
	}
	if err := leader.ForceLeader(ctx(t), id, node.node.ID); err != nil {
		t.Fatal(err)
	}
	st := leader.row(id)
	if st.Leader != node.node.ID || st.Epoch != 2 || !slices.Equal(st.ISR, []replicate.Member{node.member()}) ||
		len(st.Replicas) != 3 || st.MinISR != 2 || st.Forced != st.Epoch {
		t.Errorf("%+v", st)
	}
	w.until(node, "it hears so", func(s *meta.Snapshot) bool { return s.Partitions.Get(id).State.Leader == node.node.ID })
	w.addToISR(id, leader) // they return one by one, although the ISR is smaller than min_isr at first
}
