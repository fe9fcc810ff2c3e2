package node_test

import (
	"testing"

	"penstock/internal/node"
	"penstock/internal/node/fold"
)

// A node that does not lead a partition any more delivers no message of it, even while another operation on the topic
// keeps its channel from being ended. Before this was so, messages that its consumer requeued came again while the next
// leader was further on.
//
// B57.
func TestClusterOutlivedChannelIsSilent(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	c := tc.channel("t", "c")
	configureChannel(t, c, func(s *fold.ChannelSettings) { s.Order = fold.OrderPartition })
	old := tc.leader("t", 0)
	publish(t, tc.topic(old, "t"), numbered("m", 3, 0)...)
	was := subscribe(t, tc.channelAt(old, "t", "c"), 5)
	m := was.next()
	release := node.HoldChanges(old.e, "t")
	defer func() { release() }()
	tc.drainNode(old, "t")
	tc.eventually("somebody else leads", func() bool { return tc.leader("t", 0) != old })
	is := subscribe(t, tc.channelAt(tc.leader("t", 0), "t", "c"), 5)
	if got := is.take(3); got[0] != "m0" || got[2] != "m2" {
		t.Errorf("the new leader delivered %v", got)
	}
	if err := was.Requeue(m.id, 0); err != nil {
		t.Fatalf("requeue on the old channel: %v", err)
	}
	was.Pump()
	was.expectNothing("the old leader's channel")
	release()
	release = func() {}
	eventually(t, "the consumer of the old leader is told", func() bool {
		was.mu.Lock()
		defer was.mu.Unlock()
		return was.closes > 0
	})
}
