package node_test

import (
	"testing"
	"time"

	"penstock/internal/cluster"
	"penstock/internal/meta"
	"penstock/internal/node"
	"penstock/replicate"
)

// A leadership goes where an operator orders it, while messages are published, and stays there, also when one of the
// replicas is away. No put fails, and everything that was answered is there afterwards.
func TestClusterTransferLeader(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, func(o *node.Options) {
		o.Cluster.Replicas, o.Cluster.PreferredLeader = 3, cluster.PreferredLeader
	})
	tc.create("t", 1)
	h := newAckLog()
	first := tc.leader("t", 0)
	others := tc.others(first)
	second, third := others[0], others[1]
	stop := tc.startProducer(h, third, "t", "during", never)
	defer stop()
	id := first.row("t", 0).ID
	transfer := func(through, to *testNode, named replicate.NodeID) {
		t.Helper()
		if got, err := through.store.TransferLeader(t.Context(), id, named); err != nil || got != to.e.Node().ID {
			t.Fatalf("to %s: node %d, %v", to.name, got, err)
		}
		tc.eventually(to.name+" leads", func() bool {
			row := third.row("t", 0)
			return row.State.Leader == to.e.Node().ID && row.State.Replicas[0] == to.e.Node().ID && row.TransferTo() == 0
		})
		tc.leader("t", 0)
		tc.awaitMoreAcks(h, 50)
	}
	stays := func(at *testNode) {
		t.Helper()
		for began := time.Now(); time.Since(began) < 3*node.BalanceInterval; {
			if row := third.row("t", 0); row.State.Leader != at.e.Node().ID {
				t.Fatalf("node %d leads, and it was given to %s", row.State.Leader, at.name)
			}
			tc.awaitMoreAcks(h, 1)
		}
	}
	transfer(third, second, second.e.Node().ID)
	transfer(first, first, first.e.Node().ID) // back
	// Two orders cross: the later one counts, and nobody takes the former leader for one that was stranded.
	if _, err := third.store.TransferLeader(t.Context(), id, second.e.Node().ID); err != nil {
		t.Fatal(err)
	}
	transfer(second, third, third.e.Node().ID)
	stays(third)
	transfer(third, first, first.e.Node().ID)

	// One replica is away: an order does not wait for it.
	stop()
	away := second.e.Node().ID
	tc.kill(second)
	tc.eventually("the one that is away has left the ISR", func() bool {
		row, s := first.row("t", 0), first.e.Snapshot()
		return len(row.State.ISR) == 2 && !s.Nodes[away].Live
	})
	stop = tc.startProducer(h, third, "t", "two", never)
	defer stop()
	transfer(first, third, 0)
	stays(third)
	stop()
	tc.start(second)
	tc.awaitInSync("t")
	if s := third.e.Snapshot(); cluster.PreferredLeader(s, id) != third.e.Node().ID {
		t.Error("the one that came back is preferred")
	}
	tc.checkCopies(h, "t", 1)
}

// The leader and the target of a transfer die in between: who is left takes over, and nothing is lost.
func TestClusterTransferToNodeThatDies(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, func(o *node.Options) {
		o.Cluster.Replicas, o.Cluster.PreferredLeader = 3, cluster.PreferredLeader
	})
	tc.create("t", 1)
	h := newAckLog()
	l := tc.leader("t", 0)
	others := tc.others(l)
	target, third := others[0], others[1]
	tc.publishMany(h, l, "t", "before", 100, 50)
	row := l.row("t", 0)
	if _, err := third.store.TransferLeader(t.Context(), row.ID, target.e.Node().ID); err != nil {
		t.Fatal(err)
	}
	tc.kill(target)
	now := tc.leader("t", 0)
	tc.publishMany(h, now, "t", "while it is away", 100, 50)
	tc.start(target)
	tc.awaitInSync("t")
	tc.eventually("the target is still preferred, and leads", func() bool {
		return third.row("t", 0).State.Leader == target.e.Node().ID
	})
	tc.publishMany(h, third, "t", "after", 100, 50)
	tc.checkCopies(h, "t", 1)
	if p := third.row("t", 0); p.Transfer != (meta.Transfer{}) {
		t.Errorf("the row still has the order %+v", p.Transfer)
	}
}
