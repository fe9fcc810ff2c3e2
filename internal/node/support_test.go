package node_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/channel"
	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
	wait "penstock/tests/support/patience"
)

// patience is how long a test waits for a condition that must come true. It is long, because the machine may be busy.
var patience = wait.Or(60 * time.Second)

// openWith opens an engine and closes it at the end of the test, unless the test has closed it before.
func openWith(t testing.TB, o node.Options) *node.Engine {
	t.Helper()
	e, err := node.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// openOnDisk opens an engine with smallOptions, changed by change, on a simulated disk.
func openOnDisk(t testing.TB, d aio.Disk, change ...func(*node.Options)) *node.Engine {
	t.Helper()
	o := smallOptions(d)
	for _, f := range change {
		f(&o)
	}
	return openWith(t, o)
}

func newDisk() *faultaio.Disk { return faultaio.New(faultaio.Options{Seed: 1, Log: true}) }

// inDir is smallOptions for a real directory.
func inDir(dir string) node.Options {
	o := smallOptions(nil)
	o.DataPath = dir
	return o
}

// logged collects the log lines of an engine. mu guards buf: any goroutine may log.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func topicOf(t testing.TB, e *node.Engine, name string) *node.Topic {
	t.Helper()
	topic, err := e.Topic(context.Background(), name)
	if err != nil {
		t.Fatal(err)
	}
	return topic
}

func channelOf(t testing.TB, topic *node.Topic, name string) *node.Channel {
	t.Helper()
	c, err := topic.Channel(context.Background(), name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// publish stores bodies one after the other and returns their ids.
func publish(t testing.TB, topic *node.Topic, bodies ...string) []node.ID {
	t.Helper()
	var ids []node.ID
	for _, b := range bodies {
		id, err := topic.PublishMessage(context.Background(), node.Outgoing{Body: []byte(b)})
		if err != nil {
			t.Fatalf("publish %.40q: %v", b, err)
		}
		ids = append(ids, id)
	}
	return ids
}

// numbered returns n bodies prefix0, prefix1, ..., each followed by pad bytes.
func numbered(prefix string, n, pad int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s%d", prefix, i)
		if pad > 0 {
			out[i] += "/" + string(bytes.Repeat([]byte{'x'}, pad))
		}
	}
	return out
}

// delivered is one delivery to a testClient.
type delivered struct {
	id       node.ID
	body     string
	attempts uint16
	stamp    time.Time
	at       time.Time // when it came
	number   uint64
}

// testClient is a consumer and its Sink. The test finishes the messages itself. The engine calls Deliver and Closed on
// its own goroutines; mu guards the fields below it.
type testClient struct {
	node.Consumer
	t    testing.TB
	came chan struct{} // one value: got or ended has changed

	mu     sync.Mutex
	got    []delivered // deliveries that the test has not taken yet
	ended  error       // the error of the last Closed
	limit  int         // length of got from which Deliver says that the sink is full; 0: never
	closes int         // calls of Closed
}

// local is the consumer that Attach made.
func (s *testClient) local() *channel.Consumer { return s.Consumer.(*channel.Consumer) }

// subscribe attaches a consumer to the channel, with up to ready messages in flight.
func subscribe(t testing.TB, c *node.Channel, ready int, o ...node.ConsumerOptions) *testClient {
	t.Helper()
	s := &testClient{t: t, came: make(chan struct{}, 1)}
	s.attach(c, s, ready, append(o, node.ConsumerOptions{})[0])
	return s
}

// attach makes sink, which is s or contains it, a consumer of the channel.
func (s *testClient) attach(c *node.Channel, sink node.Sink, ready int, o node.ConsumerOptions) {
	s.t.Helper()
	k, err := c.Attach(o, sink)
	if err != nil {
		s.t.Fatal(err)
	}
	s.Consumer = k
	if err := k.Ready(ready); err != nil {
		s.t.Fatal(err)
	}
	k.Pump()
}

func (s *testClient) Deliver(d *node.Delivery) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = append(s.got, delivered{d.ID, string(d.Body), d.Attempts, time.Unix(0, d.Timestamp), time.Now(), d.Number})
	s.tell()
	return s.limit == 0 || len(s.got) < s.limit
}

func (s *testClient) Flush() {}

func (s *testClient) Closed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = err
	s.closes++
	s.tell()
}

func (s *testClient) tell() {
	select {
	case s.came <- struct{}{}:
	default:
	}
}

// poll takes the oldest delivery that the test has not taken yet. It waits for one at most d.
func (s *testClient) poll(d time.Duration) (delivered, bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		s.mu.Lock()
		if len(s.got) > 0 {
			m := s.got[0]
			s.got = s.got[1:]
			s.mu.Unlock()
			return m, true
		}
		s.mu.Unlock()
		select {
		case <-s.came:
		case <-timer.C:
			return delivered{}, false
		}
	}
}

// next takes the next delivery, and waits for it.
func (s *testClient) next() delivered {
	s.t.Helper()
	m, ok := s.poll(patience)
	if !ok {
		s.t.Fatal("no message came")
	}
	return m
}

// expectNothing fails the test if a message comes within 60 ms. Wrong messages come within milliseconds, so a short
// wait finds them.
func (s *testClient) expectNothing(why string) {
	s.t.Helper()
	if m, ok := s.poll(60 * time.Millisecond); ok {
		s.t.Errorf("%s: %s %.40q came (attempt %d)", why, m.id, m.body, m.attempts)
	}
}

// finish confirms the messages and lets the channel deliver the next ones.
func (s *testClient) finish(ms ...delivered) {
	s.t.Helper()
	for _, m := range ms {
		if err := s.Finish(m.id); err != nil {
			s.t.Fatalf("finish %s: %v", m.id, err)
		}
	}
	s.Pump()
}

// take waits for n messages, finishes them and returns their bodies.
func (s *testClient) take(n int) []string {
	s.t.Helper()
	bodies := make([]string, 0, n)
	for range n {
		m := s.next()
		bodies = append(bodies, m.body)
		s.finish(m)
	}
	return bodies
}

// eventually waits until holds returns true. After patience it fails the test, with what as the condition's name.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

func channelStats(t testing.TB, c *node.Channel) node.ChannelStats {
	t.Helper()
	for _, ts := range node.EngineOf(c.Topic()).Stats(c.Topic().Name(), c.Name()) {
		for _, cs := range ts.Channels {
			return cs
		}
	}
	t.Fatalf("no statistics of channel %s", c.Name())
	return node.ChannelStats{}
}

// readAll finishes the messages of a channel until none is left, deferred ones included, and returns their bodies by
// id.
func readAll(t testing.TB, c *node.Channel) map[node.ID]string {
	t.Helper()
	got := map[node.ID]string{}
	s := subscribe(t, c, 500)
	defer s.Close()
	for deadline := time.Now().Add(patience); ; {
		m, ok := s.poll(5 * time.Millisecond)
		if ok {
			got[m.id] = m.body
			s.finish(m)
			continue
		}
		if st := channelStats(t, c); st.Depth == 0 && st.InFlightCount == 0 && st.DeferredCount == 0 {
			return got
		}
		if time.Now().After(deadline) {
			t.Fatalf("the channel does not run empty: %+v", channelStats(t, c))
		}
	}
}

// allocations is how often run allocates, at the least of five tries that are above most: on a busy machine, what goes
// on beside a run allocates more.
func allocations(most float64, run func()) (least float64) {
	least = testing.AllocsPerRun(100, run)
	for range 4 {
		if least > most {
			least = min(least, testing.AllocsPerRun(100, run))
		}
	}
	return least
}

// result is the answer to a Put.
type result struct {
	id  node.ID
	err error
}

// submit submits a batch and returns the channel on which its answer comes.
func submit(topic *node.Topic, deadline time.Time, bodies ...string) (chan result, error) {
	done := make(chan result, 1)
	p := &node.Put{Deadline: deadline, Done: func(p *node.Put) { done <- result{p.First, p.Err} }}
	for _, b := range bodies {
		p.Messages = append(p.Messages, []byte(b))
	}
	return done, topic.Submit(p)
}

// answer waits for the answer of a submit.
func answer(t testing.TB, done chan result) result {
	t.Helper()
	select {
	case r := <-done:
		return r
	case <-time.After(patience):
		t.Fatal("a put was never answered")
		return result{}
	}
}

// holdCommits makes the writes of the commit log hang until release is called, or the test ends. begun waits until a
// write hangs.
func holdCommits(t testing.TB, d *faultaio.Disk) (begun, release func()) {
	commits := func() (n int) {
		for _, op := range d.Log() {
			if op.Kind == faultaio.KindWriteSync && strings.HasPrefix(op.Name, "clog/") {
				n++
			}
		}
		return n
	}
	before := commits()
	d.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Name: "clog/*", Hold: true, Count: -1})
	release = sync.OnceFunc(func() {
		d.ClearRules()
		d.ReleaseHeld()
	})
	t.Cleanup(release)
	return func() { eventually(t, "a commit begins", func() bool { return commits() > before }) }, release
}
