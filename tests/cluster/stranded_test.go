//go:build cluster

package cluster

import (
	"slices"
	"testing"
	"time"

	"penstock/tests/cluster/harness"
)

// strandedBound is within what time a partition must take messages again whose leader reaches the store and too few
// replicas: 5 s (replicate.DefaultStrandedNs) until it gives way, and the rest for a busy machine.
const strandedBound = 45 * time.Second

// takenOver waits until another node than the leader before leads, and the load goes on there. The topic has one
// partition.
func (s *scenario) takenOver(before *harness.Node, began time.Time) *harness.Node {
	s.t.Helper()
	for s.leader(0) == before {
		if time.Since(began) > strandedBound {
			s.t.Fatalf("%s leads after %v, and reaches nobody", before.Name, strandedBound)
		}
		s.pass(20 * time.Millisecond)
	}
	s.acks(300)
	if gap := time.Since(began); gap > strandedBound {
		s.t.Errorf("messages were taken again after %v", gap)
	} else {
		s.t.Logf("another node led and took messages after %v", gap.Round(time.Millisecond))
	}
	return s.leader(0)
}

// keeps is load for some time in which a node has to go on leading.
func (s *scenario) keeps(n *harness.Node, d time.Duration) {
	s.t.Helper()
	for began := time.Now(); time.Since(began) < d; s.acks(50) {
		if l := s.leader(0); l != n {
			s.t.Fatalf("%s leads, and reaches fewer replicas than %s", l.Name, n.Name)
		}
	}
}

// A leader is cut off from its followers and not from the store: its lease lives, so nobody else is elected. It gives
// way within seconds, and nothing that was acknowledged is lost.
func TestStrandedLeader(t *testing.T) {
	needNet(t)
	s := begin(t, spread, harness.Options{Serve: []string{"--default-partitions", "1"}})
	for range 2 { // another node's turn
		lead := s.leader(0)
		began := time.Now()
		heal := s.fault("leader without followers", lead.Name, func() error {
			return s.c.Net.Split([]int{s.place(lead)}, s.others(lead), harness.Data)
		})
		s.keeps(s.takenOver(lead, began), lease)
		heal(s.c.Net.Heal)
		s.acks(100)
		s.healthy()
	}
	s.finish()
}

// min_isr is the number of replicas, and the leader does not reach one of the two others; the third reaches both. The
// leader gives way to that one, and as it is in the ISR and the first replica all the time, nothing but the new
// leader's memory keeps it from leading again.
func TestStrandedLeaderIsNotPreferred(t *testing.T) {
	needNet(t)
	s := prepare(t, spread, harness.Options{Serve: []string{"--default-partitions", "1"}})
	settings := map[string]any{"version": 0, "min_isr": 3}
	s.try(harness.Post(s.within(startTimeout), s.c.Nodes[0].HTTP, "/topic/settings?topic="+topic, settings, nil))
	s.load()
	s.acks(200)
	p, err := s.c.Partition(s.within(startTimeout), topic, 0)
	s.try(err)
	lead := s.c.Node(p.Replicas[0])
	for s.leader(0) != lead {
		s.pass(100 * time.Millisecond)
	}
	cut := s.c.Node(p.Replicas[1])
	began := time.Now()
	heal := s.fault("leader without a follower", lead.Name, func() error {
		return s.c.Net.Split([]int{s.place(lead)}, []int{slices.Index(s.c.Nodes, cut)}, harness.Data)
	})
	// some times the interval in which leaderships move to who should have them
	s.keeps(s.takenOver(lead, began), 10*time.Second)
	heal(s.c.Net.Heal)
	s.acks(100)
	s.healthy()
	s.finish()
}
