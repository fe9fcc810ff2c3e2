//go:build cluster

package cluster

import (
	"testing"
	"time"

	"penstock/tests/cluster/harness"
	"penstock/tests/cluster/workload"
)

// B57, B68: an ordered channel of one partition with a consumer at each node, two of which lead nothing. Nodes stop and go on, for less and for more than the others wait for
// them: those in between with messages on their way to their clients, and the leader. No client gets a message behind a later one.
func TestPauseInBetween(t *testing.T) {
	s := prepare(t, three, harness.Options{Serve: []string{"--default-partitions", "1"}})
	s.options.Ordered = []string{"a"}
	s.try(harness.Post(s.within(startTimeout), s.c.Nodes[0].HTTP, "/channel/settings?topic="+topic+"&channel=a", map[string]any{"order": "partition"}, nil))
	for _, n := range s.c.Nodes {
		s.run.Consume(workload.Consumer{Name: "at-" + n.Name, Channel: "a", Patient: true, Fixed: []string{n.NSQ}, Ready: 3})
	}
	s.run.Consume(workload.Consumer{Name: "c-b", Channel: "b"})
	for i, n := range s.c.Nodes {
		s.run.Produce(workload.Producer{Name: "p-" + n.Name, Addresses: rotated(s.run.Nodes, i), PerSecond: 20, AnswerTimeout: answerTimeout})
	}
	s.acks(60)
	for round, d := range []time.Duration{time.Second, 2500 * time.Millisecond, 6 * time.Second, 4 * time.Second, 5 * time.Second} {
		s.healthy()
		n := s.leader(0)
		if round != 3 {
			n = s.following(n, round)
		}
		heal := s.fault("pause", n.Name, n.Pause)
		s.pass(d)
		heal(n.Resume)
		s.acks(60)
	}
	s.healthy()
	s.drain = time.Minute
	s.finish()
}

// following is one of the nodes that do not lead.
func (s *scenario) following(leader *harness.Node, round int) *harness.Node {
	s.t.Helper()
	var all []*harness.Node
	for _, n := range s.c.Nodes {
		if n != leader {
			all = append(all, n)
		}
	}
	return all[round%len(all)]
}
