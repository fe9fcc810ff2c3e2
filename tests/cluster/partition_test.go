//go:build cluster

package cluster

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/tests/cluster/harness"
)

// spread is three nodes in network namespaces of their own.
func spread(ctx context.Context, o harness.Options) (*harness.Cluster, error) {
	o.Nodes, o.Serve = 3, slices.Concat(usual, o.Serve)
	return harness.Spread(ctx, o)
}

func needNet(t *testing.T) {
	t.Helper()
	if err := harness.NetMissing(); err != nil {
		t.Skipf("this machine cannot cut networks: %v", err)
	}
}

// place is a node's number.
func (s *scenario) place(n *harness.Node) int { return slices.Index(s.c.Nodes, n) }

// others are the numbers of all other nodes.
func (s *scenario) others(n *harness.Node) []int {
	var all []int
	for i, o := range s.c.Nodes {
		if o != n {
			all = append(all, i)
		}
	}
	return all
}

// cut loses packets for as long as a lease and some more, under load.
func (s *scenario) cut(kind, node string, cut func() error) {
	s.t.Helper()
	heal := s.fault(kind, node, cut)
	s.pass(2 * lease)
	heal(s.c.Net.Heal)
	s.acks(300)
	s.healthy()
}

// B83, B84, P7: the network falls apart in each of the ways in which it does. Clients reach every node all the time, so
// whoever is on the wrong side is asked to publish and to deliver.
func TestPartitions(t *testing.T) {
	needNet(t)
	s := begin(t, spread, harness.Options{})
	network := s.c.Net
	lead := s.leader(0)
	s.cut("leader isolated", lead.Name, func() error {
		return network.Split([]int{s.place(lead)}, s.others(lead), harness.All)
	})
	lead = s.leader(1)
	s.cut("leader without metadata", lead.Name, func() error {
		return network.Split([]int{s.place(lead)}, s.others(lead), harness.Metadata)
	})
	lead = s.leader(2)
	s.cut("leader without followers", lead.Name, func() error {
		return network.Split([]int{s.place(lead)}, s.others(lead), harness.Data)
	})
	lead = s.leader(0)
	s.cut("leader hears nothing", lead.Name, func() error {
		for _, i := range s.others(lead) {
			if err := network.Cut(i, s.place(lead), harness.All); err != nil {
				return err
			}
		}
		return nil
	})
	lead = s.leader(1)
	s.cut("leader is not heard", lead.Name, func() error {
		for _, i := range s.others(lead) {
			if err := network.Cut(s.place(lead), i, harness.All); err != nil {
				return err
			}
		}
		return nil
	})
	s.cut("ring: each hears one", "", func() error {
		for i := range s.c.Nodes {
			if err := network.Cut(i, (i+1)%len(s.c.Nodes), harness.All); err != nil {
				return err
			}
		}
		return nil
	})
	s.finish()
}

// P24: nobody reaches the metadata, for longer than every lease: publishing stops, and nothing else happens. It comes
// back by itself.
func TestMetadataLost(t *testing.T) {
	needNet(t)
	s := begin(t, spread, harness.Options{})
	all := []int{0, 1, 2}
	heal := s.fault("metadata lost", "", func() error { return s.c.Net.Split(all, all, harness.Metadata) })
	s.pass(2*lease + time.Second)
	before := s.run.Acked()
	s.pass(lease)
	if now := s.run.Acked(); now != before {
		t.Errorf("%d values were acknowledged by leaders whose lease is over", now-before)
	}
	heal(s.c.Net.Heal)
	s.acks(500)
	s.healthy()
	s.finish()
}

// One of three holders of the metadata is away: nobody notices who is not led by it.
func TestMetadataMemberLost(t *testing.T) {
	needNet(t)
	s := begin(t, spread, harness.Options{})
	n := s.follower(0)
	s.cut("one without metadata", n.Name, func() error {
		return s.c.Net.Split([]int{s.place(n)}, s.others(n), harness.Metadata)
	})
	s.finish()
}

// Two of three members of the metadata store cannot reach each other, and both reach the third. Nothing stops, and no
// node is dead; but each of the two says it on the surfaces that docs/reference/states.md names, until it is over.
func TestMetadataMembersApart(t *testing.T) {
	needNet(t)
	s := begin(t, spread, harness.Options{})
	pair := s.c.Nodes[:2]
	heal := s.fault("members apart", "", func() error { return s.c.Net.Split([]int{0}, []int{1}, harness.Metadata) })
	for i, n := range pair {
		s.says(n, "/health", "the etcd member on this node cannot reach "+pair[1-i].Name+" (", true)
		s.says(n, "/cluster/status?faults=1", "store_members_apart", true)
		s.says(n, "/metrics", "penstock_store_members_apart 1\n", true)
	}
	s.acks(300)
	heal(s.c.Net.Heal)
	for _, n := range pair {
		s.says(n, "/health", "cannot reach", false)
		s.says(n, "/metrics", "penstock_store_members_apart 0\n", true)
	}
	s.healthy()
	s.finish()
}

// says waits until a node's answer has the words, or has them no more.
func (s *scenario) says(n *harness.Node, path, words string, want bool) {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; s.pass(100 * time.Millisecond) {
		answer := s.answer(n, path)
		if strings.Contains(answer, words) == want {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s%s says %q: %v, want %v:\n%s", n.Name, path, words, !want, want, answer)
		}
	}
}
