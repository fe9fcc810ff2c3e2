package node_test

import (
	"testing"
)

// What monitoring reads follows a node that ends and comes back: each partition counts at its leader, once, as
// under-replicated for that time, and the lag of the node that is gone grows.
func TestClusterMeter(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 3)
	tc.awaitInSync("t")
	inState := func(inSync, under, led int) func() bool {
		return func() bool {
			gotInSync, gotUnder, gotLed := 0, 0, 0
			for _, m := range tc.running() {
				s := m.e.ClusterMeter()
				gotInSync, gotUnder, gotLed = gotInSync+s.InSync, gotUnder+s.UnderReplicated, gotLed+s.Led()
			}
			return gotInSync == inSync && gotUnder == under && gotLed == led
		}
	}
	tc.eventually("three partitions in sync", inState(3, 0, 3))
	l := tc.leader("t", 0)
	if n := l.e.Counters().LeaderChanges.Load(); n == 0 {
		t.Error("a node leads, and counts no leadership")
	}
	if s := l.e.ClusterMeter(); !s.Leased || s.LeaseLeft <= 0 || len(s.Peers) != 2 || !s.Peers[0].Up {
		t.Errorf("a node of a healthy cluster shows %+v", s)
	}
	tc.kill(l)
	tc.eventually("three partitions under-replicated", inState(0, 3, 3))
	h := newAckLog()
	tc.publishReplicated(h, 10)
	tc.eventually("the lag of the node that is gone", func() bool {
		for _, m := range tc.running() {
			for _, p := range m.e.ClusterMeter().Peers {
				if p.Name == l.name && !p.Up && p.Lag > 0 && p.LagBytes > 0 {
					return true
				}
			}
		}
		return false
	})
	tc.start(l)
	tc.awaitInSync("t")
	tc.eventually("three partitions in sync again", inState(3, 0, 3))
}
