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
	// grace is how long a resumed process is watched, onTheWay is how long what it had handed to the kernel before may
	// take.
	grace    = time.Second
	onTheWay = 100 * time.Millisecond
)

// B83: a leader stops for longer than its lease and goes on. Others have taken over; the old one acknowledges nothing
// on its own, and a client that never left it gets only what the new leaders have.
func TestPauseLeader(t *testing.T) {
	s := begin(t, three, harness.Options{})
	for round := range 3 {
		n := s.leader(uint32(round))
		stays := s.stay(n)
		heal := s.fault("pause leader", n.Name, n.Pause)
		paused := s.run.Recorder.Now()
		s.pass(lease)
		s.try(s.c.Led(s.within(startTimeout), n.Name))
		s.acks(300)
		heal(n.Resume)
		resumed := s.run.Recorder.Now()
		s.oldLeaderIsQuiet(stays, paused, resumed+onTheWay, s.watchReturn(n))
		s.acks(300)
		s.healthy()
	}
	failsOver(t, s.finish(), lease+2*time.Second+answerTimeout)
}

// stay subscribes with a client that stays with one node whatever happens, and returns its name.
func (s *scenario) stay(n *harness.Node) string {
	name := "stays-" + n.Name + "-" + string(rune('a'+s.faults))
	s.run.Consume(workload.Consumer{Name: name, Channel: "a", Patient: true, Fixed: []string{n.NSQ}})
	return name
}

// watchReturn waits for grace and returns when, before that, the node began to lead something again: from then on it
// may deliver.
func (s *scenario) watchReturn(n *harness.Node) time.Duration {
	s.t.Helper()
	for end := s.run.Recorder.Now() + grace; s.run.Recorder.Now() < end; s.pass(10 * time.Millisecond) {
		before := s.run.Recorder.Now()
		all, err := s.c.Topics(s.within(startTimeout))
		s.try(err)
		for _, t := range all.Topics {
			for _, p := range t.Partitions {
				if p.Leader == n.Name {
					return before - 100*time.Millisecond // when the last look found nothing, and some more
				}
			}
		}
	}
	return s.run.Recorder.Now()
}

// oldLeaderIsQuiet holds that the connection that was open during the pause brought nothing of the old leader's own
// after it, but for what was on its way: between from and until the node led nothing, and handed on only what was
// published at the new leaders, after it was paused.
func (s *scenario) oldLeaderIsQuiet(client string, paused, from, until time.Duration) {
	s.t.Helper()
	type value struct {
		client string
		seq    uint64
	}
	before := map[value]bool{}
	for _, e := range s.run.Recorder.Events() {
		switch {
		case e.Op == history.Publish && e.At < paused:
			for i := range max(e.Count, 1) {
				before[value{e.Client, e.Seq + i}] = true
			}
		case e.Client == client && e.Conn == 1 && e.Op == history.Deliver && e.At > from && e.At < until &&
			before[value{e.From, e.Seq}]:
			s.t.Errorf(
				"it was published before its node was paused at %v; the node led nothing from %v to %v, and delivered: %v",
				paused, from-onTheWay, until, e)
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
