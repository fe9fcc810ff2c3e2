package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// over is a context that has ended.
func over() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// Flush and Close with a context that has ended return nil if there is nothing to wait for.
func TestFlushAndCloseAfterTheEnd(t *testing.T) {
	cluster := newTestCluster(t, 1)
	cluster.create("orders", 2)
	p := cluster.dial(t).producer(t, "orders", ProducerOptions{Partition: func(m *Message, _ int) int {
		return int(m.Body[0] - '0')
	}})
	for i := range 2 {
		if _, err := p.ProduceSync(within(t), &Message{Body: fmt.Append(nil, i)}); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		if err := p.Flush(over()); err != nil {
			t.Fatalf("every message was told: %v", err)
		}
	}
	for range 2 {
		if err := p.Close(over()); err != nil {
			t.Errorf("every message was told: %v", err)
		}
	}
}

// When their context ends early, Flush says how many messages have no answer, and Close how many may be stored and how
// many are not. Each message is told the same.
func TestFlushAndCloseSayWhatIsOpen(t *testing.T) {
	cluster := newTestCluster(t, 1)
	topic := cluster.create("orders", 1)
	p := cluster.dial(t).producer(t, "orders", ProducerOptions{InFlight: 1, MaxBatchBytes: 1024})
	if _, err := p.ProduceSync(within(t), &Message{Body: []byte("stored")}); err != nil {
		t.Fatal(err)
	}
	cluster.change(func() { cluster.hold = true })
	var told outcomes
	produce := func(n int) {
		for range n {
			p.Produce(within(t), &Message{Body: make([]byte, 400)}, told.done)
		}
	}
	produce(1)
	eventually(t, "the node has the first one", func() bool { return len(cluster.bodies(topic.parts[0])) == 2 })
	produce(4) // at most two in a batch
	err := p.Flush(over())
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "5 messages") {
		t.Errorf("Flush: %v", err)
	}
	err = p.Close(over())
	if !errors.Is(err, context.Canceled) || !errors.Is(err, ErrUnknown) ||
		!strings.Contains(err.Error(), "1 may be stored") || !strings.Contains(err.Error(), "4 were not") {
		t.Errorf("Close: %v", err)
	}
	told.mu.Lock()
	defer told.mu.Unlock()
	for i, err := range told.errs {
		if !errors.Is(err, ErrClosed) || errors.Is(err, ErrUnknown) != (i == 0) {
			t.Errorf("message %d: %v", i, err)
		}
	}
	if len(told.errs) != 5 {
		t.Errorf("%d messages were told", len(told.errs))
	}
}

// Close says that no message may be stored if none was sent.
func TestCloseBeforeAnythingIsSent(t *testing.T) {
	cluster := newTestCluster(t, 1)
	topic := cluster.create("orders", 1)
	p := cluster.dial(t).producer(t, "orders", ProducerOptions{})
	cluster.change(func() { topic.parts[0].leader = -1 })
	p.Produce(within(t), &Message{Body: []byte("x")}, nil)
	err := p.Close(over())
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnknown) || !errors.Is(err, ErrClosed) {
		t.Errorf("Close: %v", err)
	}
}
