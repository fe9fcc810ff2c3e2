package node_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/channel"
	"penstock/internal/node/message"
	"penstock/tests/support/faultaio"
)

// runClient is a testClient that takes messages next to each other at once.
type runClient struct {
	*testClient
	runs *int // counts runs of several messages
}

func (c *runClient) DeliverRun(r *message.Run) (count int, room bool) {
	for m := r.Next(); m != nil; m = r.Next() {
		d := node.Delivery{
			ID: r.ID + node.ID(count), Number: r.Number + uint64(count), Attempts: 1,
			Timestamp: r.Created + m.TimeDelta*1000, Body: m.Body,
		}
		if count++; !c.Deliver(&d) {
			return count, false
		}
	}
	if count > 1 {
		*c.runs++
	}
	return count, true
}

// sinkPair is two channels of a topic that are alike, but that one delivers runs to its sink.
type sinkPair struct {
	t       *testing.T
	rng     *rand.Rand
	disk    *faultaio.Disk
	e       *node.Engine
	topic   *node.Topic
	clients [2]*testClient // the second one gets runs
	open    []delivered    // in flight at both
	ready   int
	depth   int // messages that are not finished, and wait for no time
	batches int
	runs    int
}

// begin opens the engine, and attaches both clients.
func (p *sinkPair) begin() {
	p.t.Helper()
	p.e = openOnDisk(p.t, p.disk, func(o *node.Options) { o.MaxDeliveriesAtOne = 150 })
	p.topic = topicOf(p.t, p.e, "t")
	alone := subscribe(p.t, channelOf(p.t, p.topic, "alone"), p.ready)
	inRuns := subscribeRuns(p.t, channelOf(p.t, p.topic, "runs"), p.ready, &p.runs)
	p.clients = [2]*testClient{alone, inRuns.testClient}
}

// again closes the engine, and begins with what it has stored. Messages that were in flight come again.
func (p *sinkPair) again() {
	p.t.Helper()
	if err := p.e.Close(); err != nil {
		p.t.Fatal(err)
	}
	p.open, p.disk = nil, p.disk.Crash(1)
	p.begin()
}

// subscribeRuns is subscribe for a client that counts its runs of several messages.
func subscribeRuns(t *testing.T, c *node.Channel, ready int, runs *int) *runClient {
	t.Helper()
	s := &runClient{&testClient{t: t, came: make(chan struct{}, 1)}, runs}
	s.attach(c, s, ready, node.ConsumerOptions{})
	return s
}

// each does the same at both clients.
func (p *sinkPair) each(do func(c *testClient) error) {
	p.t.Helper()
	errs := [2]error{do(p.clients[0]), do(p.clients[1])}
	if fmt.Sprint(errs[0]) != fmt.Sprint(errs[1]) {
		p.t.Fatalf("one client gets %v, the other %v", errs[0], errs[1])
	}
}

// settle waits until both clients have all that they may have, and compares what came.
func (p *sinkPair) settle() {
	p.t.Helper()
	for _, c := range p.clients {
		c.mu.Lock()
		if c.limit > 0 && len(c.got) > c.limit {
			p.t.Errorf("a sink that is full after %d messages got %d", c.limit, len(c.got))
		}
		c.limit = 0
		c.mu.Unlock()
		c.Unblock()
	}
	came := [2][]delivered{}
	for want := max(0, min(p.ready, p.depth)-len(p.open)); want > 0; want-- {
		for i, c := range p.clients {
			came[i] = append(came[i], c.next())
		}
	}
	for i, a := range came[0] {
		b := came[1][i]
		if a.at, b.at = b.at, a.at; a.id != b.id || a.body != b.body || a.attempts != b.attempts || a.number != b.number ||
			!a.stamp.Equal(b.stamp) {
			p.t.Fatalf("delivery %d: one client gets %v, the other %v", i, a, b)
		}
	}
	p.open = append(p.open, came[0]...)
	for _, c := range p.clients {
		if n := c.Counts().InFlightCount; n != len(p.open) {
			p.t.Fatalf("%d messages are in flight, not %d", n, len(p.open))
		}
	}
}

func (p *sinkPair) publish() {
	p.t.Helper()
	n := 1 + p.rng.IntN(300)
	p.batches++
	if p.rng.IntN(4) == 0 {
		p.publishApart(n)
		return
	}
	some := p.rng.IntN(3) == 0
	ms := make([]node.Outgoing, n)
	for i := range ms {
		ms[i].Body = fmt.Append(nil, "batch ", p.batches, " message ", i)
		if some && p.rng.IntN(20) == 0 {
			ms[i].Headers = []node.Header{{Key: []byte("colour"), Value: []byte("blue")}}
		}
	}
	if _, err := p.topic.PublishMessages(p.t.Context(), ms); err != nil {
		p.t.Fatal(err)
	}
	p.depth += n
}

// publishApart publishes n messages that share batches, and of which some wait for an hour.
func (p *sinkPair) publishApart(n int) {
	p.t.Helper()
	done := make(chan error, n)
	for i := range n {
		put := &node.Put{
			Messages: [][]byte{fmt.Append(nil, "batch ", p.batches, " message ", i)},
			Done:     func(put *node.Put) { done <- put.Err },
		}
		if p.rng.IntN(20) == 0 {
			put.Defer = time.Hour
		} else {
			p.depth++
		}
		if err := p.topic.SubmitTo(0, put); err != nil {
			p.t.Fatal(err)
		}
	}
	for range n {
		if err := <-done; err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p *sinkPair) act() {
	p.t.Helper()
	switch p.rng.IntN(9) {
	case 0, 1:
		p.publish()
	case 2:
		p.ready = 20 + p.rng.IntN(400)
		p.each(func(c *testClient) error { return c.Ready(p.ready) })
	case 3: // the sinks are full after some messages
		limit := 1 + p.rng.IntN(100)
		for _, c := range p.clients {
			c.mu.Lock()
			c.limit = limit
			c.mu.Unlock()
		}
		p.publish()
		p.each(func(c *testClient) error { c.Pump(); return nil })
	case 4:
		for range min(len(p.open), p.rng.IntN(20)) {
			i := p.rng.IntN(len(p.open))
			p.each(func(c *testClient) error { return c.local().FinishDelivery(p.open[i].id, p.open[i].number) })
			p.open = slices.Delete(p.open, i, i+1)
			p.depth--
		}
	case 5, 6:
		if len(p.open) == 0 {
			return
		}
		last := p.open[p.rng.IntN(len(p.open))].number
		p.each(func(c *testClient) error { return c.local().FinishThrough(last) })
		had := len(p.open)
		p.open = slices.DeleteFunc(p.open, func(m delivered) bool { return m.number <= last })
		p.depth -= had - len(p.open)
	case 7:
		if len(p.open) == 0 {
			return
		}
		i := p.rng.IntN(len(p.open))
		p.each(func(c *testClient) error { return c.Requeue(p.open[i].id, 0) })
		p.open = slices.Delete(p.open, i, i+1)
	case 8:
		if p.rng.IntN(5) == 0 {
			p.again()
		}
	}
}

// A sink that takes messages next to each other at once gets the same deliveries, with the same numbers and in the same
// order, as one that takes them one by one: also when it is full, when messages have delays or headers, when some are
// requeued, and when some were finished before a restart.
func TestRunSinksAreLikeSinks(t *testing.T) {
	t.Parallel()
	runs := 0
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			p := &sinkPair{t: t, rng: rand.New(rand.NewPCG(seed, 1)), disk: newDisk(), ready: 100}
			p.begin()
			for range 200 {
				p.act()
				p.settle()
			}
			runs += p.runs
		})
	}
	if runs < 300 {
		t.Errorf("%d runs: this test compares little", runs)
	}
}

// A message that has a tag, and was delivered to a client without one, goes to a client with its tag afterwards.
func TestRunSinkAndTags(t *testing.T) {
	topic := topicOf(t, openOnDisk(t, newDisk()), "t")
	c, runs := channelOf(t, topic, "c"), 0
	s := subscribeRuns(t, c, 100, &runs)
	ms := make([]node.Outgoing, 10)
	for i := range ms {
		ms[i] = node.Outgoing{
			Body: []byte("m"), Headers: []node.Header{{Key: []byte(channel.TagHeader), Value: []byte("blue")}},
		}
	}
	if _, err := topic.PublishMessages(t.Context(), ms); err != nil {
		t.Fatal(err)
	}
	for range ms {
		s.next()
	}
	blue := subscribe(t, c, 100, node.ConsumerOptions{Tag: "blue"})
	s.Close()
	for range ms {
		if m := blue.next(); m.attempts != 2 {
			t.Fatalf("%v came", m)
		}
	}
}

// recorder counts the latencies that a channel has measured.
type recorder atomic.Int64

func (r *recorder) Record(int64) { (*atomic.Int64)(r).Add(1) }

// Latencies are measured for messages that could come in runs, too.
func TestRunSinkAndLatencies(t *testing.T) {
	var r recorder
	e := openOnDisk(t, newDisk(), func(o *node.Options) {
		o.Latencies = func() message.LatencyRecorder { return &r }
	})
	topic, runs := topicOf(t, e, "t"), 0
	s := subscribeRuns(t, channelOf(t, topic, "c"), 100, &runs)
	ms := slices.Repeat([]node.Outgoing{{Body: []byte("m")}}, 10)
	if _, err := topic.PublishMessages(t.Context(), ms); err != nil {
		t.Fatal(err)
	}
	var last delivered
	for range 10 {
		last = s.next()
	}
	if err := s.local().FinishThrough(last.number); err != nil {
		t.Fatal(err)
	}
	if n := (*atomic.Int64)(&r).Load(); n != 10 {
		t.Errorf("%d latencies were measured, not 10", n)
	}
}
