package node_test

import (
	"context"
	"testing"
	"time"

	"penstock/internal/node"
)

// The last node of a cluster leaves at once: nobody else could lead what it leads, also if the epoch's first batch or a
// put waits for replicas that are gone.
func TestClusterLastNodeLeaves(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(tc *testCluster, m *testNode){
		"the others have left":   (*testCluster).stop,
		"the others were killed": (*testCluster).kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc := newTestCluster(t, 3)
			tc.create("t", 3)
			tc.awaitConnected()
			last := tc.nodes[0]
			for _, m := range tc.others(last) {
				end(tc, m)
			}
			topic := tc.topic(last, "t")
			for n := range 3 {
				put := &node.Put{Messages: [][]byte{[]byte("x")}, Done: func(*node.Put) {}}
				_ = topic.SubmitTo(n, put) // it may be refused
			}
			tc.eventually("the others are gone", func() bool {
				live := 0
				for _, n := range last.e.Snapshot().Nodes {
					if n.Live {
						live++
					}
				}
				return live == 1
			})
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			began := time.Now()
			if err := last.e.Leave(ctx); err != nil {
				t.Errorf("after %v: %v", time.Since(began), err)
			}
		})
	}
}
