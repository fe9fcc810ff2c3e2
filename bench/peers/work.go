package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	bodyBytes  = 100
	maxWindow  = 1024             // messages outstanding on a pipelined connection
	workLimit  = 3 * time.Minute  // for one work with its preparation
	stallLimit = 30 * time.Second // without any progress
	warmUp     = 4                // one part in warmUp of the time goes before what is measured
	minWarmUp  = 500 * time.Millisecond
)

// work is something that every peer does in the same way.
type work struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	// Paced says that the work is done at a given rate, so that only its latency says something.
	Paced bool `json:"paced,omitempty"`

	do func(ctx context.Context, s server, topic string, o *options) (sample, error)
}

// allWorks are in the order in which a server does them.
var allWorks = []work{
	{Name: "pub1", Title: "1 connection, one publish outstanding", do: closedLoop(1, 1, 1)},
	{Name: "pub64", Title: "64 connections, one publish outstanding each", do: closedLoop(64, 1, 1)},
	{Name: "pipe", Title: "1 connection, 1024 publishes outstanding", do: closedLoop(1, maxWindow, 1)},
	{Name: "batch", Title: "8 connections, batches of 100, one outstanding each", do: closedLoop(8, 1, 100)},
	{Name: "catchup", Title: "catch-up of a backlog, one connection, each message acknowledged", do: catchUp},
	{Name: "e2e", Title: "publish call to handler at a steady rate", Paced: true, do: endToEnd},
}

// sample is what one work of one peer measured in one round. Times are microseconds.
type sample struct {
	Messages  int64   `json:"messages"`
	Seconds   float64 `json:"seconds"`
	Rate      float64 `json:"rate"` // messages per second
	P50       float64 `json:"p50_us,omitempty"`
	P99       float64 `json:"p99_us,omitempty"`
	P999      float64 `json:"p999_us,omitempty"`
	Max       float64 `json:"max_us,omitempty"`
	ServerCPU float64 `json:"server_cpu_us"` // of all server processes, per message
	ClientCPU float64 `json:"client_cpu_us"` // of this process, per message
	Twice     int64   `json:"delivered_twice,omitempty"`
}

var errNothing = errors.New("no message was acknowledged in the measured time")

// gauge takes the processor times around the measured part of a work.
type gauge struct {
	pids           []int
	start          time.Time
	server, client time.Duration
}

func newGauge(s server) (*gauge, error) {
	g := &gauge{pids: s.pids(), start: time.Now(), client: ownCPU()}
	var err error
	g.server, err = cpuOf(g.pids)
	return g, err
}

// sample is called at the end of the measured part.
func (g *gauge) sample(messages int64, took time.Duration, h *hdrhistogram.Histogram) (sample, error) {
	client := ownCPU() - g.client
	server, err := cpuOf(g.pids)
	if err != nil {
		return sample{}, err
	}
	if messages == 0 {
		return sample{}, errNothing
	}
	s := sample{
		Messages: messages, Seconds: took.Seconds(), Rate: float64(messages) / took.Seconds(),
		ServerCPU: micros(server-g.server) / float64(messages), ClientCPU: micros(client) / float64(messages),
	}
	if h != nil && h.TotalCount() > 0 {
		us := func(v int64) float64 { return micros(time.Duration(v)) }
		s.P50, s.P99, s.P999 = us(h.ValueAtQuantile(50)), us(h.ValueAtQuantile(99)), us(h.ValueAtQuantile(99.9))
		s.Max = us(h.Max())
	}
	return s, nil
}

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(int64(time.Microsecond), int64(5*time.Minute), 3)
}

// body returns the body of a message: its number, the time of the call, and random bytes, which cannot be compressed.
type body []byte

func newBody(seed uint64) body {
	b := make(body, bodyBytes)
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func (b body) set(number uint64, at time.Duration) {
	binary.LittleEndian.PutUint64(b, number)
	binary.LittleEndian.PutUint64(b[8:], uint64(at))
}

func (b body) number() uint64    { return binary.LittleEndian.Uint64(b) }
func (b body) at() time.Duration { return time.Duration(binary.LittleEndian.Uint64(b[8:])) }

// loop is a closed loop of connections that publish as fast as they are answered.
type loop struct {
	begin      time.Time     // times are counted from here
	from, till time.Duration // the measured part
	batch      int
	failed     atomic.Pointer[error]
	lanes      []*lane
}

// lane is one connection of a loop. Its meter is used by one goroutine: the one that publishes, or if more than one
// publish is outstanding the one on which the client reports answers.
type lane struct {
	*loop
	p      producer
	window chan struct{} // one entry for each publish that is outstanding
	h      *hdrhistogram.Histogram
	count  int64
}

func closedLoop(connections, window, batch int) func(context.Context, server, string, *options) (sample, error) {
	return func(ctx context.Context, s server, topic string, o *options) (sample, error) {
		if err := s.prepare(topic, false); err != nil {
			return sample{}, err
		}
		l := &loop{batch: batch}
		defer l.close()
		for range connections {
			c := &lane{loop: l, window: make(chan struct{}, window), h: newHistogram()}
			var err error
			if c.p, err = s.producer(topic, c.acked); err != nil {
				return sample{}, err
			}
			l.lanes = append(l.lanes, c)
		}
		return l.run(ctx, s, o.seconds)
	}
}

func (l *loop) close() {
	for _, c := range l.lanes {
		c.p.close()
	}
}

func (l *loop) run(ctx context.Context, s server, measured time.Duration) (sample, error) {
	l.from = max(minWarmUp, measured/warmUp)
	l.till = l.from + measured
	l.begin = time.Now()
	var all sync.WaitGroup
	for i, c := range l.lanes {
		all.Go(func() { c.loop.note(c.drive(uint64(i))) })
	}
	if err := pause(ctx, l.from); err != nil {
		return sample{}, err
	}
	g, err := newGauge(s)
	if err != nil {
		return sample{}, err
	}
	if err := pause(ctx, l.till-time.Since(l.begin)); err != nil {
		return sample{}, err
	}
	// The processor times are taken at the end of the measured part. The counts are complete when all lanes have ended.
	end, err := g.sample(1, measured, nil)
	if err != nil {
		return sample{}, err
	}
	all.Wait()
	if err := l.failed.Load(); err != nil {
		return sample{}, *err
	}
	h, count := newHistogram(), int64(0)
	for _, c := range l.lanes {
		h.Merge(c.h)
		count += c.count
	}
	got, err := g.sample(count, measured, h)
	if err == nil {
		got.ServerCPU, got.ClientCPU = end.ServerCPU/float64(count), end.ClientCPU/float64(count)
	}
	return got, err
}

// note keeps the first error.
func (l *loop) note(err error) {
	if err != nil {
		l.failed.CompareAndSwap(nil, &err)
	}
}

// drive publishes until the measured part has ended, and returns when everything is answered.
func (c *lane) drive(seed uint64) error {
	if cap(c.window) > 1 {
		return c.driveAsync(seed)
	}
	bodies := make([][]byte, c.batch)
	for i := range bodies {
		bodies[i] = newBody(seed<<16 + uint64(i))
	}
	for {
		sent := time.Since(c.begin)
		if sent >= c.till || c.failed.Load() != nil {
			return nil
		}
		err := error(nil)
		if c.batch == 1 {
			err = c.p.publish(bodies[0])
		} else {
			err = c.p.publishBatch(bodies)
		}
		if err != nil {
			return fmt.Errorf("a publish failed: %w", err)
		}
		c.meter(sent)
	}
}

func (c *lane) driveAsync(seed uint64) error {
	b := newBody(seed)
	for {
		c.window <- struct{}{}
		sent := time.Since(c.begin)
		if sent >= c.till || c.failed.Load() != nil {
			break
		}
		if err := c.p.publishAsync(b, sent); err != nil {
			return fmt.Errorf("a publish failed: %w", err)
		}
	}
	// The last entry of the window belongs to no publish. When all others are free again, everything was answered.
	for range cap(c.window) - 1 {
		select {
		case c.window <- struct{}{}:
		case <-time.After(stallLimit):
			return fmt.Errorf("publishes were not answered within %v", stallLimit)
		}
	}
	return nil
}

// acked is called by the client for an answer to publishAsync.
func (c *lane) acked(sent time.Duration, err error) {
	if err != nil {
		c.note(fmt.Errorf("a publish failed: %w", err))
	} else {
		c.meter(sent)
	}
	<-c.window
}

// meter counts an answered publish, if the answer came in the measured part.
func (c *lane) meter(sent time.Duration) {
	if now := time.Since(c.begin); now >= c.from && now < c.till {
		c.count += int64(c.batch)
		_ = c.h.RecordValue(int64(now - sent)) // beyond five minutes no work goes on
	}
}

// pause waits, or returns the context's error.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
