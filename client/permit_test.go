package client

import (
	"slices"
	"testing"
	"time"

	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// A node's permits begin when it cannot have made the frame before, and only grow.
func TestPermitTable(t *testing.T) {
	const s = time.Second
	var p permit
	if !p.begins(0) || p.asks(true) != 0 {
		t.Error("a channel without order wants permits")
	}
	for i, c := range []struct {
		now          time.Duration
		m            wire.Permit
		sent, until  time.Duration
		begins, late time.Duration // the last time at which it begins, and the first at which it does not
	}{
		{20 * s, wire.Permit{Stamp: uint64(10 * s), AgeMs: 4000, WithinMs: 2000}, 14 * s, 16 * s, 16*s - 1, 16 * s},
		{20 * s, wire.Permit{Stamp: uint64(12 * s), AgeMs: 5000, WithinMs: 2000}, 17 * s, 19 * s, 19*s - 1, 19 * s},
		{20 * s, wire.Permit{Stamp: uint64(19 * s), AgeMs: 500, WithinMs: 0}, 19*s + s/2, 19*s + s/2, 19 * s, 20 * s},
		{21 * s, wire.Permit{Stamp: uint64(11 * s), WithinMs: 2000}, 11 * s, 19*s + s/2, 19 * s, 20 * s}, // an earlier end
		{200 * s, wire.Permit{Stamp: uint64(99 * s), AgeMs: 61_000, WithinMs: 2000}, 160 * s, 19*s + s/2, 19 * s, 20 * s},
		{200 * s, wire.Permit{Stamp: uint64(100 * s), AgeMs: 60_000, WithinMs: 2000}, 160 * s, 162 * s, 161 * s, 162 * s},
		{200 * s, wire.Permit{Stamp: uint64(199 * s), AgeMs: 5000, WithinMs: 1000}, 200 * s, 201 * s, 200 * s, 201 * s},
	} {
		if sent := p.take(c.now, &c.m); sent != c.sent || p.until != c.until || !p.begins(c.begins) || p.begins(c.late) {
			t.Errorf("%d: sent at %v, until %v, want %v and %v", i, sent, p.until, c.sent, c.until)
		}
	}
	p.asked = 7 * s
	if p.asks(false) != 0 || p.asks(true) != 7*s+stampEvery {
		t.Error("it asks at", p.asks(true), "or without need")
	}
	part := func(n uint64) ID { return ID(n << 48) }
	if p.drops(part(1), 1) {
		t.Error("a delivery is dropped without a recall")
	}
	p.recall(&wire.Recall{Partition: 1, Number: 5})
	p.recall(&wire.Recall{Partition: 1, Number: 3})
	if !p.drops(part(1), 5) || p.drops(part(1), 6) || p.drops(part(2), 1) {
		t.Error("recalls are not by partition and number")
	}
}

// A delivery of an ordered channel is not returned while its node gives no permit; that holds up no other node's. A
// client that has something to begin asks again.
func TestConsumerAwaitsPermits(t *testing.T) {
	cluster := newTestCluster(t, 2, func(c *testCluster) { c.permits = []uint32{0, 60_000} })
	topic := cluster.create("orders", 2)
	topic.parts[0].leader, topic.parts[1].leader = 0, 1
	client := cluster.dial(t)
	keyed(t, client, 20)
	count := func(part int) int {
		cluster.mu.Lock()
		defer cluster.mu.Unlock()
		return len(topic.parts[part].messages())
	}
	c := client.consumer(t, "orders", "ch", ConsumerOptions{})
	take := func(part, n int) {
		t.Helper()
		for range n {
			if d := c.next1(t); int(d.ID.Partition()) != part {
				t.Fatalf("%v came, want messages of partition %d", d.ID, part)
			} else if err := d.Finish(); err != nil {
				t.Error(err)
			}
		}
	}
	eventually(t, "all deliveries have arrived", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.waiting(20) == 20
	})
	take(1, count(1))
	c.nothing(t)
	cluster.mu.Lock()
	cluster.permits[0] = 60_000
	cluster.mu.Unlock()
	take(0, count(0))
	if err := c.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	cluster.once(t, "ch", 20)
}

// What is recalled is not returned any more, be it in the client or on its way; the rest is. The client answers, also
// at the end of a subscription.
func TestConsumerRecall(t *testing.T) {
	cluster := newTestCluster(t, 1, func(c *testCluster) { c.permits = []uint32{60_000} })
	cluster.create("orders", 2)
	client := cluster.dial(t)
	keyed(t, client, 20)
	c := client.consumer(t, "orders", "ch", ConsumerOptions{})
	first := c.next1(t)
	eventually(t, "all deliveries have arrived", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.waiting(20) == 19
	})
	recall := wire.Recall{Partition: first.ID.Partition(), Number: 20}
	cluster.mu.Lock()
	sub := cluster.subs()[0]
	sub.node.send(sub.conn, wire.TypeRecall, sub.request, netproto.StatusOK, wire.Append(nil, &recall))
	left := 0
	for _, f := range sub.flight {
		if f.id.Partition() != recall.Partition {
			left++
		}
	}
	cluster.mu.Unlock()
	eventually(t, "the client answers", func() bool {
		cluster.mu.Lock()
		defer cluster.mu.Unlock()
		return slices.Contains(cluster.recalled, recall)
	})
	if left == 0 || left == 20 {
		t.Fatal("all messages are in one partition")
	}
	for range left {
		if d := c.next1(t); d.ID.Partition() == recall.Partition {
			t.Errorf("%v is returned although it was recalled", d.ID)
		}
	}
	c.nothing(t)
	if err := first.Finish(); err != nil {
		t.Error("what was begun before the recall:", err)
	}
	number(t, client.producer(t, "orders", ProducerOptions{}), 20, 60)
	for seen := false; !seen; {
		seen = c.next1(t).ID.Partition() == recall.Partition // a later delivery
	}
}

// The time of a delivery runs from before it was sent: one that was on its way for longer is left out.
func TestConsumerLeavesOutWhatIsLate(t *testing.T) {
	cluster := newTestCluster(t, 1, func(c *testCluster) { c.permits = []uint32{60_000} })
	cluster.create("orders", 1)
	client := cluster.dial(t)
	c := client.consumer(t, "orders", "ch", ConsumerOptions{Timeout: time.Second})
	var sub *testSub
	eventually(t, "it is subscribed", func() bool {
		cluster.mu.Lock()
		defer cluster.mu.Unlock()
		if all := cluster.subs(); len(all) > 0 {
			sub = all[0]
		}
		return sub != nil
	})
	cluster.mu.Lock()
	sub.stamp -= uint64(1100 * time.Millisecond)
	cluster.mu.Unlock()
	number(t, client.producer(t, "orders", ProducerOptions{}), 0, 1)
	eventually(t, "it has arrived and is left out", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		if n := c.take(c.clock(), make([]Delivery, 1)); n > 0 {
			t.Fatal("a delivery is returned whose time is over at its node")
		}
		return c.next == 1
	})
}
