package node_test

import (
	"testing"
	"time"

	"penstock/internal/cluster"
	"penstock/internal/node"
)

// A leader that gives its leadership away, because it leaves in order or because an operator wants another one, first
// writes what its consumers have finished: the new leader delivers none of it again.
func TestHandOverKeepsConfirmations(t *testing.T) {
	t.Parallel()
	for name, handOver := range map[string]func(tc *testCluster, leader *testNode){
		"leave": func(tc *testCluster, leader *testNode) { tc.stop(leader) },
		"transfer": func(tc *testCluster, leader *testNode) {
			to := tc.others(leader)[0]
			if _, err := leader.store.TransferLeader(tc.t.Context(), leader.row("t", 0).ID, to.e.Node().ID); err != nil {
				tc.t.Fatal(err)
			}
			tc.eventually("both know that "+to.name+" leads", func() bool {
				return to.row("t", 0).State.Leader == to.e.Node().ID && leader.row("t", 0).State.Leader == to.e.Node().ID
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc := newTestCluster(t, 3, func(o *node.Options) {
				o.ConfirmInterval = time.Hour
				o.Cluster.Replicas, o.Cluster.PreferredLeader = 3, cluster.PreferredLeader
			})
			tc.create("t", 1)
			c := tc.channel("t", "c")
			leader := tc.leader("t", 0)
			s := subscribe(t, c, 100)
			publish(t, c.Topic(), numbered("m", 50, 0)...)
			finished := map[node.ID]bool{}
			for i := range 50 {
				if m := s.next(); i < 40 {
					finished[m.id] = true
					s.finish(m)
				}
			}
			handOver(tc, leader)
			tc.leader("t", 0)
			got := readAll(t, tc.channel("t", "c"))
			for id := range got {
				if finished[id] {
					t.Errorf("message %v was finished and comes again", id)
				}
			}
			if len(got) < 10 {
				t.Errorf("%d of 10 messages that were not finished came", len(got))
			}
		})
	}
}
