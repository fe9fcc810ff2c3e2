//go:build cluster

package cluster

import (
	"context"
	"slices"
	"testing"
	"time"

	"penstock/tests/cluster/harness"
	"penstock/tests/cluster/workload"
)

// four is one node more than the topic has replicas.
func four(ctx context.Context, o harness.Options) (*harness.Cluster, error) {
	o.Nodes, o.Serve = 4, slices.Concat(usual, o.Serve)
	return harness.Dev(ctx, o)
}

// B57, B68: an ordered channel of one partition with a consumer at each node, three of which lead nothing and one of
// which has no replica. Nodes stop and go on, for less and for more than the others wait for them: those in between
// with messages on their way to their clients, and the leader. No client gets a message behind a later one.
//
// The node without a replica shows whether late messages are held back: while it stands still, confirmations are
// committed and the channel goes on. It stops for longer than a message waits for its FIN, and for less than its lease
// and its connections last: then it goes on with a message in its socket that another client has had since.
func TestPauseInBetween(t *testing.T) {
	const short = 1500 * time.Millisecond
	s := prepare(t, four, harness.Options{Serve: []string{"--default-partitions", "1", "--msg-timeout", "1s"}})
	s.options.Ordered = []string{"a"}
	s.try(harness.Post(s.within(startTimeout), s.c.Nodes[0].HTTP, "/channel/settings?topic="+topic+"&channel=a",
		map[string]any{"order": "partition"}, nil))
	for _, n := range s.c.Nodes {
		s.run.Consume(workload.Consumer{Name: "at-" + n.Name, Channel: "a", Patient: true, Fixed: []string{n.NSQ}, Ready: 3})
	}
	s.run.Consume(workload.Consumer{Name: "c-b", Channel: "b"})
	for i, n := range s.c.Nodes {
		s.run.Produce(workload.Producer{
			Name: "p-" + n.Name, Addresses: rotated(s.run.Nodes, i), PerSecond: 20, AnswerTimeout: answerTimeout,
		})
	}
	s.acks(60)
	leader := func() *harness.Node { return s.leader(0) }
	for _, stop := range []struct {
		node func() *harness.Node
		d    time.Duration
	}{
		{s.outsider, short},
		{s.outsider, short},
		{s.outsider, short},
		{s.following, 2500 * time.Millisecond},
		{s.outsider, 6 * time.Second},
		{leader, 4 * time.Second},
		{s.following, 5 * time.Second},
	} {
		s.healthy()
		n := stop.node()
		heal := s.fault("pause", n.Name, n.Pause)
		s.pass(stop.d)
		heal(n.Resume)
		s.acks(60)
	}
	s.healthy()
	s.drain = time.Minute
	s.finish()
}

// following is a follower of the topic's first partition.
func (s *scenario) following() *harness.Node {
	s.t.Helper()
	all, err := s.c.Followers(s.within(startTimeout), topic, 0)
	s.try(err)
	return all[int(s.faults)%len(all)]
}

// outsider is the node that has no replica of the topic's first partition.
func (s *scenario) outsider() *harness.Node {
	s.t.Helper()
	inside, err := s.c.Followers(s.within(startTimeout), topic, 0)
	s.try(err)
	inside = append(inside, s.leader(0))
	i := slices.IndexFunc(s.c.Nodes, func(n *harness.Node) bool { return !slices.Contains(inside, n) })
	if i < 0 {
		s.t.Fatal("every node has a replica")
	}
	return s.c.Nodes[i]
}
