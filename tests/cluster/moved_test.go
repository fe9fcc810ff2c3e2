//go:build cluster

package cluster

import (
	"testing"
	"time"

	"penstock/tests/cluster/harness"
)

// All nodes get new addresses while they are stopped: other hosts first, other ports only the second time, and the
// third time they are killed while they find each other, and get others again.
func TestAllNodesMove(t *testing.T) {
	s := begin(t, four, harness.Options{})
	stopAll := func() {
		for _, n := range s.c.Nodes {
			s.try(n.Kill())
		}
	}
	startAll := func() {
		for _, n := range s.c.Nodes {
			s.try(n.Start())
		}
	}
	for round, host := range []string{"127.0.0.2", "127.0.0.2", "127.0.0.3"} {
		heal := s.fault("all nodes move", "n1", func() error { stopAll(); return nil })
		move := func(host string) {
			for _, n := range s.c.Nodes {
				s.try(s.c.Move(n, host, s.c.Nodes...))
			}
		}
		move(host)
		startAll()
		for i := range 3 {
			if round < 2 {
				break
			}
			s.pass(time.Duration(i) * 300 * time.Millisecond) // any moment will do
			stopAll()
			move("127.0.0.4")
			startAll()
		}
		for _, n := range s.c.Nodes {
			s.try(n.Ready(s.within(startTimeout)))
		}
		heal(func() error { return nil })
		s.healthy()
		s.acks(300)
	}
	s.options.LivenessLimit = maxSwitchGap
	s.finish()
}

// The nodes move one after the other. Each one is told the addresses that will hold at the end, so it finds the others
// only at those that it knew before; the node without etcd moves last, and has the old list until then.
func TestNodesMoveOneByOne(t *testing.T) {
	s := begin(t, four, harness.Options{})
	args := map[*harness.Node][]string{}
	for _, n := range s.c.Nodes { // the new arguments of each, which it gets when its turn comes
		s.try(s.c.Move(n, "127.0.0.2", s.c.Nodes...))
	}
	for _, n := range s.c.Nodes {
		args[n] = n.Args
	}
	for _, n := range s.c.Nodes {
		heal := s.fault("moves", n.Name, func() error { return n.Terminate(stopTimeout) })
		n.Args = args[n]
		s.try(n.Restart(s.within(startTimeout)))
		heal(func() error { return nil })
		s.healthy()
		s.acks(300)
	}
	for _, n := range s.c.Nodes { // the cluster stands a fault of each
		heal := s.fault("kill", n.Name, n.Kill)
		s.acks(100)
		heal(s.restart(n))
		s.healthy()
	}
	s.options.LivenessLimit = maxSwitchGap
	s.finish()
}
