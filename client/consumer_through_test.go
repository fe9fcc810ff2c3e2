package client

import (
	"errors"
	"testing"
	"time"
)

// A message that was requeued is not finished by a FinishThrough behind it, although the node could not take it back.
func TestFinishThroughAfterRefusedRequeue(t *testing.T) {
	cluster := newTestCluster(t, 1, func(c *testCluster) { c.noRoom = true })
	cluster.create("orders", 1)
	client := cluster.dial(t)
	number(t, client.producer(t, "orders", ProducerOptions{}), 0, 20)
	c := client.consumer(t, "orders", "ch", ConsumerOptions{})
	var all []*Delivery
	for range 20 {
		all = append(all, c.next1(t))
	}
	if err := errors.Join(all[4].FinishThrough(), all[7].Requeue(time.Hour), all[9].FinishThrough()); err != nil {
		t.Fatal(err)
	}
	if err := c.Sync(within(t)); !errors.Is(err, ErrNotInFlight) {
		t.Errorf("the requeue was not done, and Sync says %v", err)
	}
	if err := all[14].FinishThrough(); err != nil {
		t.Fatal(err)
	}
	cluster.change(func() { cluster.noRoom = false })
	if err := all[17].Requeue(0); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(all[19].FinishThrough(), c.Sync(within(t))); err != nil {
		t.Error(err)
	}
	if d := c.next1(t); d.ID != all[17].ID || d.Finish() != nil {
		t.Errorf("%v", d.ID)
	}
	cluster.change(func() {
		sub := cluster.subs()[0]
		if len(sub.flight) != 2 || sub.flight[0].id != all[7].ID {
			t.Errorf("in flight at the node: %+v", sub.flight)
			return
		}
		sub.expire(0)
		cluster.deliverAll()
	})
	if d := c.next1(t); d.ID != all[7].ID || d.Attempts != 2 || d.FinishThrough() != nil {
		t.Errorf("%v, attempt %d", d.ID, d.Attempts)
	}
	if err := c.Sync(within(t)); err != nil {
		t.Error(err)
	}
	cluster.once(t, "ch", 20)
}

// A message that the program did not get, because its time was over while it waited in the client, is not finished by a
// FinishThrough behind it, although the node has not noticed yet that the time is over.
func TestFinishThroughBehindWhatWasLate(t *testing.T) {
	cluster := newTestCluster(t, 1)
	cluster.create("orders", 1)
	client := cluster.dial(t)
	p := client.producer(t, "orders", ProducerOptions{})
	number(t, p, 0, 5)
	const timeout = 2 * time.Second // the test takes as long, and a delivery must be taken within it
	c := client.consumer(t, "orders", "ch", ConsumerOptions{Timeout: timeout})
	first := c.next1(t) // the other four wait in the client
	eventually(t, "they are late", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.clock()-c.parcels[c.next].arrived >= timeout
	})
	number(t, p, 5, 6)
	if d := c.next1(t); d.ID != first.ID+5 || d.FinishThrough() != nil {
		t.Fatalf("%v", d.ID)
	}
	if err := c.Sync(within(t)); err != nil {
		t.Error(err)
	}
	cluster.mu.Lock()
	defer cluster.mu.Unlock()
	for id := first.ID; id < first.ID+5; id++ {
		if cluster.channels["ch"].finished[id] > 0 {
			t.Errorf("message %v was finished, and the program did not get it", id)
		}
	}
}
