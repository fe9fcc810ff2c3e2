package node_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/errs"
	"penstock/netproto"
)

// channelAt returns a channel at a node, which must know it.
func (tc *testCluster) channelAt(m *testNode, topic, name string) *node.Channel {
	tc.t.Helper()
	var c *node.Channel
	tc.eventually(fmt.Sprintf("%s has channel %s of %s", m.name, name, topic), func() (ok bool) {
		t, known := m.e.Catalog().LookupTopic(topic)
		if known {
			c, ok = t.LookupChannel(name)
		}
		return ok
	})
	return c
}

// waitConfirmed waits until the FINs are stored: nothing more is written to the topic's log.
func waitConfirmed(t *testing.T, tc *testCluster, topic string) {
	t.Helper()
	last := tc.awaitEqualCopies(topic, 0)
	for quiet := time.Now(); time.Since(quiet) < 20*time.Millisecond; {
		if c := tc.awaitEqualCopies(topic, 0); c.End != last.End {
			last, quiet = c, time.Now()
		}
	}
}

func values(m map[node.ID]string) (all []string) {
	for _, v := range m {
		all = append(all, v)
	}
	return all
}

// An operation on a channel or a topic through any node takes effect at every leader of its partitions, and is still in
// effect after these leaders have died.
//
// B52, B53, B70, B72.
func TestClusterOperations(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 3)
	tc.leaders("t") // each node leads one
	from := tc.nodes[0]
	topic := tc.topic(from, "t")
	for _, name := range []string{"emptied", "paused", "deleted"} {
		if _, err := topic.CreateChannel(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	publish(t, topic, numbered("m", 30, 0)...)
	for _, m := range tc.nodes {
		for _, name := range []string{"emptied", "paused", "deleted"} {
			tc.eventually("the channel has its messages", func() bool {
				return channelStats(t, tc.channelAt(m, "t", name)).Depth == 10
			})
		}
	}
	if err := tc.channelAt(from, "t", "emptied").Empty(t.Context()); err != nil {
		t.Error(err)
	}
	if err := tc.channelAt(from, "t", "paused").Pause(t.Context()); err != nil {
		t.Error(err)
	}
	if err := topic.DeleteChannel(t.Context(), "deleted"); err != nil {
		t.Error(err)
	}
	check := func(m *testNode, depth int64) {
		t.Helper()
		if st := channelStats(t, tc.channelAt(m, "t", "emptied")); st.Depth != 0 {
			t.Errorf("%s: the emptied channel has %d", m.name, st.Depth)
		}
		if st := channelStats(t, tc.channelAt(m, "t", "paused")); st.Depth != depth || !st.Paused {
			t.Errorf("%s: the paused channel: %+v", m.name, st)
		}
		if _, ok := tc.topic(m, "t").LookupChannel("deleted"); ok {
			t.Errorf("%s: the deleted channel is there", m.name)
		}
	}
	for _, m := range tc.nodes {
		check(m, 10)
	}
	for n := range 3 {
		tc.awaitEqualCopies("t", n)
	}
	gone := tc.nodes[2]
	tc.kill(gone)
	for n := range 3 {
		tc.leader("t", n)
	}
	total := int64(0)
	for _, m := range tc.running() {
		depth := channelStats(t, tc.channelAt(m, "t", "paused")).Depth
		check(m, depth)
		total += depth
	}
	if total != 30 {
		t.Errorf("the paused channel has %d messages on the two nodes", total)
	}
	tc.pauseTopic(from, topic)
}

// pauseTopic pauses a topic through a node and ends the pause of its channel "paused". The channel then delivers its
// earlier messages m, and those published during the topic's pause only after the end of that pause.
func (tc *testCluster) pauseTopic(from *testNode, topic *node.Topic) {
	t := tc.t
	if err := topic.Pause(t.Context()); err != nil {
		t.Error(err)
	}
	publish(t, topic, numbered("held", 6, 0)...)
	if err := tc.channelAt(from, "t", "paused").Unpause(t.Context()); err != nil {
		t.Error(err)
	}
	for _, m := range tc.running() {
		for _, body := range readAll(t, tc.channelAt(m, "t", "paused")) {
			if body[0] != 'm' {
				t.Errorf("%s: %q came from a paused topic", m.name, body)
			}
		}
	}
	if err := topic.Unpause(t.Context()); err != nil {
		t.Error(err)
	}
	count := 0
	for _, m := range tc.running() {
		count += len(readAll(t, tc.channelAt(m, "t", "paused")))
	}
	if count != 6 {
		t.Errorf("%d of 6 messages came when the topic ran again", count)
	}
}

// A node without a copy of any partition of a topic can execute operations on its channels like other nodes, and knows
// their names. A channel of which it has an old record, and that was deleted at another node, does not exist for it.
func TestChannelsWithoutACopy(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 4)
	tc.create("t", 1)
	tc.channel("t", "c")
	row := tc.nodes[0].row("t", 0)
	if len(row.State.Replicas) != 3 {
		t.Fatalf("replicas: %v", row.State.Replicas)
	}
	var far *testNode
	for _, m := range tc.nodes {
		if !slices.Contains(row.State.Replicas, m.e.Node().ID) {
			far = m
		}
	}
	topic := tc.topic(far, "t")
	names := func(want ...string) {
		t.Helper()
		if got, err := topic.ReadChannelNames(t.Context()); err != nil || !slices.Equal(got, want) {
			t.Errorf("channels %q, %v; want %q", got, err, want)
		}
	}
	names("c")
	c := topic.ChannelElsewhere("c")
	if err := c.Pause(t.Context()); err != nil {
		t.Error(err)
	}
	led, _ := tc.topic(tc.leader("t", 0), "t").LookupChannel("c")
	if !channelStats(t, led).Paused {
		t.Error("the channel is not paused")
	}
	if err := topic.ChannelElsewhere("d").Pause(t.Context()); !errors.Is(err, errs.ErrNoChannel) {
		t.Errorf("a channel that is not there: %v", err)
	}
	if err := topic.DeleteChannel(t.Context(), "d"); !errors.Is(err, errs.ErrNoChannel) {
		t.Errorf("a channel that is not there: %v", err)
	}
	stale, err := topic.CreateChannel(t.Context(), "d")
	if err != nil {
		t.Fatal(err)
	}
	names("c", "d")
	if err := topic.DeleteChannel(t.Context(), "c"); err != nil {
		t.Error(err)
	}
	if err := tc.topic(tc.leader("t", 0), "t").DeleteChannel(t.Context(), "d"); err != nil {
		t.Error(err)
	}
	if err := stale.Unpause(t.Context()); !errors.Is(err, errs.ErrNoChannel) {
		t.Errorf("a channel that is not there any more: %v", err)
	}
	names()
}

// A channel is written into a partition that lacks it, and before the entry is in the log a leadership ends and begins:
// the topic's channels are made again, without that partition. The channel that exists afterwards gets the partition
// nevertheless.
func TestClusterChannelWrittenForAnEarlierOne(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 3)
	tc.leaders("t")
	if _, err := tc.topic(tc.nodes[0], "t").CreateChannel(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	var held []func()
	for _, m := range tc.nodes {
		tc.channelAt(m, "t", "c")
		held = append(held, sync.OnceFunc(node.HoldChannels(m.e, "t")))
		t.Cleanup(held[len(held)-1]) // before the cluster ends
	}
	if err := tc.nodes[0].store.ExpandTopic(t.Context(), tc.nodes[0].e.Snapshot().Names["t"].ID, 4); err != nil {
		t.Fatal(err)
	}
	tc.eventually("all know the partition", func() bool {
		return !slices.ContainsFunc(tc.nodes, func(m *testNode) bool { return tc.topic(m, "t").Partitions() < 4 })
	})
	x := tc.leader("t", 3)
	create := node.PutTogetherAnew(x.e, "t", "c")
	for _, release := range held {
		release()
	}
	if err := create(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	tc.eventually("the channel has the partition", func() bool { return node.ChannelHas(x.e, "t", "c", 3) })
}

// A channel is deleted while its creation in one more partition, which this node has begun to lead, is on its way. The
// creation does not come behind the deletion in that partition's log: the channel would be back.
//
// Seed 4191212.
func TestClusterDeletedChannelIsNotCreatedLater(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	l := tc.leader("t", 0)
	tc.channel("t", "c")
	tc.channelAt(l, "t", "c")
	create := node.CreateLater(l.e, "t", "c", 0)
	if err := tc.topic(l, "t").DeleteChannel(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	if err := create(t.Context()); !errors.Is(err, errs.ErrDeleted) {
		t.Errorf("the creation was answered %v", err)
	}
	if node.FoldHas(l.e, "t", 0, "c") {
		t.Error("the channel is back")
	}
}

// A topic gets one more partition, and the leader of the new partition writes the topic's channels into its log. The
// followers get that batch only after the leader has given up waiting for the commit. The channels get the partition
// nevertheless: nobody writes them again, because the log has them.
//
// B87.
func TestClusterChannelsOfANewPartitionCommittedLate(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, impatient)
	tc.create("t", 1)
	tc.channel("t", "c")
	var held []func()
	for _, m := range tc.nodes {
		held = append(held, sync.OnceFunc(node.HoldChannels(m.e, "t")))
		t.Cleanup(held[len(held)-1]) // before the cluster ends
	}
	if err := tc.nodes[0].store.ExpandTopic(t.Context(), tc.nodes[0].e.Snapshot().Names["t"].ID, 2); err != nil {
		t.Fatal(err)
	}
	tc.eventually("all know the partition", func() bool {
		return !slices.ContainsFunc(tc.nodes, func(m *testNode) bool { return tc.topic(m, "t").Partitions() < 2 })
	})
	l := tc.leader("t", 1)
	tc.network.rules(func(from, _ string, kind netproto.Type) int {
		if from == l.name && kind == netproto.TypePutMessagesOnReplica {
			return 0
		}
		return 1
	})
	for _, release := range held {
		release()
	}
	tc.eventually("the log of the new partition has the channel", func() bool { return node.FoldHas(l.e, "t", 1, "c") })
	node.HoldChannels(l.e, "t")() // returns when the leader does not wait for the commit any more
	tc.network.rules(nil)
	tc.eventually("the channel has the partition", func() bool { return node.ChannelHas(l.e, "t", "c", 1) })
}
