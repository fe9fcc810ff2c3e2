package node_test

import (
	"maps"
	"slices"
	"testing"

	"penstock/internal/cluster"
	"penstock/internal/meta"
	"penstock/internal/node"
)

// A node that joins gets its share of replicas and leaderships when an operator wants that, while messages are
// published. No put fails, and everything that was answered is there afterwards.
func TestClusterRebalance(t *testing.T) {
	t.Parallel()
	tc := prepareTestCluster(t, 4, func(o *node.Options) {
		o.Cluster.Replicas, o.Cluster.PreferredLeader = 2, cluster.PreferredLeader
	})
	late := tc.nodes[3]
	for _, m := range tc.nodes[:3] {
		tc.start(m)
	}
	const partitions = 6
	tc.create("t", partitions)
	first := tc.nodes[0]
	h := newAckLog()
	tc.publishMany(h, first, "t", "before", 500, 200)
	stop := tc.startProducer(h, first, "t", "during", never)
	defer stop()
	tc.start(late)
	tc.eventually("the node that joins is alive", func() bool {
		n := first.e.Snapshot().Nodes[late.e.Node().ID]
		return n != nil && n.Live
	})
	if err := first.store.Rebalance(t.Context(), meta.RebalanceStart); err != nil {
		t.Fatal(err)
	}
	tc.eventually("the rebalance has ended", func() bool {
		s := first.e.Snapshot()
		return !s.Rebalance.Wanted && len(s.Moves) == 0
	})
	held := 0
	for n := range partitions {
		if slices.Contains(first.row("t", n).State.Replicas, late.e.Node().ID) {
			held++
		}
	}
	if held != 2*partitions/4 {
		t.Errorf("the node that has joined holds %d of %d replicas", held, 2*partitions)
	}
	tc.awaitMoreAcks(h, 50)
	stop()
	stored := map[node.ID]string{}
	for n := range partitions {
		c, err := node.CopyOf(tc.leader("t", n).e, "t", n)
		if err != nil {
			t.Fatal(err)
		}
		all, err := c.Messages(n)
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(stored, all)
	}
	h.check(t, stored)
}
