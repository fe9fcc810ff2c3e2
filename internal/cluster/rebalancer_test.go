package cluster

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/replicate"
)

// follow does what engines do: replicas that come catch up, and leaders hand over to preferred leaders. It returns when
// a rebalance has ended, with the most moves that went on at once.
func (w *world) follow(a *testNode, ended func(s *meta.Snapshot) bool) (most int) {
	w.t.Helper()
	w.until(a, "the rebalance ends", func(s *meta.Snapshot) bool {
		most = max(most, len(s.Moves))
		for id, p := range s.Partitions.All() {
			st := p.State
			for _, n := range st.Replicas {
				if s.Nodes[n].Live && !slices.ContainsFunc(st.ISR, func(m replicate.Member) bool { return m.Node == n }) {
					st.ISR = append(slices.Clone(st.ISR), replicate.Member{Node: n, Store: s.Nodes[n].Store})
					_, _ = w.byID(st.Leader).ChangeISR(ctx(w.t), id, &st) // somebody else may have been faster
				}
			}
			if to := PreferredLeader(s, id); to != 0 && to != p.State.Leader {
				_ = w.byID(p.State.Leader).HandOver(ctx(w.t), id, &p.State, to)
			}
		}
		return ended(s)
	})
	return most
}

func replicasOf(s *meta.Snapshot) map[replicate.NodeID]int { return loadOf(s).replicas }

// A rebalance that an operator starts spreads the replicas, a few at a time, and ends; paused, it begins nothing.
func TestRebalance(t *testing.T) { synctest.Test(t, testRebalance) }

func testRebalance(t *testing.T) {
	w := newWorldWith(t, 3, Options{LeaseTTL: time.Hour, ControllerTick: 20 * time.Millisecond, RebalanceMoves: 2})
	a := w.nodes[0]
	w.create(a, meta.Topic{Name: "x", Partitions: 6, Replicas: 3})
	fourth := w.start("n4", uuid.New())
	w.until(a, "four nodes", func(s *meta.Snapshot) bool { return len(s.Nodes) == 4 && s.Nodes[4].Live })
	if err := a.Rebalance(ctx(t), meta.RebalancePause); err != nil {
		t.Fatal(err)
	}
	if err := a.Rebalance(ctx(t), meta.RebalanceStart); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	if s := a.Snapshot(); !s.Rebalance.Wanted || len(s.Moves) > 0 || replicasOf(s)[4] > 0 {
		t.Fatalf("while it is paused: %+v, %d moves", s.Rebalance, len(s.Moves))
	}
	if err := fourth.Rebalance(ctx(t), meta.RebalanceResume); err != nil {
		t.Fatal(err)
	}
	most := w.follow(a, func(s *meta.Snapshot) bool { return !s.Rebalance.Wanted && !s.Rebalance.Paused })
	held := replicasOf(a.Snapshot())
	for id := replicate.NodeID(1); id <= 4; id++ {
		if held[id] < 4 || held[id] > 5 {
			t.Errorf("node %d holds %d of 18 replicas", id, held[id])
		}
	}
	if most > 2 {
		t.Errorf("%d moves went on at once", most)
	}
	if err := a.Rebalance(ctx(t), "dance"); err == nil {
		t.Error("an order that there is not was taken")
	}
}

// A node that has joined for long enough gets its share, and the replicas of one that is away for long enough are made
// elsewhere, without an operator.
func TestRebalanceByItself(t *testing.T) { synctest.Test(t, testRebalanceByItself) }

func testRebalanceByItself(t *testing.T) {
	w := newWorldWith(t, 3, Options{
		LeaseTTL: 400 * time.Millisecond, ControllerTick: 20 * time.Millisecond, RebalanceAfter: 700 * time.Millisecond,
	})
	a := w.nodes[0]
	w.create(a, meta.Topic{Name: "x", Partitions: 4, Replicas: 2})
	w.until(a, "it knows its nodes", func(s *meta.Snapshot) bool { return len(s.Rebalance.Nodes) == 3 })
	fourth := w.start("n4", uuid.New())
	w.follow(a, func(s *meta.Snapshot) bool {
		return len(s.Rebalance.Nodes) == 4 && !s.Rebalance.Wanted && len(s.Moves) == 0
	})
	if held := replicasOf(a.Snapshot()); held[4] != 2 {
		t.Fatalf("node 4 holds %d of 8 replicas", held[4])
	}
	w.kill(fourth)
	w.follow(a, func(s *meta.Snapshot) bool {
		return s.Rebalance.Gone == 4 && !s.Rebalance.Wanted && len(s.Moves) == 0 && replicasOf(s)[4] == 0
	})
	w.restart(fourth, fourth.node.Store)
	w.follow(a, func(s *meta.Snapshot) bool {
		return s.Rebalance.Gone == 0 && !s.Rebalance.Wanted && len(s.Moves) == 0 && replicasOf(s)[4] == 2
	})
}

// Nothing that a rebalance has planned begins after a pause was stored: each of its commands compares the row that says
// whether one is wanted.
func TestNothingBeginsAfterAPause(t *testing.T) {
	for state, why := range map[string]string{
		`
		node 1
		node 2
		part 0 lead 1 of 1 isr 1 min 1
		part 1 lead 1 of 1 isr 1 min 1
		topic 1 min 1
		rebalance wanted`: "move a replica to even out the nodes",
		`
		node 1
		node 2
		part 0 lead 1 of 1 2 isr 1 2 min 2
		part 1 lead 1 of 1 2 isr 1 2 min 2
		topic 2 min 2
		rebalance wanted`: "make another replica the preferred leader",
		`
		node 1
		part 0 lead 1 of 1 isr 1 min 1
		topic 1 min 1
		rebalance wanted`: "end the rebalance",
	} {
		st := stateFrom(t, state)
		commands, _ := plan(st, "/", time.Unix(0, 0), 1, view{})
		if len(commands) != 1 || commands[0].why != why ||
			!slices.Contains(commands[0].conds, kv.Cond{Key: "/" + rebalanceKey, ModRevision: st.rebalanceRev}) {
			t.Errorf("%s: planned are %+v", why, commands)
		}
	}
}
