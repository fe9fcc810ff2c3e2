package client

import (
	"context"
	"testing"
)

// Produce allocates nothing for a message, with and without a key and headers; what a batch costs is shared by its
// messages.
func TestProduceAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	cluster := newTestCluster(t, 1)
	topic := cluster.create("orders", 1)
	cluster.change(func() { topic.parts[0].leader = -1 })
	p := cluster.dial(t).producer(t, "orders", ProducerOptions{MaxBatchBytes: 8 << 20})
	plain := &Message{Body: make([]byte, 100)}
	keyed := &Message{Key: []byte("k"), Body: plain.Body, Headers: []Header{{Key: []byte("name"), Value: []byte("value")}}}
	done := func(*Message, ID, error) {}
	ctx := context.Background()
	for range 20000 { // the open batch and its list grow to what the measurement needs
		p.Produce(ctx, plain, done)
	}
	lanes := *p.lanes.Load()
	lanes[0].mu.Lock()
	lanes[0].open.items = append(make([]item, 0, 1<<17), lanes[0].open.items...)
	lanes[0].mu.Unlock()
	for range 20000 {
		p.Produce(ctx, keyed, done)
	}
	for name, m := range map[string]*Message{"plain": plain, "with a key and headers": keyed} {
		if n := testing.AllocsPerRun(1000, func() { p.Produce(ctx, m, done) }); n != 0 {
			t.Errorf("%s: %v allocations per message", name, n)
		}
	}
}

func BenchmarkProduce(b *testing.B) {
	cluster := newTestCluster(b, 1)
	cluster.create("orders", 1)
	p := cluster.dial(b).producer(b, "orders", ProducerOptions{})
	m := &Message{Body: make([]byte, 100)}
	done := func(_ *Message, _ ID, err error) {
		if err != nil {
			b.Error(err)
		}
	}
	ctx := context.Background()
	b.ReportAllocs()
	b.SetBytes(100)
	for b.Loop() {
		p.Produce(ctx, m, done)
	}
	if err := p.Flush(ctx); err != nil {
		b.Fatal(err)
	}
}
