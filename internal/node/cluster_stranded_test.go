package node_test

import (
	"context"
	"testing"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/replicate"
)

// strandedSoon makes a leader give up after three seconds. A follower that has not answered for two seconds leaves the
// ISR.
func strandedSoon(o *node.Options) {
	o.Cluster.Replication.StrandedNs, o.Cluster.Replication.LagMaxNs = 3e9, 2e9
}

// A leader that no other replica could replace keeps its leadership: there are two replicas, and both are needed.
func TestClusterStrandedForNothing(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 2, impatient, strandedSoon)
	tc.create("t", 1)
	l := tc.leader("t", 0)
	h := newAckLog()
	if err := h.publish(context.Background(), tc.topic(l, "t"), "before"); err != nil {
		t.Fatal(err)
	}
	tc.network.isolate(l.name, true)
	refused := 0
	tc.eventually("publishing is refused for a while", func() bool {
		if h.publish(context.Background(), tc.topic(l, "t"), "meanwhile") != nil {
			refused++
		}
		return refused > 10 // 4 s
	})
	if row := l.row("t", 0); row.State.Leader != l.e.Node().ID || row.State.Epoch != 1 || l.e.Storage().Stranded != 0 {
		t.Errorf("%+v, and it is counted %d times that the leader gave up", row.State, l.e.Storage().Stranded)
	}
	tc.network.isolate(l.name, false)
	tc.eventually("publishing goes on", func() bool {
		return h.publish(context.Background(), tc.topic(l, "t"), "after") == nil
	})
}

// min_isr is the number of replicas, and two of them do not reach each other. The third reaches both and can lead; the
// preferred leader cannot. The preferred leader gives the leadership away, and does not get it back until something has
// changed: it is in the ISR all the time, and would commit nothing for minutes.
func TestClusterStrandedLeaderIsNotPreferred(t *testing.T) {
	t.Parallel()
	first := func(s *meta.Snapshot, id meta.PartitionID) replicate.NodeID {
		return s.Partitions.Get(id).State.Replicas[0]
	}
	tc := newTestCluster(t, 3, impatient, strandedSoon, func(o *node.Options) { o.Cluster.PreferredLeader = first })
	ctx := t.Context()
	if _, err := tc.nodes[0].store.CreateTopic(ctx, meta.Topic{
		Name: "t", Partitions: 1, Replicas: 3, MinISR: 3,
	}); err != nil {
		t.Fatal(err)
	}
	tc.awaitInSync("t")
	l := tc.leader("t", 0)
	preferred := func() bool { return tc.leader("t", 0).e.Node().ID == l.row("t", 0).State.Replicas[0] }
	tc.eventually("the first replica leads", preferred)
	l = tc.leader("t", 0)
	rest := tc.others(l)
	h := newAckLog()
	stop := tc.startProducers(h, tc.nodes, "t", "1", func(error) bool { return true })
	defer stop()
	tc.awaitMoreAcks(h, 20)
	tc.network.disconnectPair(l.name, rest[0].name, true)
	tc.eventually("the node that reaches all leads", func() bool {
		return rest[1].row("t", 0).State.Leader == rest[1].e.Node().ID
	})
	tc.awaitMoreAcks(h, 20)
	epoch := rest[1].row("t", 0).State.Epoch
	for began := time.Now(); time.Since(began) < 3*node.BalanceInterval; {
		tc.awaitMoreAcks(h, 5)
	}
	if row := rest[1].row("t", 0); row.State.Epoch != epoch || len(row.State.ISR) != 3 {
		t.Errorf("%+v, and epoch %d was led by the node that reaches all", row.State, epoch)
	}
	tc.network.disconnectPair(l.name, rest[0].name, false)
	tc.awaitMoreAcks(h, 20)
	stop()
	tc.kill(l)
	tc.start(l)
	tc.eventually("the first replica leads again, as another process", preferred)
	tc.checkCopies(h, "t", 1)
}
