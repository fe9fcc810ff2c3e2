package cluster

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/replicate"
)

// With slowLeases and ticks, everything happens because of an event, not because time has passed.
var slowLeases = Options{LeaseTTL: time.Hour, ControllerTick: time.Hour}

// B81: a silent leader is replaced when its lease has run out, and not before. Its partitions are spread evenly over
// the other nodes.
func TestLeaseRunsOut(t *testing.T) { synctest.Test(t, testLeaseRunsOut) }

func testLeaseRunsOut(t *testing.T) {
	w := newWorldWith(t, 3, quickLeases)
	topic := w.create(w.nodes[0], meta.Topic{Name: "x", Partitions: 6})
	dead := w.nodes[0]
	begin := time.Now()
	w.kill(dead)
	watcher := w.nodes[1]
	s := w.until(watcher, "every partition is led by somebody alive", func(s *meta.Snapshot) bool {
		for _, p := range s.Partitions.All() {
			if p.State.Leader == dead.node.ID {
				return false
			}
		}
		return true
	})
	if took := time.Since(begin); took < quickLeases.LeaseTTL/2 {
		t.Errorf("replaced after %v, with a lease of %v", took, quickLeases.LeaseTTL)
	}
	if s.Nodes[dead.node.ID].Live {
		t.Error("it counts as alive")
	}
	leads := map[replicate.NodeID]int{}
	for i := range 6 {
		st := s.Partitions.Get(part(topic, i)).State
		leads[st.Leader]++
		if st.Boot != s.Nodes[st.Leader].Boot || len(st.ISR) != 3 {
			t.Errorf("%+v", st)
		}
		wasLed := st.Epoch == 1 && st.Version == 1
		if elected := st.Epoch == 2 && st.Version == 2; !elected && !wasLed {
			t.Errorf("%+v", st)
		}
	}
	if leads[2] != 3 || leads[3] != 3 {
		t.Errorf("leaders %v", leads)
	}
	if s.Controller == dead.node.ID {
		t.Error("a dead controller")
	}
}

// B81: nobody waits for a process that is known to be gone, not even if it is the controller: the node that reports the
// controller takes its place.
func TestReportDown(t *testing.T) {
	for _, c := range []struct {
		name  string
		which func(w *world, controller replicate.NodeID) *testNode
	}{
		{"the controller", func(w *world, controller replicate.NodeID) *testNode { return w.byID(controller) }},
		{"another node", func(w *world, controller replicate.NodeID) *testNode { return w.alive(controller) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorldWith(t, 3, slowLeases)
				w.create(w.nodes[0], meta.Topic{Name: "x", Partitions: 6})
				controller := w.until(w.nodes[0], "a controller", func(s *meta.Snapshot) bool {
					return s.Controller != 0
				}).Controller
				dead := c.which(w, controller)
				reporter := w.alive(dead.node.ID, controller)
				w.kill(dead)
				begin := time.Now()
				if err := reporter.ReportDown(ctx(t), dead.node.ID, dead.reg.Node.Boot); err != nil {
					t.Fatal(err)
				}
				s := w.until(reporter, "other leaders", func(s *meta.Snapshot) bool { return !leads(s, dead.node.ID) })
				if took := time.Since(begin); took > 100*time.Millisecond {
					t.Errorf("it took %v", took)
				}
				if s.Controller == dead.node.ID || s.Nodes[dead.node.ID].Live {
					t.Errorf("controller %d, the dead one live: %v", s.Controller, s.Nodes[dead.node.ID].Live)
				}
				w.until(reporter, "the report is done with", func(*meta.Snapshot) bool {
					n := reporter.s.cur.Load().nodes[dead.node.ID]
					return n.downRev == 0 && n.liveRev == 0
				})
				// A second report does no harm.
				if err := reporter.ReportDown(ctx(t), dead.node.ID, dead.reg.Node.Boot); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// leads says whether a node leads any partition.
func leads(s *meta.Snapshot, node replicate.NodeID) bool {
	for _, p := range s.Partitions.All() {
		if p.State.Leader == node {
			return true
		}
	}
	return false
}

// A wrong report costs a process its leaderships and nothing else: the same process is alive again.
func TestReportDownWrong(t *testing.T) {
	w := newWorldWith(t, 3, slowLeases)
	topic := w.create(w.nodes[0], meta.Topic{Name: "x", Partitions: 3})
	alone := w.create(w.nodes[0], meta.Topic{Name: "y", Partitions: 3, Replicas: 1})
	victim := w.nodes[1]
	w.until(victim, "topics", func(s *meta.Snapshot) bool { return len(s.Topics) == 2 })
	victim.mu.Lock()
	leases := victim.leases
	victim.mu.Unlock()
	if err := w.nodes[2].ReportDown(ctx(t), victim.node.ID, victim.reg.Node.Boot); err != nil {
		t.Fatal(err)
	}
	s := w.until(victim, "it lost its leaderships and lives", func(s *meta.Snapshot) bool {
		if !s.Nodes[victim.node.ID].Live {
			return false
		}
		for i := range 3 {
			if s.Partitions.Get(part(topic, i)).State.Leader == victim.node.ID {
				return false
			}
		}
		return true
	})
	if n := s.Nodes[victim.node.ID]; n.Boot != victim.reg.Node.Boot {
		t.Errorf("it is another process: %+v", n)
	}
	for i := range 3 {
		if st := s.Partitions.Get(part(alone, i)).State; st.Epoch != 1 {
			t.Errorf("partition %d, which nobody else has, got epoch %d", i, st.Epoch)
		}
	}
	w.untilLease(victim, leases)
	w.until(w.nodes[2], "it lives", func(s *meta.Snapshot) bool { return s.Nodes[victim.node.ID].Live })
	// A report about another process of the node is ignored.
	if err := w.nodes[2].ReportDown(ctx(t), victim.node.ID, uuid.New()); err != nil {
		t.Fatal(err)
	}
	if !w.nodes[2].Snapshot().Nodes[victim.node.ID].Live {
		t.Error("it counts as dead")
	}
	if err := w.nodes[2].ReportDown(ctx(t), 99, uuid.New()); !errors.Is(err, meta.ErrNotFound) {
		t.Errorf("an unknown node: %v", err)
	}
}

// B17, P3: a process that restarts within its lease leads its partitions only in a new epoch, if at all.
func TestRestart(t *testing.T) {
	w := newWorldWith(t, 1, slowLeases)
	first := w.nodes[0]
	topic := w.create(first, meta.Topic{Name: "x", Partitions: 2})
	w.kill(first)
	second := w.restart(first, first.node.Store)
	if second.node.ID != first.node.ID {
		t.Fatalf("it is node %d now", second.node.ID)
	}
	for i := range 2 {
		s := w.until(second, "another epoch", func(s *meta.Snapshot) bool {
			return s.Partitions.Get(part(topic, i)).State.Epoch == 2
		})
		st := s.Partitions.Get(part(topic, i)).State
		if st.Leader != first.node.ID || st.Boot != second.reg.Node.Boot || st.Version != 2 {
			t.Errorf("%+v", st)
		}
	}
}

// P10: a node whose disk was wiped is in no ISR. It must not be added with its old disk, and may be added with its new
// one.
func TestWipedDisk(t *testing.T) {
	w := newWorldWith(t, 3, slowLeases)
	topic := w.create(w.nodes[0], meta.Topic{Name: "x", Partitions: 3})
	id := part(topic, 0)
	victim := w.byID(w.nodes[0].row(id).Leader)
	w.kill(victim)
	fresh := w.restart(victim, uuid.New())
	watcher := w.alive(victim.node.ID)
	s := w.until(watcher, "it leads nothing and is in no ISR", func(s *meta.Snapshot) bool {
		for _, p := range s.Partitions.All() {
			if p.State.Leader == fresh.node.ID || len(p.State.ISR) != 2 {
				return false
			}
		}
		return true
	})
	st := s.Partitions.Get(id).State
	if slices.Contains(st.ISR, victim.member()) || len(st.Replicas) != 3 {
		t.Errorf("%+v", st)
	}
	leader := w.byID(st.Leader)
	want := st
	want.ISR = append(slices.Clone(want.ISR), victim.member())
	if got, err := leader.ChangeISR(ctx(t), id, &want); !errors.Is(err, meta.ErrConflict) || len(got.ISR) != 2 {
		t.Errorf("under the old disk: %+v, %v", got, err)
	}
	w.addToISR(id, fresh)

	// A partition that only the wiped disk had never gets a leader by itself. P11
	w2 := newWorldWith(t, 1, slowLeases)
	only := w2.create(w2.nodes[0], meta.Topic{Name: "x", Partitions: 1})
	w2.kill(w2.nodes[0])
	again := w2.restart(w2.nodes[0], uuid.New())
	w2.until(again, "a controller", func(s *meta.Snapshot) bool {
		return s.Controller == again.node.ID && again.logs.contains("nobody of the ISR") > 0
	})
	w2.create(again, meta.Topic{Name: "y", Partitions: 1})
	if st := again.row(part(only, 0)); st.Epoch != 1 || st.Boot != w2.nodes[0].reg.Node.Boot {
		t.Errorf("somebody leads it: %+v", st)
	}
	if n := again.logs.contains("nobody of the ISR"); n != 1 {
		t.Errorf("it was said %d times", n)
	}
	// An operator may force one, and that is recorded.
	if err := again.ForceLeader(ctx(t), part(only, 0), again.node.ID); err != nil {
		t.Fatal(err)
	}
	if st := again.row(part(only, 0)); st.Epoch != 2 || !slices.Equal(st.ISR, []replicate.Member{again.member()}) ||
		st.Boot != again.reg.Node.Boot {
		t.Errorf("forced: %+v", st)
	}
	entries, _ := w2.m.Entries()
	if !slices.ContainsFunc(entries, func(e kvEntry) bool {
		return e.Key == DefaultPrefix+partKey(forcedDir, part(only, 0))
	}) {
		t.Error("it is not recorded")
	}
}

// A node that could not reach the store for longer than its lease serves nothing in that time. It comes back as the
// same process, and learns which nodes lead before it learns that it may serve. B83
func TestCutOff(t *testing.T) { synctest.Test(t, testCutOff) }

func testCutOff(t *testing.T) {
	w := newWorldWith(t, 3, quickLeases)
	topic := w.create(w.nodes[0], meta.Topic{Name: "x", Partitions: 3})
	victim := w.nodes[0]
	id := part(topic, slices.IndexFunc([]int{0, 1, 2}, func(i int) bool {
		return victim.row(part(topic, i)).Leader == victim.node.ID
	}))
	w.m.Cut("n1")
	victim.mu.Lock()
	until := victim.until
	victim.mu.Unlock()
	w.until(w.nodes[1], "others lead", func(s *meta.Snapshot) bool {
		return s.Partitions.Get(id).State.Leader != victim.node.ID
	})
	if !time.Now().After(until) {
		t.Error("another leads while this one may serve")
	}
	if st := victim.row(id); st.Leader != victim.node.ID {
		t.Fatalf("it was not cut off: %+v", st)
	}
	busy := make(chan struct{})
	victim.mu.Lock()
	victim.busy = busy
	leases := victim.leases
	victim.mu.Unlock()
	poked(victim.extended)
	w.m.Heal("n1")
	w.until(w.nodes[1], "it is back", func(s *meta.Snapshot) bool { return s.Nodes[victim.node.ID].Live })
	select {
	case <-victim.extended:
		t.Error("it may serve and was not told yet who leads")
	case <-time.After(quickLeases.LeaseTTL): // longer than one attempt
	}
	close(busy)
	w.untilLease(victim, leases)
	victim.mu.Lock()
	defer victim.mu.Unlock()
	if st := victim.changes[len(victim.changes)-1].Snapshot.Partitions.Get(id).State; st.Leader == victim.node.ID {
		t.Error("it may serve and does not know that another leads")
	}
}

// poked empties a channel of capacity 1.
func poked(ch chan struct{}) {
	select {
	case <-ch:
	default:
	}
}

// The newest process with a node's name is the node; the older one stops by itself.
func TestReplaced(t *testing.T) {
	w := newWorld(t, 2)
	old := w.nodes[0]
	young := w.start("n1", old.node.Store)
	if young.node.ID != old.node.ID {
		t.Fatalf("two nodes %d, %d of one name", old.node.ID, young.node.ID)
	}
	select {
	case <-old.s.leasing:
	case <-ctx(t).Done():
		t.Fatal("the older process goes on")
	}
	w.until(w.nodes[1], "the younger lives", func(s *meta.Snapshot) bool {
		return s.Nodes[1].Boot == young.reg.Node.Boot && s.Nodes[1].Live
	})
	if old.logs.contains("another process has registered") != 1 {
		t.Error("nobody was told")
	}
}

// B80: nobody waits for a node that leaves.
func TestLeave(t *testing.T) {
	w := newWorldWith(t, 2, slowLeases)
	controller := w.until(w.nodes[0], "a controller", func(s *meta.Snapshot) bool { return s.Controller != 0 }).Controller
	a, b := w.byID(controller), w.alive(controller)
	if err := a.Leave(ctx(t)); err != nil {
		t.Fatal(err)
	}
	s := w.until(b, "it is gone and the other one is the controller", func(s *meta.Snapshot) bool {
		return !s.Nodes[a.node.ID].Live && s.Controller == b.node.ID
	})
	if s.Nodes[a.node.ID] == nil {
		t.Error("its registration is gone")
	}
}
