package node_test

import (
	"fmt"
	"testing"
	"time"

	"penstock/internal/node"
)

// An ephemeral channel begins at the end when another node becomes the leader, although no channel is in the log.
func TestClusterEphemeralAtANewLeader(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t", 1)
	var others []*testNode
	for _, m := range tc.running() {
		if m != tc.leader("t", 0) {
			others = append(others, m)
		}
	}
	at, next := others[0], others[1]
	c := tc.subscribeAt(at, "t", "c#ephemeral", 10)
	publish(t, tc.topic(at, "t"), numbered("old", 4, 0)...)
	c.take(4)
	tc.awaitEqualCopies("t", 0)
	tc.moveLeadership("t", 0, next)
	publish(t, tc.topic(at, "t"), "new")
	if m := c.next(); string(m.body) != "new" {
		t.Errorf("the new leader begins with %q", m.body)
	}
	c.expectNothing("the rest is old")
}

// A consumer at a node that leads nothing follows the leader of an ephemeral topic. It leaves the former leader before
// that one has heard of the change, or while the nodes lose their connection: the topic stays.
func TestClusterEphemeralStaysWithItsConsumer(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3)
	tc.create("t#ephemeral", 1)
	at := tc.others(tc.leader("t#ephemeral", 0))[0]
	c := tc.subscribeAt(at, "t#ephemeral", "c#ephemeral", 10)
	id := tc.topic(at, "t#ephemeral").ID()
	for range 20 {
		tc.moveLeadership("t#ephemeral", 0, tc.others(tc.leader("t#ephemeral", 0))[0])
	}
	if now := tc.topic(at, "t#ephemeral").ID(); now != id {
		t.Fatal("the topic has ended, and is made anew")
	}
	tc.eventually("it still gets messages", func() bool {
		publish(t, tc.topic(at, "t#ephemeral"), "m")
		c.testClient.mu.Lock()
		defer c.testClient.mu.Unlock()
		return len(c.got) > 0
	})
}

// Ephemeral topics and channels whose last consumer went with its node end by themselves: a channel at once, and a
// topic after a while at its new leader, as clients may come back. A topic that has a channel by then stays.
func TestClusterEphemeralGoesWithItsNode(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, func(o *node.Options) { node.SetEphemeralGrace(o, time.Second) })
	gone := tc.nodes[0]
	names := []string{"a#ephemeral", "b#ephemeral", "c#ephemeral", "d#ephemeral"}
	led := 0
	for _, name := range names {
		tc.create(name, 1)
		tc.subscribeAt(gone, name, "x#ephemeral", 1)
		tc.eventually("the leader has the consumer's channel", func() bool {
			_, ok := tc.topic(tc.leader(name, 0), name).LookupChannel("x#ephemeral")
			return ok
		})
		if tc.leader(name, 0) == gone {
			led++
		}
	}
	tc.create("used#ephemeral", 1)
	tc.moveLeadership("used#ephemeral", 0, gone)
	tc.moveLeadership(names[0], 0, gone)
	tc.create("t", 3)
	tc.subscribeAt(gone, "t", "x#ephemeral", 1)
	tc.crash(gone)
	next := tc.leader("used#ephemeral", 0)
	tc.subscribeAt(next, "used#ephemeral", "x#ephemeral", 1)
	for _, m := range tc.running() {
		tc.eventually("the channels have ended", func() bool {
			_, ok := tc.topic(m, "t").LookupChannel("x#ephemeral")
			return !ok
		})
		for _, name := range names {
			tc.eventually("the topics have ended", func() bool {
				_, ok := m.e.Catalog().LookupTopic(name)
				return !ok
			})
		}
	}
	// A topic whose leader changes later ends later: by then the one with a channel would have ended.
	tc.create("late#ephemeral", 1)
	first := tc.leader("late#ephemeral", 0)
	for _, m := range tc.running() {
		if m != first {
			tc.moveLeadership("late#ephemeral", 0, m)
		}
	}
	tc.eventually("the last topic has ended", func() bool {
		_, ok := next.e.Catalog().LookupTopic("late#ephemeral")
		return !ok
	})
	if _, ok := next.e.Catalog().LookupTopic("used#ephemeral"); !ok {
		t.Error("a topic with a channel has ended")
	}
}

// A client at a fixed address is connected to a leader of some partitions of an ephemeral topic, and known only there.
// The topic ends also if it goes with its node, whichever partition that node led.
func TestClusterEphemeralOfSeveralPartitionsEnds(t *testing.T) {
	t.Parallel()
	for n := range 3 {
		t.Run(fmt.Sprint("the node leads partition ", n), func(t *testing.T) {
			t.Parallel()
			tc := newTestCluster(t, 3, func(o *node.Options) { node.SetEphemeralGrace(o, time.Second) })
			tc.awaitConnected()
			tc.create("t#ephemeral", 3)
			tc.leaders("t#ephemeral")
			gone := tc.leader("t#ephemeral", n)
			tc.subscribeAt(gone, "t#ephemeral", "c#ephemeral", 1)
			tc.kill(gone)
			for _, m := range tc.running() {
				tc.eventually("the topic has ended", func() bool {
					_, ok := m.e.Catalog().LookupTopic("t#ephemeral")
					return !ok
				})
			}
		})
	}
}

// It stays while its client is there, if the leader of another partition is replaced or loses its last client: these
// know nothing of the client. Then it ends with the client.
func TestClusterEphemeralOfSeveralPartitionsStays(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, 3, func(o *node.Options) { node.SetEphemeralGrace(o, time.Second) })
	tc.awaitConnected()
	tc.create("t#ephemeral", 3)
	tc.leaders("t#ephemeral")
	from, to, stays := tc.leader("t#ephemeral", 0), tc.leader("t#ephemeral", 1), tc.leader("t#ephemeral", 2)
	c := tc.subscribeAt(stays, "t#ephemeral", "c#ephemeral", 1)
	tc.subscribeAt(to, "t#ephemeral", "c#ephemeral", 1).Close()
	tc.moveLeadership("t#ephemeral", 0, to)
	// A topic without a client that changes its leader later ends later: by then the first one would have ended.
	tc.create("late#ephemeral", 1)
	first := tc.leader("late#ephemeral", 0)
	next := tc.others(first)[0]
	tc.moveLeadership("late#ephemeral", 0, next)
	ended := func(name string) func() bool {
		return func() bool {
			_, ok := from.e.Catalog().LookupTopic(name)
			return !ok
		}
	}
	tc.eventually("the topic without a client has ended", ended("late#ephemeral"))
	if ended("t#ephemeral")() {
		t.Fatal("the topic with a client has ended")
	}
	c.Close()
	tc.eventually("the topic has ended", ended("t#ephemeral"))
}

// On a single node an ephemeral topic ends with its last channel at once, and not before.
func TestEphemeralTopicEndsWithItsLastChannel(t *testing.T) {
	e := openOnDisk(t, newDisk(), func(*node.Options) {})
	topic := topicOf(t, e, "t#ephemeral")
	one := subscribe(t, channelOf(t, topic, "one#ephemeral"), 1)
	other := subscribe(t, channelOf(t, topic, "other#ephemeral"), 1)
	one.Close()
	if _, ok := e.Catalog().LookupTopic("t#ephemeral"); !ok {
		t.Fatal("it has ended, and a channel has a consumer")
	}
	other.Close()
	if _, ok := e.Catalog().LookupTopic("t#ephemeral"); ok {
		t.Error("it has not ended")
	}
}
