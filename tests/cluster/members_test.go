//go:build cluster

package cluster

import (
	"context"
	"slices"
	"strings"
	"testing"

	"penstock/tests/cluster/harness"
)

// five is a cluster whose nodes are all members of etcd.
func five(ctx context.Context, o harness.Options) (*harness.Cluster, error) {
	o.Nodes, o.Serve = 5, slices.Concat(usual, o.Serve)
	return harness.Dev(ctx, o)
}

// The list of peers shrinks from five to three, and grows again: the members of etcd follow it, under load.
func TestMembersFollowTheList(t *testing.T) {
	s := begin(t, five, harness.Options{})
	first := s.c.Nodes[0].Args
	whole := first[slices.Index(first, "--cluster-peers")+1]
	three := strings.Join(strings.Split(whole, ",")[:3], ",")
	restart := func(list string, which ...*harness.Node) {
		for _, n := range which {
			n.Args = slices.Clone(n.Args)
			n.Args[slices.Index(n.Args, "--cluster-peers")+1] = list
			heal := s.fault("gets another list", n.Name, func() error { return n.Terminate(stopTimeout) })
			s.try(n.Restart(s.within(startTimeout)))
			heal(func() error { return nil })
			s.healthy()
			s.acks(200)
		}
	}
	stay, leave := s.c.Nodes[:3], s.c.Nodes[3:]
	restart(three, stay...)
	restart(three, leave...)
	for _, n := range leave {
		log := n.LogTail(64 << 10)
		if !strings.Contains(log, "this node runs no etcd member any more") {
			t.Errorf("%s does not say that it has left", n.Name)
		}
	}
	heal := s.fault("kill", stay[0].Name, stay[0].Kill) // two of three go on
	s.acks(100)
	heal(s.restart(stay[0]))
	s.healthy()

	restart(whole, stay...)
	restart(whole, leave...)
	for _, n := range stay[1:] { // three of five go on
		s.try(n.Kill())
	}
	s.acks(100)
	for _, n := range stay[1:] {
		s.try(n.Restart(s.within(startTimeout)))
	}
	s.healthy()
	s.options.LivenessLimit = maxSwitchGap
	s.finish()
}
