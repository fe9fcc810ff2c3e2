package load

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"penstock/client"
)

// Native says how a run speaks the native protocol, with package client. Each connection of the run is a client.Client
// of its own, with one producer, consumer or reader.
type Native struct {
	Nodes    []string // HOST:PORT of the native protocol
	Options  client.Options
	Producer client.ProducerOptions
}

// MaxNativeInFlight bounds InFlight of a native run: what is on its way there is counted in batches, not in messages.
const MaxNativeInFlight = 1 << 20

// clockEvery is for how many messages in a row a producer looks at the clock once, unless it had to wait.
const clockEvery = 16

// dialNative connects to the cluster once more.
func (r *run) dialNative(ctx context.Context, hooks client.Hooks) (*client.Client, error) {
	o := r.cfg.Native.Options
	o.Hooks = hooks
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := client.Dial(ctx, r.cfg.Native.Nodes, o)
	if err == nil {
		r.clients = append(r.clients, c)
	}
	return c, err
}

// openNative opens a producer per connection before the clock starts. The context that it returns ends with the run.
func openNative(ctx context.Context, cfg *Config) (context.Context, *run, []*producer, error) {
	r := &run{cfg: cfg, budget: newBudget(cfg.Messages)}
	ctx, r.cancel = context.WithCancel(ctx)
	bodies := newBodies(cfg)
	var all []*producer
	for range cfg.Connections {
		p := &producer{r: r, bodies: bodies, wake: make(chan struct{}, 1)}
		if err := p.open(ctx); err != nil {
			r.close()
			return nil, nil, nil, err
		}
		all = append(all, p)
	}
	return ctx, r, all, nil
}

// publishNative is Publish over the native protocol. With one message in flight it measures Producer.ProduceSync,
// otherwise Producer.Produce, whose latency is the time from the call to done.
func publishNative(ctx context.Context, cfg Config) (*Report, error) {
	ctx, r, producers, err := openNative(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	defer r.close()
	report := newReport(&cfg, "pub")
	r.start()
	r.produceAll(ctx, producers)
	report.finish(r, r.meters)
	report.latency("ack", r.meters)
	report.batches(producers)
	return report, r.failure()
}

// produceAll runs the producers until time or messages run out and every message was answered.
func (r *run) produceAll(ctx context.Context, producers []*producer) {
	var wg sync.WaitGroup
	if r.cfg.Rate > 0 {
		wg.Go(func() { r.paceNative(ctx, producers) })
	} else {
		for _, p := range producers {
			loop := p.loop
			if r.cfg.InFlight == 1 {
				loop = p.loopSync
			}
			wg.Go(func() {
				if err := loop(ctx); err != nil {
					r.faults.add(err)
				}
			})
		}
	}
	r.await(ctx, &wg)
	r.close() // the hooks have returned, too
}

// slot is a message on its way.
type slot struct {
	m    client.Message
	at   int64 // when it was produced, or should have been
	busy atomic.Bool
	done func(*client.Message, client.ID, error)
}

// told is where the answers of one partition are counted. The client calls done functions and hooks of a partition one
// after the other, on one goroutine.
type told struct {
	meter     *meter
	now       int64 // time of the batch that is being told; 0: a new one begins
	at        int64 // when the messages were produced that are not in meter yet
	n         int
	batches   int64
	wireBytes int64
}

// producer is one connection of a native run. Its loop produces; what is told arrives on goroutines of the client.
type producer struct {
	r      *run
	p      *client.Producer
	bodies *bodies
	told   []told // by partition
	slots  []slot // a ring: of the messages on their way and of those to come
	next   int    // slot of the next message
	since  int    // messages since the clock was read
	now    int64

	arrivals *arrivals // of an end-to-end run, whose bodies are stamped; nil: of none
	stamped  []byte    // memory for such a body

	waiting atomic.Bool // the loop waits for its next slot
	wake    chan struct{}
	failed  atomic.Bool
}

func (p *producer) open(ctx context.Context) error {
	r := p.r
	c, err := r.dialNative(ctx, client.Hooks{Produced: p.produced})
	if err != nil {
		return err
	}
	opening, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if p.p, err = c.Producer(opening, r.cfg.Topic, r.cfg.Native.Producer); err != nil {
		return err
	}
	p.told = make([]told, p.p.Partitions())
	for i := range p.told {
		p.told[i].meter = newMeter(r.cfg.Connections * len(p.told))
		r.meters = append(r.meters, p.told[i].meter)
	}
	p.slots = make([]slot, r.cfg.InFlight)
	headers := headersOf(r.cfg.Headers)
	for i := range p.slots {
		s := &p.slots[i]
		s.m.Headers = headers
		s.done = func(_ *client.Message, id client.ID, err error) { p.answer(s, id, err) }
	}
	return nil
}

// headersOf returns the headers that headersJSON has.
func headersOf(n int) []client.Header {
	var out []client.Header
	for i := range n {
		name, value := headerAt(i)
		out = append(out, client.Header{Key: []byte(name), Value: []byte(value)})
	}
	return out
}

// answer is done of a slot's message.
func (p *producer) answer(s *slot, id client.ID, err error) {
	if err != nil {
		p.failed.Store(true)
		p.r.faults.add(err)
	} else if i := int(id.Partition()); i < len(p.told) {
		p.told[i].count(&p.r.clock, s.at)
	}
	s.busy.Store(false)
	if p.waiting.Load() && p.waiting.CompareAndSwap(true, false) {
		p.wake <- struct{}{} // there is one per wait
	}
}

func (t *told) count(c *clock, at int64) {
	if t.now == 0 {
		t.now = c.now()
	}
	if at != t.at {
		t.flush(c)
		t.at = at
	}
	t.n++
}

func (t *told) flush(c *clock) {
	if t.n > 0 {
		t.meter.record(c, t.now, t.at, t.n, 1)
		t.n = 0
	}
}

// produced is the client's hook: the messages of a batch were told.
func (p *producer) produced(b client.ProducedBatch) {
	if b.Err != nil || b.Partition >= len(p.told) {
		return
	}
	t := &p.told[b.Partition]
	t.flush(&p.r.clock)
	t.now = 0
	t.batches++
	t.wireBytes += int64(b.Bytes)
}

// loopSync produces one message after the other.
func (p *producer) loopSync(ctx context.Context) error {
	s := &p.slots[0]
	for {
		now := p.r.clock.now()
		if p.r.clock.over(now) || p.r.budget.take(1) == 0 {
			return nil
		}
		s.m.Body = p.bodies.next(p.next)
		p.next++
		if _, err := p.p.ProduceSync(ctx, &s.m); err != nil {
			return err
		}
		p.told[0].meter.record(&p.r.clock, p.r.clock.now(), now, 1, 1)
	}
}

// loop keeps the window full until time or messages run out, and then waits for the last answers.
func (p *producer) loop(ctx context.Context) error {
	for !p.failed.Load() {
		if p.since == 0 {
			if p.now = p.r.clock.now(); p.r.clock.over(p.now) {
				break
			}
		}
		if p.since++; p.since == clockEvery {
			p.since = 0
		}
		if p.r.budget.take(1) == 0 {
			break
		}
		if err := p.produce(ctx, p.now); err != nil {
			return err
		}
	}
	return p.p.Flush(ctx)
}

// produce produces one message, when there is a slot for it. at is the time from which its latency counts; with the
// producer's own clock it is read anew after a pause.
func (p *producer) produce(ctx context.Context, at int64) error {
	s := &p.slots[p.next%len(p.slots)]
	if s.busy.Load() {
		if err := p.await(ctx, s); err != nil {
			return err
		}
		if p.r.cfg.Rate == 0 {
			p.now, p.since = p.r.clock.now(), 1
			at = p.now
		}
	}
	s.m.Body = p.bodies.next(p.next)
	if p.arrivals != nil {
		p.stamped = append(p.stamped[:0], s.m.Body...)
		p.arrivals.stamp(p.stamped, at)
		s.m.Body = p.stamped // Produce copies it
	}
	s.at = at
	s.busy.Store(true)
	p.next++
	p.p.Produce(ctx, &s.m, s.done)
	return nil
}

// await waits until the slot's message is answered.
func (p *producer) await(ctx context.Context, s *slot) error {
	for s.busy.Load() {
		p.waiting.Store(true)
		if !s.busy.Load() && p.waiting.CompareAndSwap(true, false) {
			return nil
		}
		select {
		case <-p.wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// paceNative produces at the configured rate: message i is meant for start + i × interval, on connection i mod n.
func (r *run) paceNative(ctx context.Context, producers []*producer) {
	release := preciseSleep()
	defer release()
	fail := func(err error) {
		if err != nil {
			r.faults.add(err)
		}
	}
	interval := float64(time.Second) / r.cfg.Rate
	for sent := 0; ; sleep(int64(float64(sent)*interval) - r.clock.now()) {
		for now := r.clock.now(); float64(sent)*interval <= float64(now); sent++ {
			p := producers[sent%len(producers)]
			if r.clock.over(now) || p.failed.Load() || r.budget.take(1) == 0 {
				for _, p := range producers {
					fail(p.p.Flush(ctx))
				}
				return
			}
			if err := p.produce(ctx, int64(float64(sent)*interval)); err != nil {
				fail(err)
				return
			}
		}
	}
}

// fillNative publishes the messages that a run consumes.
func fillNative(ctx context.Context, cfg Config) error {
	cfg.Connections, cfg.InFlight, cfg.WarmUp, cfg.Duration, cfg.Fill = 1, 1<<16, 0, 0, false
	if _, err := publishNative(ctx, cfg); err != nil {
		return fmt.Errorf("filling the topic: %w", err)
	}
	return nil
}

// ReadPast measures how fast the messages that a topic keeps are read, without a channel, from the oldest one to the
// newest of the time when the run begins. Each partition has a reader, on connection partition mod n.
func ReadPast(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if cfg.Native == nil {
		return nil, fmt.Errorf("%w: only the native protocol reads a topic without a channel", ErrConfig)
	}
	if cfg.Fill {
		if err := fillNative(ctx, cfg); err != nil {
			return nil, err
		}
	}
	cfg.WarmUp = 0
	r := &run{cfg: &cfg, budget: newBudget(0)}
	defer r.close()
	ctx, r.cancel = context.WithCancel(ctx)
	for range cfg.Connections {
		if _, err := r.dialNative(ctx, client.Hooks{}); err != nil {
			return nil, err
		}
	}
	partitions, err := r.clients[0].Partitions(ctx, cfg.Topic)
	if err != nil {
		return nil, err
	}
	report := newReport(&cfg, "read")
	r.start()
	var wg sync.WaitGroup
	bodyBytes := make([]int64, partitions)
	for i := range partitions {
		m := newMeter(partitions)
		r.meters = append(r.meters, m)
		wg.Go(func() {
			if err := r.readPartition(ctx, r.clients[i%len(r.clients)], i, m, &bodyBytes[i]); err != nil {
				r.faults.add(err)
			}
		})
	}
	r.await(ctx, &wg)
	report.finish(r, r.meters)
	total := int64(0)
	for _, n := range bodyBytes {
		total += n
	}
	if report.Elapsed > 0 {
		report.BytesPerSecond = float64(total) / report.Elapsed.Seconds()
	}
	return report, r.failure()
}

// errNothing says that no message came within idleAfter.
var errNothing = errors.New("no message came")

// readPartition reads one partition to the end that it has when its leader first answers.
func (r *run) readPartition(ctx context.Context, c *client.Client, partition int, m *meter, bodyBytes *int64) error {
	reader, err := c.Reader(ctx, r.cfg.Topic, partition, client.FromOldest())
	if err != nil {
		return err
	}
	defer reader.Close()
	end, known := client.ID(0), false
	n, bytes := int64(0), int64(0)
	defer func() {
		m.done.Store(n)
		m.measured, m.last, *bodyBytes = n, r.clock.now(), bytes
	}()
	for {
		brief, cancel := context.WithTimeoutCause(ctx, idleAfter, errNothing)
		for {
			got, err := reader.Next(brief)
			if err != nil {
				cancel()
				if errors.Is(err, errNothing) {
					return nil // there is no message
				}
				return err
			}
			if !known {
				end, known = reader.Newest()
			}
			n, bytes = n+1, bytes+int64(len(got.Body))
			if got.ID+1 >= end {
				cancel()
				return nil
			}
			if n%4096 == 0 {
				m.done.Store(n)
				break // the messages come: wait anew for the next ones
			}
		}
		cancel()
		if r.clock.stop > 0 && r.clock.over(r.clock.now()) {
			return nil
		}
	}
}

// address is what the run connects to, for the report.
func (c *Config) address() string {
	if c.Native != nil {
		return strings.Join(c.Native.Nodes, ",")
	}
	return c.Address
}
