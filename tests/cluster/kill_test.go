//go:build cluster

package cluster

import (
	"errors"
	"testing"
	"time"

	"penstock/tests/cluster/harness"
	"penstock/tests/cluster/history"
	"penstock/tests/cluster/workload"
)

func (s *scenario) follower(partition uint32) *harness.Node {
	s.t.Helper()
	all, err := s.c.Followers(s.within(startTimeout), topic, partition)
	s.try(err)
	if len(all) == 0 {
		s.t.Fatalf("partition %d has no followers", partition)
	}
	return all[s.faults%uint64(len(all))]
}

func (s *scenario) controller() *harness.Node {
	s.t.Helper()
	n, err := s.c.Controller(s.within(startTimeout))
	s.try(err)
	return n
}

// lateChannel starts a consumer whose channel is made in the middle of the run: from then on it is owed everything
// (B71).
func (s *scenario) lateChannel() {
	s.run.Consume(workload.Consumer{Name: "c-late", Channel: "late", Creates: true})
}

// failsOver holds that nobody waited longer than limit: every producer publishes to all partitions in turn, so each of
// them has to do with the dead leader. What it had under way there may cost it its answerTimeout.
func failsOver(t *testing.T, r *history.Report, limit time.Duration) {
	t.Helper()
	for _, w := range r.Windows {
		if w.First < 0 || w.Stall > limit {
			t.Errorf("%s of %s: a producer was not answered for %v, allowed are %v", w.Kind, w.Node, w.Stall, limit)
		}
	}
}

// B17, B81, B84: the leader dies under load, again and again. Nothing acknowledged is lost, also on a channel that was
// made between two deaths, and it is acknowledged again soon.
func TestKillLeader(t *testing.T) {
	s := begin(t, three, harness.Options{})
	for round := range 4 {
		if round == 1 {
			s.lateChannel()
		}
		s.crash("kill leader", s.leader(uint32(round%3)), func() { s.acks(500) })
		s.healthy()
		s.acks(200)
	}
	failsOver(t, s.finish(), 2*time.Second+answerTimeout)
}

// B11, B17: a follower dies; writes go on without it, and it comes back.
func TestKillFollower(t *testing.T) {
	s := begin(t, three, harness.Options{})
	for round := range 3 {
		s.crash("kill follower", s.follower(uint32(round)), func() { s.acks(500) })
		s.healthy()
	}
	s.finish()
}

// B17, B85: who decides dies; somebody else decides.
func TestKillController(t *testing.T) {
	s := begin(t, three, harness.Options{})
	for range 3 {
		s.crash("kill controller", s.controller(), func() { s.acks(500) })
		s.healthy()
	}
	s.finish()
}

// B17: all nodes die at once and come back with everything.
func TestKillAll(t *testing.T) {
	s := begin(t, three, harness.Options{})
	for range 3 {
		heal := s.fault("kill all", "", s.killAll)
		heal(s.startAll)
		s.acks(500)
		s.healthy()
	}
	s.finish()
}

func (s *scenario) killAll() error {
	errs := make(chan error, len(s.c.Nodes))
	for _, n := range s.c.Nodes {
		go func() { errs <- n.Kill() }()
	}
	var all []error
	for range s.c.Nodes {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

func (s *scenario) startAll() error {
	ctx := s.within(startTimeout)
	for _, n := range s.c.Nodes {
		if err := n.Start(); err != nil {
			return err
		}
	}
	for _, n := range s.c.Nodes {
		if err := n.Ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// B17, P3: the leader is killed and restarted at once, within its lease. It comes back with less than its followers
// have, and must not make them forget it.
func TestKillAndRestartLeaderAtOnce(t *testing.T) {
	s := begin(t, three, harness.Options{})
	for round := range 6 {
		s.crash("kill and restart leader", s.leader(uint32(round%3)), func() {})
		s.acks(300)
		s.healthy()
	}
	s.finish()
}

// B17: two of three die. What is left takes no writes, and delivers nothing that could be taken back; nothing is lost.
func TestKillTwo(t *testing.T) {
	s := begin(t, three, harness.Options{})
	a, b := s.c.Nodes[0], s.c.Nodes[1]
	heal := s.fault("kill two", a.Name+" and "+b.Name, func() error { return errors.Join(a.Kill(), b.Kill()) })
	s.pass(2 * time.Second) // what was under way comes to its end
	before := s.run.Acked()
	s.pass(3 * time.Second)
	if now := s.run.Acked(); now != before {
		t.Errorf("%d values were acknowledged by one node of three", now-before)
	}
	heal(func() error { return errors.Join(s.restart(a)(), s.restart(b)()) })
	s.acks(500)
	s.healthy()
	s.finish()
}
