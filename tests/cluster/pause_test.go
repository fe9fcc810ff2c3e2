//go:build cluster

package cluster

import (
	"testing"
	"time"

	"penstock/tests/cluster/harness"
	"penstock/tests/cluster/history"
	"penstock/tests/cluster/workload"
)

const (
	// lease is how long a silent leader may keep its place, by default.
	lease = 3 * time.Second
	// grace is what a resumed process may need to see that its lease is over: deliveries that it had handed to the kernel before.
	grace = time.Second
)

// B83: a leader stops for longer than its lease and goes on. Others have taken over; the old one acknowledges nothing on its own, and
// delivers nothing to a client that never left it.
func TestPauseLeader(t *testing.T) {
	s := begin(t, three, harness.Options{})
	for round := range 3 {
		n := s.leader(uint32(round))
		stays := s.stay(n)
		heal := s.fault("pause leader", n.Name, n.Pause)
		s.pass(lease)
		s.try(s.c.Led(s.within(startTimeout), n.Name))
		s.acks(300)
		heal(n.Resume)
		resumed := s.run.Recorder.Now()
		s.acks(300)
		s.pass(grace)
		s.oldLeaderIsQuiet(n.Name, stays, resumed)
		s.healthy()
	}
	failsOver(t, s.finish(), lease+2*time.Second)
}

// stay subscribes with a client that stays with one node whatever happens, and returns its name.
func (s *scenario) stay(n *harness.Node) string {
	name := "stays-" + n.Name + "-" + string(rune('a'+s.faults))
	s.run.Consume(workload.Consumer{Name: name, Channel: "a", Patient: true, Fixed: []string{n.NSQ}})
	return name
}

// oldLeaderIsQuiet holds that the connection that was open during the pause brought nothing after it, but for what was on its way.
func (s *scenario) oldLeaderIsQuiet(node, client string, resumed time.Duration) {
	s.t.Helper()
	for _, e := range s.run.Recorder.Events() {
		if e.Client == client && e.Conn == 1 && e.Op == history.Deliver && e.At > resumed+grace/2 {
			s.t.Errorf("%s was not leader any more and delivered: %v", node, e)
			return
		}
	}
}

// B83: all stop at once, longer than every lease, and go on: a machine that was suspended.
func TestPauseAll(t *testing.T) {
	s := begin(t, three, harness.Options{})
	heal := s.fault("pause all", "", func() error {
		for _, n := range s.c.Nodes {
			if err := n.Pause(); err != nil {
				return err
			}
		}
		return nil
	})
	s.pass(lease + time.Second)
	heal(func() error {
		for _, n := range s.c.Nodes {
			if err := n.Resume(); err != nil {
				return err
			}
		}
		return nil
	})
	s.acks(500)
	s.healthy()
	s.finish()
}
