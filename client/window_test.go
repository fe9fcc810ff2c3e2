package client

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// windowWorld has a topic with two partitions at node 0, which answers nothing about partition 0 and takes no more
// bytes until it does.
func windowWorld(t *testing.T, o ProducerOptions) (cluster *testCluster, topic *testTopic, p *Producer) {
	t.Helper()
	cluster = newTestCluster(t, 2, func(c *testCluster) { c.window, c.hold = 2000, true })
	topic = cluster.create("orders", 2)
	cluster.change(func() { topic.parts[1].leader = 0 })
	o.Partition = func(m *Message, _ int) int { return int(m.Body[0] - '0') }
	p = cluster.dial(t).producer(t, "orders", o)
	if _, err := p.ProduceSync(within(t), &Message{Body: []byte("1: it is open")}); err != nil {
		t.Fatal(err)
	}
	p.Produce(within(t), &Message{Body: append([]byte("0"), make([]byte, 1800)...)}, nil)
	eventually(t, "the node has the batch", func() bool {
		cluster.mu.Lock()
		defer cluster.mu.Unlock()
		return len(cluster.held) == 1
	})
	return cluster, topic, p
}

// large is a message of partition 1 that waits for what the node has not answered.
func large() *Message { return &Message{Body: append([]byte("1"), make([]byte, 1000)...)} }

// waitsForWindow waits until the lane of a partition waits for the window.
func (p *Producer) waitsForWindow(t *testing.T, partition int) {
	t.Helper()
	eventually(t, "the batch waits", func() bool {
		l := (*p.lanes.Load())[partition]
		l.mu.Lock()
		defer l.mu.Unlock()
		return slices.ContainsFunc(l.flow.queue, func(p *packet) bool { return p.onWay() })
	})
}

// A producer that waits because a node does not answer follows its leader when that moves.
func TestWindowOfALostLeader(t *testing.T) {
	cluster, topic, p := windowWorld(t, ProducerOptions{})
	var told outcomes
	p.Produce(within(t), large(), told.done)
	p.waitsForWindow(t, 1)
	cluster.change(func() {})                            // nothing about this partition
	cluster.change(func() { topic.parts[1].leader = 1 }) // which does answer
	eventually(t, "the message is stored at the new leader", func() bool {
		told.mu.Lock()
		defer told.mu.Unlock()
		return len(told.ids) == 1
	})
}

// Close ends a producer that waits because a node does not answer.
func TestCloseWhileTheWindowIsFull(t *testing.T) {
	_, _, p := windowWorld(t, ProducerOptions{})
	var told outcomes
	p.Produce(within(t), large(), told.done)
	p.waitsForWindow(t, 1)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	closed := make(chan error, 1)
	go func() { closed <- p.Close(ctx) }()
	select {
	case err := <-closed:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	case <-time.After(patience):
		t.Fatal("Close hangs")
	}
	if len(told.errs) != 1 || !errors.Is(told.errs[0], ErrUnknown) && !errors.Is(told.errs[0], ErrClosed) {
		t.Errorf("%v", told.errs)
	}
}

// A message is told in time although the one before it waits because a node does not answer.
func TestDeliveryTimeoutWhileTheWindowIsFull(t *testing.T) {
	const timeout = 2 * time.Second
	_, _, p := windowWorld(t, ProducerOptions{DeliveryTimeout: timeout, InFlight: 1})
	produced, took := make([]time.Time, 2), make(chan time.Duration, 2)
	for i := range produced {
		produced[i] = time.Now()
		p.Produce(within(t), large(), func(_ *Message, _ ID, err error) {
			if err == nil {
				t.Error("it is stored")
			}
			took <- time.Since(produced[i])
		})
		time.Sleep(timeout / 4) // the second one is younger, and in a batch of its own
	}
	for range produced {
		if d := <-took; d > timeout*3/2 {
			t.Errorf("it was told after %v", d)
		}
	}
}
