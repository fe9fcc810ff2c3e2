package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"penstock/internal/node"
)

// dueSink notes how late what it gets comes; the body says when it is due.
type dueSink struct {
	mu   sync.Mutex
	late []time.Duration
	all  *sync.WaitGroup
}

func (s *dueSink) Deliver(d *node.Delivery) bool {
	late := time.Since(time.Unix(0, int64(binary.BigEndian.Uint64(d.Body))))
	s.mu.Lock()
	s.late = append(s.late, late)
	s.mu.Unlock()
	s.all.Done()
	return true
}

func (s *dueSink) Flush()       {}
func (s *dueSink) Closed(error) {}

// BenchmarkDeferred is how late 100,000 deferred deliveries on 500 channels come, due at random moments of ten seconds.
func BenchmarkDeferred(b *testing.B) {
	const topicCount, channelsEach, messagesEach = 50, 10, 200
	e := openEngine(b)
	var all sync.WaitGroup
	all.Add(topicCount * channelsEach * messagesEach)
	var sinks []*dueSink
	ts := topics(b, e, topicCount)
	for i, t := range ts {
		for c := range channelsEach {
			ch, err := t.Channel(context.Background(), fmt.Sprintf("c%d-%d", i, c))
			if err != nil {
				b.Fatal(err)
			}
			s := &dueSink{all: &all}
			k, err := ch.Attach(node.ConsumerOptions{}, s)
			if err != nil {
				b.Fatal(err)
			}
			if err := k.Ready(2 * messagesEach); err != nil {
				b.Fatal(err)
			}
			k.Pump()
			sinks = append(sinks, s)
		}
	}
	first := time.Now().Add(5 * time.Second)
	var publishers sync.WaitGroup
	for _, t := range ts {
		publishers.Go(func() {
			for range messagesEach {
				due := first.Add(time.Duration(rand.Int64N(int64(10 * time.Second))))
				if _, err := t.PublishMessage(context.Background(), node.Outgoing{
					Body:  binary.BigEndian.AppendUint64(nil, uint64(due.UnixNano())),
					Delay: time.Until(due),
				}); err != nil {
					b.Error(err)
				}
			}
		})
	}
	publishers.Wait()
	if time.Now().After(first) {
		b.Fatal("publishing took longer than the first was deferred")
	}
	all.Wait()
	var late []time.Duration
	for _, s := range sinks {
		late = append(late, s.late...)
	}
	slices.Sort(late)
	b.ReportMetric(0, "ns/op")
	for name, q := range map[string]float64{"p50-late-ms": 0.5, "p99-late-ms": 0.99, "max-late-ms": 1} {
		b.ReportMetric(float64(late[int(q*float64(len(late)-1))].Microseconds())/1000, name)
	}
}
