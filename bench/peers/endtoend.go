package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// endToEnd publishes on one connection at a steady rate, and measures from the call to the handler of a consumer on
// another connection. A message that could not be sent when it was due, because the calls before it had not returned,
// counts from the time at which it was due: a server that stalls cannot hide its stall.
func endToEnd(ctx context.Context, s server, topic string, o *options) (sample, error) {
	if err := s.prepare(topic, true); err != nil {
		return sample{}, err
	}
	e := &steady{from: max(minWarmUp, o.seconds/warmUp), every: time.Second / time.Duration(o.rate), h: newHistogram()}
	e.till = e.from + o.seconds
	stop, err := s.consume(topic, e.handle)
	if err != nil {
		return sample{}, err
	}
	defer stop()
	p, err := s.producer(topic, e.acked)
	if err != nil {
		return sample{}, err
	}
	defer p.close()
	// One message is there before the clock starts: the consumer has subscribed and the producer has connected.
	if err := e.first(p); err != nil {
		return sample{}, err
	}
	return e.run(ctx, s, p)
}

// steady is the state of endToEnd. The producer's goroutine sends, the client's goroutines call acked and handle.
type steady struct {
	begin      time.Time // times are counted from here; set before started
	started    atomic.Bool
	from, till time.Duration // the measured part
	every      time.Duration
	failed     atomic.Pointer[error]
	handled    atomic.Int64 // messages, those before the measured part included
	// What follows belongs to handle until all messages were handled.
	h      *hdrhistogram.Histogram
	inTime int64 // messages that were handled in the measured part
}

func (e *steady) acked(_ time.Duration, err error) {
	if err != nil {
		err = fmt.Errorf("a publish failed: %w", err)
		e.failed.CompareAndSwap(nil, &err)
	}
}

func (e *steady) handle(b []byte) {
	defer e.handled.Add(1)
	if !e.started.Load() {
		return
	}
	now, sent := time.Since(e.begin), body(b).at()
	if now >= e.from && now < e.till {
		e.inTime++
	}
	if sent >= e.from {
		_ = e.h.RecordValue(int64(now - sent)) // beyond five minutes no work goes on
	}
}

// first sends one message and waits until it was handled. The clock starts then.
func (e *steady) first(p producer) error {
	if err := p.publish(newBody(0)); err != nil {
		return err
	}
	if err := e.await(1); err != nil {
		return err
	}
	e.handled.Store(0)
	e.begin = time.Now()
	e.started.Store(true)
	return nil
}

func (e *steady) run(ctx context.Context, s server, p producer) (sample, error) {
	sent, ended := int64(0), make(chan struct{})
	go func() {
		defer close(ended)
		sent = e.send(p)
	}()
	defer func() { <-ended }()
	if err := pause(ctx, e.from); err != nil {
		return sample{}, err
	}
	g, err := newGauge(s)
	if err != nil {
		return sample{}, err
	}
	if err := pause(ctx, e.till-time.Since(e.begin)); err != nil {
		return sample{}, err
	}
	end, err := g.sample(1, e.till-e.from, nil)
	if err != nil {
		return sample{}, err
	}
	<-ended
	if err := e.await(sent); err != nil {
		return sample{}, err
	}
	got, err := g.sample(e.inTime, e.till-e.from, e.h)
	if err == nil {
		got.ServerCPU, got.ClientCPU = end.ServerCPU/float64(e.inTime), end.ClientCPU/float64(e.inTime)
	}
	return got, err
}

// send sends what is due, until the measured part has ended.
func (e *steady) send(p producer) (sent int64) {
	woke := time.Duration(0) // what was due before this time waited for the timer, not for the server
	pattern := newBody(1)
	for ; e.failed.Load() == nil; sent++ {
		due := time.Duration(sent) * e.every
		now := time.Since(e.begin)
		if now >= e.till {
			break
		}
		if now < due {
			time.Sleep(due - now)
			woke = time.Since(e.begin)
		}
		b := append(body(nil), pattern...) // the client may keep it until it is acknowledged
		at := max(due, woke)
		b.set(uint64(sent), at)
		if err := p.publishAsync(b, at); err != nil {
			e.acked(at, err)
			break
		}
	}
	return sent
}

// await returns when that many messages were handled, or nothing has come for stallLimit.
func (e *steady) await(want int64) error {
	last, since := int64(-1), time.Now()
	for {
		if err := e.failed.Load(); err != nil {
			return *err
		}
		now := e.handled.Load()
		switch {
		case now >= want:
			return nil
		case now != last:
			last, since = now, time.Now()
		case time.Since(since) > stallLimit:
			return fmt.Errorf("the consumer got %d of %d messages, and nothing more for %v", now, want, stallLimit)
		}
		time.Sleep(time.Millisecond)
	}
}
