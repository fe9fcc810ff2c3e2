package node_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"penstock/internal/cluster"
	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/replicate"
	"penstock/segment"
)

// A move of the leader's replica ends although another replica is on a node that is dead: the leader hands over to one
// that is in sync.
func TestClusterMoveOfLeaderWhileAnotherIsDead(t *testing.T) {
	t.Parallel()
	tc, h, leader, followers, free := moved(t, func(o *node.Options) {
		o.Cluster.PreferredLeader = cluster.PreferredLeader
	})
	tc.kill(followers[0])
	stop := tc.startProducer(h, leader, "t", "during", never)
	defer stop()
	self := leader.e.Node().ID
	tc.eventually("the dead one is out of the ISR", func() bool { return len(leader.row("t", 0).State.ISR) == 2 })
	if err := leader.store.MovePartition(t.Context(), leader.row("t", 0).ID, self, free.e.Node().ID); err != nil {
		t.Fatal(err)
	}
	tc.eventually("the move ends", func() bool {
		return !slices.Contains(free.row("t", 0).State.Replicas, self) && len(free.e.Snapshot().Moves) == 0
	})
	tc.awaitMoreAcks(h, 20)
}

// Nodes that are all being drained keep their leaderships: each would hand them over to the other, and back.
func TestClusterDrainsDoNotPassLeadershipsRound(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, func(o *node.Options) {
		o.Cluster.Replicas, o.Cluster.PreferredLeader = 3, cluster.PreferredLeader
	})
	tc.create("t", 1)
	tc.awaitInSync("t")
	h := newAckLog()
	l := tc.leader("t", 0)
	stop := tc.startProducer(h, l, "t", "during", never)
	defer stop()
	for _, m := range tc.nodes {
		if err := l.store.Drain(t.Context(), m.e.Node().ID, true); err != nil {
			t.Fatal(err)
		}
	}
	tc.eventually("everybody knows of the drains", func() bool {
		return !slices.ContainsFunc(tc.nodes, func(m *testNode) bool {
			return slices.ContainsFunc(nodesOf(m.e.Snapshot()), func(n *meta.Node) bool { return !n.Draining })
		})
	})
	before := l.row("t", 0).State.Epoch
	for i := range 20 { // what changes in the cluster makes draining nodes look at what they lead
		tc.awaitMoreAcks(h, 5)
		tc.create(fmt.Sprint("other", i), 1)
	}
	if now := l.row("t", 0).State.Epoch; now > before+segment.Epoch(1) {
		t.Errorf("the partition had %d leaders while all nodes drained", now-before)
	}
}

// refusesHandOver is a store in which a hand-over fails, and then the drain that asked for it is over.
type refusesHandOver struct {
	meta.Store
	asked, over atomic.Bool
}

func (s *refusesHandOver) HandOver(
	ctx context.Context, id meta.PartitionID, st *replicate.State, to replicate.NodeID,
) error {
	if !s.asked.Load() {
		return s.Store.HandOver(ctx, id, st, to)
	}
	s.over.Store(true)
	return meta.ErrConflict
}

// preferred is cluster.PreferredLeader, until the drain is over.
func (s *refusesHandOver) preferred(snap *meta.Snapshot, id meta.PartitionID) replicate.NodeID {
	if s.over.Load() {
		return snap.Partitions.Get(id).State.Leader
	}
	return cluster.PreferredLeader(snap, id)
}

// A node whose drain ends while it hands a partition over takes writes again.
func TestClusterDrainEndsWhileHandingOver(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex // the nodes are opened at the same time
	stores := map[string]*refusesHandOver{}
	tc := newTestCluster(t, 3, func(o *node.Options) {
		s := &refusesHandOver{Store: o.Cluster.Store}
		mu.Lock()
		stores[o.NodeID] = s
		mu.Unlock()
		o.Cluster.Store, o.Cluster.PreferredLeader, o.Cluster.Replicas = s, s.preferred, 3
	})
	tc.create("t", 1)
	tc.awaitInSync("t")
	h := newAckLog()
	l := tc.leader("t", 0)
	stop := tc.startProducer(h, l, "t", "during", never)
	defer stop()
	s := stores[l.e.Node().Name]
	s.asked.Store(true)
	if err := l.store.Drain(t.Context(), l.e.Node().ID, true); err != nil {
		t.Fatal(err)
	}
	tc.eventually("it hands over", s.over.Load)
	tc.awaitMoreAcks(h, 50)
	if now := l.row("t", 0).State; now.Leader != l.e.Node().ID {
		t.Errorf("it does not lead any more: %+v", now)
	}
}

func nodesOf(s *meta.Snapshot) (all []*meta.Node) {
	for _, n := range s.Nodes {
		all = append(all, n)
	}
	return all
}

// A node that is told to stop while it hands over for another reason goes on with that, instead of leaving at once with
// what it still leads.
func TestClusterLeaveWaitsForHandOver(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, func(o *node.Options) { o.Cluster.Replicas = 3 })
	tc.create("t", 1)
	tc.awaitInSync("t")
	h := newAckLog()
	l := tc.leader("t", 0)
	stop := tc.startProducer(h, tc.others(l)[0], "t", "during", never)
	defer stop()
	release := node.HoldHandOver(l.e)
	left := make(chan error, 1)
	go func() { left <- l.e.Leave(t.Context()) }()
	tc.awaitMoreAcks(h, 200)
	select {
	case err := <-left:
		t.Errorf("it left while a hand-over went on, with all that it led: %v", err)
	default:
		release()
		if err := <-left; err != nil {
			t.Error(err)
		}
	}
	if row := tc.others(l)[0].row("t", 0); row.State.Leader == l.e.Node().ID {
		t.Errorf("it leads still: %+v", row.State)
	}
}
