package cluster

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/replicate"
)

// keys returns the keys of all rows, without those that remember a deletion: these are meant to stay, and bounded.
func (w *world) keys() map[string]bool {
	w.t.Helper()
	entries, _ := w.m.Entries()
	keys := map[string]bool{}
	for i := range entries {
		if key := strings.TrimPrefix(entries[i].Key, DefaultPrefix); !strings.HasPrefix(key, deletedDir) {
			keys[key] = true
		}
	}
	return keys
}

// Operations leave no row behind: neither those that end, nor those that are given up because their target is dead.
func TestOperationsLeaveNothing(t *testing.T) { synctest.Test(t, testOperationsLeaveNothing) }

func testOperationsLeaveNothing(t *testing.T) {
	w := newWorldWith(t, 3, Options{
		LeaseTTL: 400 * time.Millisecond, ControllerTick: 20 * time.Millisecond, MovePatience: 300 * time.Millisecond,
	})
	a := w.nodes[0]
	stays := w.create(a, meta.Topic{Name: "stays", Partitions: 1, Replicas: 3})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	calm := func(s *meta.Snapshot) bool { return len(s.Moves) == 0 && !s.Rebalance.Wanted }
	must(a.Rebalance(ctx(t), meta.RebalanceStart)) // the row of the rebalancing stays, whatever it says
	w.follow(a, calm)
	before := w.keys()

	fourth := w.start("n4", uuid.New())
	goes := w.create(a, meta.Topic{Name: "goes", Partitions: 1, Replicas: 1})
	forced, from := part(goes, 0), a.row(part(goes, 0)).Leader
	must(a.ForceLeader(ctx(t), forced, from))
	w.until(a, "the leader is forced", func(s *meta.Snapshot) bool { return s.Partitions.Get(forced).State.Forced > 0 })
	must(a.Rebalance(ctx(t), meta.RebalanceStart))
	w.follow(a, calm)
	must(a.Rebalance(ctx(t), meta.RebalanceStart))
	must(a.Rebalance(ctx(t), meta.RebalanceCancel))
	w.follow(a, calm)
	_, err := a.SetReplicas(ctx(t), stays.ID, 2)
	must(err)
	must(a.Drain(ctx(t), 2, true))
	w.follow(a, func(s *meta.Snapshot) bool { return calm(s) && replicasOf(s)[2] == 0 })
	must(a.Drain(ctx(t), 2, false))

	// The target of a move dies for good.
	id, holds := part(stays, 0), replicate.NodeID(0)
	must(a.Drain(ctx(t), fourth.node.ID, true))
	w.follow(a, func(s *meta.Snapshot) bool { return calm(s) && replicasOf(s)[4] == 0 })
	must(a.Drain(ctx(t), fourth.node.ID, false))
	w.until(a, "the drain is over", func(s *meta.Snapshot) bool { return !s.Nodes[4].Draining && s.Nodes[4].Live })
	for _, n := range a.row(id).Replicas {
		if n != a.row(id).Leader {
			holds = n
		}
	}
	must(a.MovePartition(ctx(t), id, holds, fourth.node.ID))
	w.until(a, "it moves", func(s *meta.Snapshot) bool { return replicasOf(s)[4] == 1 })
	w.kill(fourth)
	w.until(a, "it is dead", func(s *meta.Snapshot) bool { return !s.Nodes[4].Live })
	w.follow(a, func(s *meta.Snapshot) bool { return calm(s) && replicasOf(s)[4] == 0 })
	must(a.RemoveNode(ctx(t), fourth.node.ID))
	must(a.DeleteTopic(ctx(t), goes.ID))
	var more []string
	w.until(a, "nothing is left", func(*meta.Snapshot) bool {
		more = nil
		for key := range w.keys() {
			if !before[key] {
				more = append(more, key)
			}
		}
		return len(more) == 0
	})
}
