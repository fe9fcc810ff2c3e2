package bench

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/fold"
)

// BenchmarkOrdered is consuming in order: with OrderPartition every message waits until the confirmation of the one
// before it is on the disk, with OrderKey only those of its key do.
func BenchmarkOrdered(b *testing.B) {
	e := openEngine(b)
	t := topics(b, e, 1)[0]
	fillKeyed(b, t, 300_000)
	for _, c := range []struct {
		name  string
		order fold.Order
		count int64
	}{
		{"none", fold.OrderNone, 300_000},
		{"partition", fold.OrderPartition, 10_000},
		{"keys=1000", fold.OrderKey, 300_000},
	} {
		b.Run(c.name, func(b *testing.B) { consumeInOrder(b, t, c.order, c.count) })
	}
}

// BenchmarkOrderedCluster is BenchmarkOrdered with followers in two other processes: a confirmation is on the disks of
// all three.
func BenchmarkOrderedCluster(b *testing.B) {
	tr := startCluster(b, 2, "--replicas", "3")
	e := joinCluster(b, tr, "e1")
	for end := time.Now().Add(patience); len(e.Snapshot().Nodes) < 3; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			b.Fatalf("the nodes do not know each other: %v", e.Snapshot().Nodes)
		}
	}
	t, err := e.Topic(context.Background(), ledBy(b, tr, "e1"))
	if err != nil {
		b.Fatal(err)
	}
	fillKeyed(b, t, 100_000)
	b.Run("partition", func(b *testing.B) { consumeInOrder(b, t, fold.OrderPartition, 4_000) })
	b.Run("keys=1000", func(b *testing.B) { consumeInOrder(b, t, fold.OrderKey, 100_000) })
}

// fillKeyed publishes messages of 100 bytes with a thousand keys in turn.
func fillKeyed(b *testing.B, t *node.Topic, count int) {
	b.Helper()
	if _, err := t.CreateChannel(context.Background(), "first"); err != nil { // what is there is its; the others seek
		b.Fatal(err)
	}
	body := make([]byte, 100)
	ms := make([]node.Outgoing, 1000)
	for i := range ms {
		ms[i] = node.Outgoing{Body: body, Key: fmt.Append(nil, "key", i)}
	}
	for n := 0; n < count; n += len(ms) {
		if _, err := t.PublishMessages(context.Background(), ms); err != nil {
			b.Fatal(err)
		}
	}
}

// consumeInOrder finishes count messages from the topic's beginning in a channel of that order.
func consumeInOrder(b *testing.B, t *node.Topic, order fold.Order, count int64) {
	ctx := context.Background()
	b.ReportAllocs()
	n := int64(0)
	var took time.Duration
	for round := 0; b.Loop(); round++ {
		c, err := t.CreateChannel(ctx, fmt.Sprintf("%s%d", order, round))
		if err != nil {
			b.Fatal(err)
		}
		if order != fold.OrderNone {
			if _, err := c.Configure(ctx, fold.ChannelSettings{Order: order}); err != nil {
				b.Fatal(err)
			}
		}
		if err := c.Seek(ctx, node.SeekTo{Kind: node.SeekBeginning}); err != nil {
			b.Fatal(err)
		}
		start := time.Now()
		n += finishAll(b, c, count)
		took += time.Since(start)
		if err := t.DeleteChannel(ctx, c.Name()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(n)/took.Seconds(), "msg/s")
}

// sharedSink is a countingSink whose messages come on any goroutine: those of an ordered channel come when
// confirmations are committed.
type sharedSink struct {
	mu   sync.Mutex
	ids  []node.ID
	kick chan struct{}
}

func (s *sharedSink) Deliver(d *node.Delivery) bool {
	s.mu.Lock()
	s.ids = append(s.ids, d.ID)
	s.mu.Unlock()
	return true
}

func (s *sharedSink) Flush() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

func (s *sharedSink) Closed(error) {}

func (s *sharedSink) swap(ids []node.ID) []node.ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids, s.ids = s.ids, ids[:0]
	return ids
}

// finishAll finishes want messages.
func finishAll(b *testing.B, c *node.Channel, want int64) (n int64) {
	s := &sharedSink{kick: make(chan struct{}, 1)}
	k, err := c.Attach(node.ConsumerOptions{}, s)
	if err != nil {
		b.Fatal(err)
	}
	defer k.Close()
	if err := k.Ready(2500); err != nil {
		b.Fatal(err)
	}
	k.Pump()
	var ids []node.ID
	for n < want {
		<-s.kick
		for ids = s.swap(ids); len(ids) > 0; ids = s.swap(ids) {
			for _, id := range ids {
				if err := k.Finish(id); err != nil {
					b.Fatal(err)
				}
			}
			n += int64(len(ids))
			k.Pump()
		}
	}
	return n
}
