package bench

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"penstock/batch"
	"penstock/internal/node"
	"penstock/internal/node/delivery"
	"penstock/internal/node/fold"
	"penstock/segment"
)

// BenchmarkCodec seals and walks batches of 256 messages.
func BenchmarkCodec(b *testing.B) {
	const per = 256
	for _, size := range []int{100, 1024} {
		body := bytes.Repeat([]byte("x"), size)
		var sb batch.Builder
		seal := func() []byte {
			sb.Reset(segment.CodecNone)
			for range per {
				if err := sb.Add(&segment.Record{Body: body}); err != nil {
					b.Fatal(err)
				}
			}
			p, err := sb.Seal(1)
			if err != nil {
				b.Fatal(err)
			}
			return p
		}
		b.Run(fmt.Sprintf("seal/size=%d", size), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(per * size))
			for b.Loop() {
				seal()
			}
			b.ReportMetric(float64(per)*float64(b.N)/b.Elapsed().Seconds(), "msg/s")
		})
		b.Run(fmt.Sprintf("verify-and-walk/size=%d", size), func(b *testing.B) {
			p := seal()
			var h segment.Header
			var it segment.RecordIter
			b.ReportAllocs()
			b.SetBytes(int64(per * size))
			for b.Loop() {
				if err := h.Decode(p); err != nil {
					b.Fatal(err)
				}
				if err := batch.VerifyBody(&h, p[segment.HeaderBytes:]); err != nil {
					b.Fatal(err)
				}
				it.Reset(&h, p[segment.HeaderBytes:])
				for it.NextRef() != nil {
				}
			}
			b.ReportMetric(float64(per)*float64(b.N)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}

// countingSink takes everything and finishes it at the next Flush, like a client that keeps up.
type countingSink struct {
	ids   []node.ID
	bytes int64
	kick  chan struct{}
}

func (s *countingSink) Deliver(d *node.Delivery) bool {
	s.ids = append(s.ids, d.ID)
	s.bytes += int64(len(d.Body))
	return true
}

func (s *countingSink) Flush() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

func (s *countingSink) Closed(error) {}

// BenchmarkCatchUp delivers and confirms what lies in sealed segments: the engine's part of catch-up
// consumption, without a socket.
func BenchmarkCatchUp(b *testing.B) {
	ctx := context.Background()
	e := openEngine(b)
	t := topics(b, e, 1)[0]
	body := bytes.Repeat([]byte("x"), 100)
	bodies := make([][]byte, 100)
	for i := range bodies {
		bodies[i] = body
	}
	const stored = 1_000_000
	for range stored / len(bodies) / 50 {
		var failed atomic.Pointer[error]
		done := make(chan struct{}, 50)
		for range 50 {
			go func() {
				if _, err := t.PublishBatch(ctx, bodies); err != nil {
					failed.Store(&err)
				}
				done <- struct{}{}
			}()
		}
		for range 50 {
			<-done
		}
		if err := failed.Load(); err != nil {
			b.Fatal(*err)
		}
	}
	b.ReportAllocs()
	n := int64(0)
	var took time.Duration
	for round := 0; b.Loop(); round++ {
		c, err := t.Channel(ctx, fmt.Sprintf("c%d", round))
		if err != nil {
			b.Fatal(err)
		}
		if err := c.Seek(ctx, node.SeekTo{Kind: node.SeekID, ID: batch.MakeID(0, 0)}); err != nil {
			b.Fatal(err)
		}
		start := time.Now()
		n += drainChannel(b, c, stored)
		took += time.Since(start)
		if err := t.DeleteChannel(ctx, c.Name()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n)/took.Seconds(), "msg/s")
}

func drainChannel(b *testing.B, c *node.Channel, want int64) (n int64) {
	s := &countingSink{kick: make(chan struct{}, 1)}
	k, err := c.Attach(node.ConsumerOptions{}, s)
	if err != nil {
		b.Fatal(err)
	}
	defer k.Close()
	if err := k.Ready(2500); err != nil {
		b.Fatal(err)
	}
	k.Pump()
	for n < want {
		<-s.kick
		for len(s.ids) > 0 {
			ids := s.ids
			s.ids = nil
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

// BenchmarkDispatch is the channel machine alone: offer and finish, in order.
func BenchmarkDispatch(b *testing.B) {
	c := delivery.NewChannel(delivery.ChannelConfig{Name: "c"})
	var res delivery.Result
	c.Step(1, &delivery.Event{
		Kind: delivery.EvAddPartition, Cursor: &fold.Cursor{Name: "c"}, End: segment.MaxMsgID,
	}, &res)
	c.Step(1, &delivery.Event{Kind: delivery.EvSubscribe, Client: 1}, &res)
	c.Step(1, &delivery.Event{Kind: delivery.EvReady, Client: 1, Count: 2500}, &res)
	b.ReportAllocs()
	id := segment.MsgID(0)
	var ev delivery.Event
	for b.Loop() {
		ev = delivery.Event{Kind: delivery.EvOffer, Msg: id}
		c.Step(2, &ev, &res)
		if res.Decision != delivery.Deliver {
			b.Fatal("not delivered")
		}
		ev = delivery.Event{Kind: delivery.EvFinish, Client: 1, ID: res.ID}
		c.Step(2, &ev, &res)
		if res.Err != nil {
			b.Fatal(res.Err)
		}
		id++
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}
