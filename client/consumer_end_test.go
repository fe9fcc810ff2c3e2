package client

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// A Sync that cannot know says so.
func TestConsumerSyncIsUnsure(t *testing.T) {
	cluster := newTestCluster(t, 1)
	cluster.create("orders", 1)
	client := cluster.dial(t)
	p := client.producer(t, "orders", ProducerOptions{})
	number(t, p, 0, 3)
	c := client.consumer(t, "orders", "ch", ConsumerOptions{})
	if err := c.next1(t).Finish(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is finished", func() bool {
		cluster.mu.Lock()
		defer cluster.mu.Unlock()
		return len(cluster.channels["ch"].finished) == 1
	})
	cluster.cut(0)
	eventually(t, "a lost connection leaves open whether it is stored", func() bool {
		return errors.Is(c.Sync(within(t)), ErrUnknown)
	})
	if err := c.Sync(within(t)); err != nil {
		t.Errorf("the second time: %v", err)
	}
	cluster.change(func() { cluster.deafToSync = true })
	eventually(t, "a delivery comes", func() bool { return c.next1(t).Finish() == nil })
	if err := c.Sync(within(t)); !errors.Is(err, ErrUnknown) {
		t.Errorf("%v", err)
	}
	if err := c.Close(within(t)); err != nil {
		t.Error(err)
	}
}

// A Sync is about what was finished at a node that leads nothing any more, too, although the consumer is leaving it:
// the consumer asks the node before it leaves.
func TestConsumerSyncAwaitsWhatItLeaves(t *testing.T) {
	for _, c := range []struct {
		name string
		deaf bool
		want error
	}{{"the node has stored it", false, nil}, {"the node does not know", true, ErrUnknown}} {
		t.Run(c.name, func(t *testing.T) { syncWhileLeaving(t, c.deaf, c.want) })
	}
}

func syncWhileLeaving(t *testing.T, deaf bool, want error) {
	cluster := newTestCluster(t, 2, func(c *testCluster) { c.holdEnds, c.deafToSync = true, deaf })
	c := consumerThatMustLeave(t, cluster)
	eventually(t, "the consumer leaves the node", func() bool {
		cluster.mu.Lock()
		defer cluster.mu.Unlock()
		return len(cluster.ends) == 1
	})
	if err := c.Sync(within(t)); !errors.Is(err, want) {
		t.Errorf("%v, want %v", err, want)
	}
	cluster.mu.Lock()
	cluster.ends[0]()
	cluster.holdEnds = false
	cluster.mu.Unlock()
	if err := c.Sync(within(t)); err != nil {
		t.Errorf("the second time: %v", err)
	}
	if err := c.Close(within(t)); err != nil {
		t.Error(err)
	}
}

// consumerThatMustLeave is a consumer that has finished a message of partition 0, whose leader is another node now.
func consumerThatMustLeave(t *testing.T, cluster *testCluster) *Consumer {
	t.Helper()
	topic := cluster.create("orders", 2)
	client := cluster.dial(t)
	keyed(t, client, 20)
	c := client.consumer(t, "orders", "ch", ConsumerOptions{})
	d := c.next1(t)
	for d.ID.Partition() != 0 {
		d = c.next1(t)
	}
	if err := d.Finish(); err != nil {
		t.Fatal(err)
	}
	cluster.change(func() { topic.parts[0].leader = 1 })
	return c
}

// A Sync also waits for a node that the consumer is about to leave, and that has not said that it has stored what was
// finished there.
func TestConsumerSyncWaitsForTheNodeItLeaves(t *testing.T) {
	cluster := newTestCluster(t, 2, func(c *testCluster) { c.holdSyncs, c.holdEnds = true, true })
	c := consumerThatMustLeave(t, cluster)
	eventually(t, "the node has the Sync with which the consumer leaves it", func() bool {
		cluster.mu.Lock()
		defer cluster.mu.Unlock()
		return cluster.heldSyncs == 1
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.Sync(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if err := c.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close: %v", err)
	}
}

// A consumer keeps its connection to a node that leads nothing any more, even if nobody else uses it, until the node
// has stored what was finished there.
func TestConsumerSyncOverItsOwnConnection(t *testing.T) {
	cluster := newTestCluster(t, 2)
	topic := cluster.create("orders", 2)
	client := cluster.dial(t)
	keyed(t, client, 20)
	for round := range 5 {
		c := client.consumer(t, "orders", fmt.Sprint("ch", round), ConsumerOptions{})
		d := c.next1(t)
		for d.ID.Partition() != 1 {
			d = c.next1(t)
		}
		if err := d.Finish(); err != nil {
			t.Fatal(err)
		}
		cluster.change(func() { topic.parts[1].leader = 0 })
		eventually(t, "the consumer leaves the node", func() bool {
			cluster.mu.Lock()
			defer cluster.mu.Unlock()
			return len(cluster.subs()) == 1
		})
		if err := c.Sync(within(t)); err != nil {
			t.Errorf("round %d: %v", round, err)
		}
		eventually(t, "the connection is given up", func() bool {
			client.mu.Lock()
			defer client.mu.Unlock()
			return len(client.nodes) == 1
		})
		cluster.mu.Lock()
		if n := cluster.channels[c.Channel()].finished[d.ID]; n != 1 {
			t.Errorf("round %d: finished %d times", round, n)
		}
		cluster.mu.Unlock()
		if err := c.Close(within(t)); err != nil {
			t.Error(err)
		}
		cluster.change(func() { topic.parts[1].leader = 1 })
	}
}

// A Close that may not wait for the answer to a Sync gives messages in flight back all the same, over a connection that
// others use.
func TestConsumerCloseAtOnce(t *testing.T) {
	cluster := newTestCluster(t, 1, func(c *testCluster) { c.holdSyncs = true })
	cluster.create("orders", 1)
	client := cluster.dial(t)
	p := client.producer(t, "orders", ProducerOptions{})
	number(t, p, 0, 10)
	c := client.consumer(t, "orders", "ch", ConsumerOptions{MaxInFlight: 10})
	ds := make([]*Delivery, 10)
	for i := range ds {
		ds[i] = c.next1(t)
	}
	if err := ds[0].Finish(); err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Sync(over); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	eventually(t, "the node has the Sync", func() bool {
		cluster.mu.Lock()
		defer cluster.mu.Unlock()
		return cluster.heldSyncs == 1
	})
	if err := ds[1].Finish(); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(over); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	cluster.change(func() { cluster.holdSyncs = false })
	other := client.consumer(t, "orders", "ch", ConsumerOptions{})
	for range 8 {
		if d := other.next1(t); d.Attempts != 2 || d.Finish() != nil {
			t.Fatalf("%v, attempt %d", d.ID, d.Attempts)
		}
	}
	if err := other.Close(within(t)); err != nil {
		t.Error(err)
	}
}

// Messages in flight go to the next consumer when a consumer is closed, and Close wakes those who wait.
func TestConsumerClose(t *testing.T) {
	cluster := newTestCluster(t, 2)
	cluster.create("orders", 2)
	client := cluster.dial(t)
	p := client.producer(t, "orders", ProducerOptions{MaxBatchBytes: 1024})
	number(t, p, 0, 100)
	c := client.consumer(t, "orders", "ch", ConsumerOptions{MaxInFlight: 200})
	var last *Delivery
	for range 100 {
		last = c.next1(t)
	}
	ended := make(chan error)
	for range 2 {
		go func() {
			_, err := c.Batch(within(t), 10)
			ended <- err
		}()
	}
	if err := c.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-ended; !errors.Is(err, ErrClosed) {
			t.Errorf("%v", err)
		}
	}
	if err := c.Close(within(t)); err != nil {
		t.Error(err)
	}
	if err := last.Finish(); !errors.Is(err, ErrNotInFlight) {
		t.Errorf("%v", err)
	}
	other := client.consumer(t, "orders", "ch", ConsumerOptions{})
	for range 100 {
		if d := other.next1(t); d.Attempts != 2 || d.Finish() != nil {
			t.Fatalf("%v, attempt %d", d.ID, d.Attempts)
		}
	}
	client.Close()
	if _, err := other.Next(within(t)); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
	if _, err := client.Consumer(within(t), "orders", "ch", ConsumerOptions{}); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
}
