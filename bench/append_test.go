package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"penstock/batch"
	"penstock/internal/node"
	"penstock/segment"
	"penstock/segment/aio"
)

func openEngine(b *testing.B) *node.Engine {
	b.Helper()
	return openEngineWith(b, node.Options{DataPath: b.TempDir(), IO: string(ioMode())})
}

func ioMode() aio.Mode { return aio.Mode(os.Getenv("TEST_IO")) }

func openEngineWith(b *testing.B, o node.Options) *node.Engine {
	b.Helper()
	o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	e, err := node.Open(context.Background(), o)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { e.Close() })
	return e
}

func topics(b *testing.B, e *node.Engine, n int) []*node.Topic {
	out := make([]*node.Topic, n)
	for i := range out {
		t, err := e.Topic(context.Background(), fmt.Sprintf("t%d", i))
		if err != nil {
			b.Fatal(err)
		}
		out[i] = t
	}
	return out
}

// waiting runs b.N publishes by so many producers, each of which waits for its answer.
func waiting(b *testing.B, e *node.Engine, producers, size int, ts []*node.Topic) {
	body := bytes.Repeat([]byte("x"), size)
	var left atomic.Int64
	left.Store(int64(b.N))
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for p := range producers {
		wg.Go(func() {
			for i := p; left.Add(-1) >= 0; i += producers {
				if _, err := ts[i%len(ts)].PublishMessage(context.Background(), node.Outgoing{Body: body}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	st := e.Storage()
	b.ReportMetric(float64(b.N)/float64(st.Groups), "msg/group")
	b.ReportMetric(st.FlushMeanMicros, "commit-µs")
}

func BenchmarkPublishWaiting(b *testing.B) {
	for _, producers := range []int{1, 64, 512} {
		for _, size := range []int{100, 1024} {
			b.Run(fmt.Sprintf("producers=%d/size=%d", producers, size), func(b *testing.B) {
				e := openEngine(b)
				waiting(b, e, producers, size, topics(b, e, 1))
			})
		}
	}
}

func BenchmarkPublishPartitions(b *testing.B) {
	for _, n := range []int{1, 1000} {
		b.Run(fmt.Sprintf("partitions=%d", n), func(b *testing.B) {
			e := openEngine(b)
			waiting(b, e, 64, 100, topics(b, e, n))
		})
	}
}

func BenchmarkPublishAsync(b *testing.B) {
	e := openEngine(b)
	t := topics(b, e, 1)[0]
	body := bytes.Repeat([]byte("x"), 100)
	// The callbacks run one at a time on the committer; it shares its count every 256.
	var answered atomic.Int64
	count := int64(0)
	more := make(chan struct{}, 1)
	done := func(_ node.ID, err error) {
		if err != nil {
			b.Error(err)
		}
		if count++; count%256 == 0 || count == int64(b.N) {
			answered.Store(count)
			select {
			case more <- struct{}{}:
			default:
			}
		}
	}
	b.SetBytes(100)
	b.ReportAllocs()
	b.ResetTimer()
	seen := int64(0)
	for i := range int64(b.N) {
		for i-seen >= 16384 {
			if seen = answered.Load(); i-seen >= 16384 {
				<-more
			}
		}
		if err := t.PublishAsync(node.Outgoing{Body: body}, done); err != nil {
			b.Fatal(err)
		}
	}
	for answered.Load() < int64(b.N) {
		<-more
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

func BenchmarkPublishSealed(b *testing.B) {
	e := openEngine(b)
	t := topics(b, e, 1)[0]
	var sb batch.Builder
	sb.Reset(segment.CodecNone)
	body := bytes.Repeat([]byte("x"), 100)
	const per = 256
	for range per {
		sb.Add(&segment.Record{Body: body})
	}
	batch, err := sb.Seal(1)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(100)
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(b.N))
	for range 256 {
		wg.Go(func() {
			for left.Add(-per) >= 0 {
				if _, err := publishSealed(context.Background(), t, batch); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}
