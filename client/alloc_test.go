package client

import (
	"context"
	"testing"

	"penstock/internal/server/native/wire"
	"penstock/tests/support/underrace"
)

// Produce allocates nothing for a message, with and without a key and headers; what a batch costs is shared by its
// messages.
func TestProduceAllocatesNothing(t *testing.T) {
	if underrace.Enabled {
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

// Next and FinishThrough allocate nothing for a message, with and without headers; what a frame costs is shared by its
// messages.
func TestConsumeAllocatesNothing(t *testing.T) {
	if underrace.Enabled {
		t.Skip("the race detector allocates")
	}
	const n = 40000
	for name, m := range map[string]*Message{
		"plain": {Body: make([]byte, 100)},
		"headers": {
			Key: []byte("k"), Body: make([]byte, 100), Headers: []Header{{Key: []byte("name"), Value: []byte("value")}},
		},
	} {
		cluster := newTestCluster(t, 1)
		cluster.create("orders", 1)
		client := cluster.dial(t)
		p := client.producer(t, "orders", ProducerOptions{})
		for range n {
			p.Produce(within(t), m, nil)
		}
		if err := p.Close(within(t)); err != nil {
			t.Fatal(err)
		}
		c := client.consumer(t, "orders", "ch", ConsumerOptions{MaxInFlight: 2 * n, MaxInFlightBytes: 64 << 20})
		eventually(t, "all messages have arrived", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.waiting(n) == n
		})
		ctx := context.Background()
		handle := func() {
			for range 100 {
				d, err := c.Next(ctx)
				if err == nil {
					err = d.FinishThrough()
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		for range 50 {
			handle() // memory grows to what is needed
		}
		// The headers' memory, and the frames that tell the node, are shared by many messages.
		if per := leastAllocs(handle) / 100; per > 0.05 {
			t.Errorf("%s: %v allocations per message", name, per)
		}
		var batch []Delivery
		many := func() {
			var err error
			if batch, err = c.AppendBatch(ctx, batch[:0], 100); err == nil {
				err = batch[len(batch)-1].FinishThrough()
			}
			if err != nil || len(batch) != 100 {
				t.Fatalf("%d deliveries: %v", len(batch), err)
			}
		}
		many()
		if per := leastAllocs(many) / 100; per > 0.05 {
			t.Errorf("%s: %v allocations per message of a batch", name, per)
		}
	}
}

// leastAllocs is testing.AllocsPerRun, the least of three: that counts what the node and the client's other goroutines
// allocate, too, and on a busy machine those do more for a message.
func leastAllocs(f func()) float64 {
	least := testing.AllocsPerRun(40, f)
	for range 2 {
		least = min(least, testing.AllocsPerRun(40, f))
	}
	return least
}

// BenchmarkNext takes messages that have arrived, and finishes a hundred at a time.
func BenchmarkNext(b *testing.B) {
	c := &Consumer{ctx: context.Background(), client: new(Client)}
	s := &subscription{consumer: c, woken: make(chan struct{}, 1)}
	c.posts = map[string]*post{"a": {sub: s}}
	payload := wire.BeginDeliver(nil, 1)
	for range 1000 {
		payload = wire.AppendDelivery(payload, &wire.Delivery{Attempts: 1, Body: make([]byte, 100)})
	}
	wire.EndDeliver(payload, 1000)
	b.ReportAllocs()
	ctx := context.Background()
	for i := 0; b.Loop(); i++ {
		if i%1000 == 0 {
			if err := s.arrived(payload); err != nil {
				b.Fatal(err)
			}
		}
		d, err := c.Next(ctx)
		if err == nil && i%100 == 99 {
			err = d.FinishThrough()
		}
		if err != nil {
			b.Fatal(err)
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

// BenchmarkProduceSync is a lone caller, whose context cannot end, is that of all calls, or that of one call only.
func BenchmarkProduceSync(b *testing.B) {
	cluster := newTestCluster(b, 1)
	cluster.create("orders", 1)
	p := cluster.dial(b).producer(b, "orders", ProducerOptions{})
	m := &Message{Body: make([]byte, 100)}
	call := func(ctx context.Context) {
		if _, err := p.ProduceSync(ctx, m); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("background", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			call(context.Background())
		}
	})
	b.Run("shared", func(b *testing.B) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		b.ReportAllocs()
		for b.Loop() {
			call(ctx)
		}
	})
	b.Run("own", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			call(ctx)
			cancel()
		}
	})
}
