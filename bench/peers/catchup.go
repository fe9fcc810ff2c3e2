package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const (
	fillConnections = 8
	fillBatch       = 100
)

// catchUp publishes a backlog, which is not measured, and measures from the first message that a consumer handles to
// the last one.
func catchUp(ctx context.Context, s server, topic string, o *options) (sample, error) {
	if err := s.prepare(topic, true); err != nil {
		return sample{}, err
	}
	if err := fill(s, topic, o.messages); err != nil {
		return sample{}, fmt.Errorf("the backlog could not be published: %w", err)
	}
	r := newReading(s, o.messages)
	stop, err := s.consume(topic, r.handle)
	if err != nil {
		return sample{}, err
	}
	defer stop()
	return r.await(ctx)
}

// reading counts what a consumer handles, each message once.
type reading struct {
	s    server
	want int64
	done chan struct{} // closed with the last message

	handled atomic.Int64 // different messages
	// What follows is used by handle alone until done is closed.
	seen  []uint64
	twice int64
	gauge *gauge
	got   sample
	err   error
}

func newReading(s server, want int64) *reading {
	return &reading{s: s, want: want, done: make(chan struct{}), seen: make([]uint64, want/64+1)}
}

func (r *reading) handle(b []byte) {
	n := body(b).number()
	if r.gauge == nil {
		r.gauge, r.err = newGauge(r.s)
	}
	switch {
	case r.err != nil:
		return
	case n >= uint64(r.want) || r.seen[n/64]&(1<<(n%64)) != 0:
		r.twice++
		return
	}
	r.seen[n/64] |= 1 << (n % 64)
	if r.handled.Add(1) < r.want {
		return
	}
	r.got, r.err = r.gauge.sample(r.want, time.Since(r.gauge.start), nil)
	r.got.Twice = r.twice
	close(r.done)
}

// await returns when all messages were handled, or nothing has come for stallLimit.
func (r *reading) await(ctx context.Context) (sample, error) {
	for last := int64(-1); ; {
		select {
		case <-r.done:
			return r.got, r.err
		case <-ctx.Done():
			return sample{}, ctx.Err()
		case <-time.After(stallLimit):
		}
		now := r.handled.Load()
		if now == last {
			return sample{}, fmt.Errorf("the consumer got %d of %d messages, and nothing more for %v", now, r.want, stallLimit)
		}
		last = now
	}
}

// fill publishes messages with the numbers 0 to count - 1.
func fill(s server, topic string, count int64) error {
	errs := make([]error, fillConnections)
	var next atomic.Int64
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { errs[i] = fillOne(s, topic, &next, count) })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// fillOne is one connection of fill: it takes a batch of numbers after the other.
func fillOne(s server, topic string, next *atomic.Int64, count int64) error {
	p, err := s.producer(topic, func(time.Duration, error) {})
	if err != nil {
		return err
	}
	defer p.close()
	bodies := make([][]byte, fillBatch)
	for i := range bodies {
		bodies[i] = newBody(uint64(i))
	}
	for {
		first := next.Add(fillBatch) - fillBatch
		n := min(fillBatch, count-first)
		if n <= 0 {
			return nil
		}
		for i := range n {
			body(bodies[i]).set(uint64(first+i), 0)
		}
		if err := p.publishBatch(bodies[:n]); err != nil {
			return err
		}
	}
}
