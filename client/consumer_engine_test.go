//go:build linux

package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"penstock/client"
	"penstock/internal/node"
)

// publish produces messages first to end, with keys of their own.
func publish(t testing.TB, c *client.Client, first, end int) {
	t.Helper()
	p, err := c.Producer(within(t), "orders", client.ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := first; i < end; i++ {
		p.Produce(within(t), &client.Message{Key: fmt.Append(nil, i), Body: fmt.Append(nil, i)},
			func(_ *client.Message, _ client.ID, err error) {
				if err != nil {
					t.Error(err)
				}
			})
	}
	if err := p.Close(within(t)); err != nil {
		t.Fatal(err)
	}
}

func consumer(t testing.TB, c *client.Client, o client.ConsumerOptions) *client.Consumer {
	t.Helper()
	o.From = client.FromOldest()
	s, err := c.Consumer(within(t), "orders", "billing", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(within(t)) })
	return s
}

// received counts deliveries by body.
type received struct {
	mu    sync.Mutex
	times map[string]int
}

func (r *received) note(d *client.Delivery) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.times == nil {
		r.times = map[string]int{}
	}
	r.times[string(d.Body)]++
}

func (r *received) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.times)
}

// again is how many messages came more than once.
func (r *received) again() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, times := range r.times {
		if times > 1 {
			n++
		}
	}
	return n
}

// consume handles messages until n different ones have come, and finishes them.
func (r *received) consume(t testing.TB, s *client.Consumer, n int) {
	t.Helper()
	for r.count() < n {
		all, err := s.Batch(within(t), 500)
		if err != nil {
			t.Fatalf("after %d of %d messages: %v", r.count(), n, err)
		}
		for i := range all {
			r.note(&all[i])
		}
		if err := all[len(all)-1].FinishThrough(); err != nil && !errors.Is(err, client.ErrNotInFlight) {
			t.Fatal(err)
		}
	}
}

// empty checks that nothing is left in the channel.
func empty(t testing.TB, s *client.Consumer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if d, err := s.Next(ctx); err == nil {
		t.Errorf("message %s comes, attempt %d", d.Body, d.Attempts)
	}
}

// Where nothing fails, each message comes once; after a Sync also if the node is started again.
func TestRealConsumer(t *testing.T) {
	nodes := startNodes(t, 1)
	c := dialNodes(t, nodes)
	publish(t, c, 0, 5000)
	s := consumer(t, c, client.ConsumerOptions{MaxInFlight: 1000})
	var r received
	r.consume(t, s, 4000)
	if err := s.Sync(within(t)); err != nil {
		t.Fatal(err)
	}
	nodes[0].stop()
	nodes[0].start()
	publish(t, c, 5000, 6000)
	r.consume(t, s, 6000)
	if err := s.Sync(within(t)); err != nil {
		t.Error(err)
	}
	if n := r.again(); n > 1000 { // those that were in flight when the node stopped
		t.Errorf("%d messages came again", n)
	}
	empty(t, s)
	if err := s.Close(within(t)); err != nil {
		t.Error(err)
	}
	empty(t, consumer(t, c, client.ConsumerOptions{}))
}

// A message that is not finished in time, or given back, comes again, and what its first delivery is told is too late.
func TestRealConsumerAgain(t *testing.T) {
	nodes := startNodes(t, 1)
	c := dialNodes(t, nodes)
	publish(t, c, 0, 4)
	s := consumer(t, c, client.ConsumerOptions{Timeout: 2 * time.Second})
	next := func() *client.Delivery {
		d, err := s.Next(within(t))
		if err != nil {
			t.Fatal(err)
		}
		return &d
	}
	late, back, touched, last := next(), next(), next(), next()
	if err := back.Requeue(time.Millisecond); err != nil {
		t.Error(err)
	}
	if again := next(); again.ID != back.ID || again.Attempts != 2 {
		t.Errorf("%v, attempt %d", again.ID, again.Attempts)
	} else if err := again.Finish(); err != nil {
		t.Error(err)
	}
	if err := last.Finish(); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(within(t))
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			if err := touched.Touch(); err != nil {
				t.Error(err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	again := next() // the third message is touched
	cancel()
	wg.Wait()
	if again.ID != late.ID || again.Attempts != 2 {
		t.Errorf("%v, attempt %d", again.ID, again.Attempts)
	}
	if err := late.Finish(); !errors.Is(err, client.ErrNotInFlight) {
		t.Errorf("%v", err)
	}
	for _, d := range []*client.Delivery{again, touched} {
		if err := d.FinishThrough(); d == again && err != nil {
			t.Error(err)
		}
	}
	if err := s.Sync(within(t)); err != nil {
		t.Error(err)
	}
	eventually(t, "the channel has nothing more", func() bool {
		c := nodes[0].e.Stats("orders", "billing")[0].Channels[0]
		return c.Depth == 0 && c.InFlightCount == 0 && c.DeferredCount == 0
	})
	empty(t, s)
}

// Messages that the program leaves alone come again, also if their bytes are all that the consumer may have.
func TestRealConsumerLeftAlone(t *testing.T) {
	nodes := startNodes(t, 1)
	c := dialNodes(t, nodes)
	publish(t, c, 0, 3)
	s := consumer(t, c, client.ConsumerOptions{Timeout: 100 * time.Millisecond, MaxInFlightBytes: 1})
	attempts := 0
	for attempts < 9 {
		d, err := s.Next(within(t))
		if err != nil {
			t.Fatal(err)
		}
		attempts += d.Attempts
	}
}

// A consumer with a tag, or for one partition, gets only what is for it.
func TestRealConsumerChooses(t *testing.T) {
	nodes := startNodes(t, 1)
	if _, err := nodes[0].e.CreateTopicWith(within(t), "orders", node.TopicOptions{Partitions: 2}); err != nil {
		t.Fatal(err)
	}
	c := dialNodes(t, nodes)
	second := 1
	eu := consumer(t, c, client.ConsumerOptions{Tag: "eu"})
	only := consumer(t, c, client.ConsumerOptions{Partition: &second})
	var mu sync.Mutex
	wrong, left := 0, 400
	done := make(chan struct{})
	take := func(s *client.Consumer, mine func(d *client.Delivery) bool) {
		for {
			d, err := s.Next(within(t))
			if err != nil {
				return
			}
			mu.Lock()
			if !mine(&d) {
				wrong++
			}
			if left--; left == 0 {
				close(done)
			}
			mu.Unlock()
			if err := d.Finish(); err != nil {
				t.Error(err)
			}
		}
	}
	var wg sync.WaitGroup
	tagged := func(d *client.Delivery) bool { return len(d.Headers) == 1 && string(d.Headers[0].Value) == "eu" }
	wg.Go(func() { take(eu, tagged) })
	wg.Go(func() { take(only, func(d *client.Delivery) bool { return !tagged(d) && d.ID.Partition() == 1 }) })
	p, err := c.Producer(within(t), "orders", client.ProducerOptions{
		Partition: func(m *client.Message, _ int) int { return len(m.Body) % 2 },
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 200 { // bodies of two bytes are for partition 0
		p.Produce(within(t), &client.Message{Body: []byte("eu"), Headers: []client.Header{
			{Key: []byte("tag"), Value: []byte("eu")},
		}}, nil)
		p.Produce(within(t), &client.Message{Body: []byte("any")}, nil)
	}
	if err := p.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%d messages did not come", left)
	}
	for _, s := range []*client.Consumer{eu, only} {
		if err := s.Close(within(t)); err != nil {
			t.Error(err)
		}
	}
	if wg.Wait(); wrong > 0 {
		t.Errorf("%d messages came to the wrong consumer", wrong)
	}
}

// In a cluster the consumer follows the leaders while nodes leave and come back, and misses nothing.
func TestRealConsumerCluster(t *testing.T) {
	nodes := startNodes(t, 3)
	if _, err := nodes[0].e.CreateTopicWith(within(t), "orders", node.TopicOptions{Partitions: 6}); err != nil {
		t.Fatal(err)
	}
	c := dialNodes(t, nodes)
	publish(t, c, 0, 1000)
	s := consumer(t, c, client.ConsumerOptions{Timeout: 15 * time.Second})
	var r received
	r.consume(t, s, 1000)
	if err := s.Sync(within(t)); err != nil {
		t.Error(err)
	}
	if n := r.again(); n > 0 {
		t.Errorf("%d messages came again without any failure", n)
	}
	end := 1000
	for _, m := range nodes {
		publish(t, c, end, end+1000)
		end += 1000
		r.consume(t, s, end-500)
		m.stop()
		publish(t, c, end, end+1000)
		end += 1000
		r.consume(t, s, end)
		m.start()
	}
	err := s.Sync(within(t))
	if err != nil && !errors.Is(err, client.ErrUnknown) && !errors.Is(err, client.ErrNotInFlight) {
		t.Error(err)
	}
	t.Logf("%d of %d messages came again", r.again(), end)
	publish(t, c, end, end+1000)
	r.consume(t, s, end+1000)
	if err := s.Close(within(t)); err != nil {
		t.Error(err)
	}
}

// kill ends a node without a handover: its connections are cut, and the others elect new leaders.
func (m *realNode) kill() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = m.s.Shutdown(ctx)
	<-m.served
	if err := m.e.Close(); err != nil {
		m.t.Errorf("%s closes: %v", m.name, err)
	}
	m.s, m.e = nil, nil
}

// startNodesToKill is startNodes for a test that kills nodes: in the end all of them are killed, because one that has
// just begun again may not be able to leave in order.
func startNodesToKill(t testing.TB) []*realNode {
	t.Helper()
	nodes := startNodes(t, 3)
	t.Cleanup(func() {
		for _, m := range nodes {
			if m.s != nil {
				m.kill()
			}
		}
	})
	if _, err := nodes[0].e.CreateTopicWith(within(t), "orders", node.TopicOptions{Partitions: 6}); err != nil {
		t.Fatal(err)
	}
	return nodes
}

// Nodes that are killed one after the other, under load, with messages that are requeued and held too long: each
// message comes at least once, and in the end none is left.
func TestRealConsumerKills(t *testing.T) {
	nodes := startNodesToKill(t)
	c := dialNodes(t, nodes)
	s := consumer(t, c, client.ConsumerOptions{MaxInFlight: 100, Timeout: time.Second})
	ctx, cancel := context.WithCancel(context.Background())
	var r received
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for n := 0; ; n++ {
				d, err := s.Next(ctx)
				if err != nil {
					return
				}
				switch {
				case n%50 == 7:
					err = d.Requeue(10 * time.Millisecond)
				case n%300 == 8: // it is forgotten, and comes again when its time is over
					continue
				default:
					if err = d.Finish(); err == nil {
						r.note(&d)
					}
				}
				if err != nil && !errors.Is(err, client.ErrNotInFlight) {
					t.Error(err)
				}
				if n%200 == 50*worker {
					err := s.Sync(within(t))
					if err != nil && !errors.Is(err, client.ErrNotInFlight) && !errors.Is(err, client.ErrUnknown) {
						t.Error(err)
					}
				}
			}
		})
	}
	end := 0
	for round := range 6 {
		publish(t, c, end, end+1000)
		m := nodes[round%3]
		m.kill()
		publish(t, c, end+1000, end+1500)
		end += 1500
		m.start()
	}
	for deadline := time.Now().Add(patience); r.count() < end; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d messages have come", r.count(), end)
		}
	}
	t.Logf("%d of %d messages came again", r.again(), end)
	cancel()
	wg.Wait()
	if err := s.Close(within(t)); err != nil && !errors.Is(err, client.ErrNotInFlight) {
		t.Error(err)
	}
}

// finishThroughEach calls FinishThrough on the last delivery of each subscription in a batch, and returns the messages
// that are finished for certain. A FinishThrough leaves out, without an error, the deliveries of other subscriptions
// that are over: it only answers for its own.
func finishThroughEach(t *testing.T, batch []client.Delivery) (finished []client.ID) {
	t.Helper()
	for i := range batch {
		last := &batch[i]
		if slices.ContainsFunc(batch[i+1:], func(d client.Delivery) bool { return d.SameSubscription(last) }) {
			continue
		}
		switch err := last.FinishThrough(); {
		case errors.Is(err, client.ErrNotInFlight):
			continue
		case err != nil:
			t.Fatal(err)
		}
		for j := range batch[:i+1] {
			if batch[j].SameSubscription(last) {
				finished = append(finished, batch[j].ID)
			}
		}
	}
	return finished
}

// What a Sync has confirmed never comes again, whichever nodes are killed.
func TestRealConsumerSyncHolds(t *testing.T) {
	nodes := startNodesToKill(t)
	c := dialNodes(t, nodes)
	const n = 4000
	publish(t, c, 0, n)
	s := consumer(t, c, client.ConsumerOptions{MaxInFlight: 100})
	var wg sync.WaitGroup
	defer wg.Wait()
	handled := make(chan int, 10*n)
	wg.Go(func() { // a node is killed after each 600 messages
		next, round := 600, 0
		for count := range handled {
			if count < next {
				continue
			}
			m := nodes[round%3]
			m.kill()
			m.start()
			next, round = next+600, round+1
		}
	})
	defer close(handled)
	confirmed, seen, again := map[client.ID]bool{}, map[client.ID]bool{}, 0
	patient := patience
	for {
		if len(seen) == n {
			patient = 500 * time.Millisecond // what is confirmed would come now
		}
		ctx, cancel := context.WithTimeout(context.Background(), patient)
		all, err := s.Batch(ctx, 50)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && len(seen) == n {
			break
		}
		if err != nil {
			t.Fatalf("after %d messages: %v", len(seen), err)
		}
		for i := range all {
			id := all[i].ID
			if confirmed[id] {
				t.Fatalf("message %v comes again, attempt %d", id, all[i].Attempts)
			}
			if seen[id] {
				again++
			}
			seen[id] = true
		}
		finished := finishThroughEach(t, all)
		switch err := s.Sync(within(t)); {
		case err == nil:
			for _, id := range finished {
				confirmed[id] = true
			}
		case !errors.Is(err, client.ErrNotInFlight) && !errors.Is(err, client.ErrUnknown):
			t.Fatal(err)
		}
		handled <- len(seen)
	}
	if len(confirmed) < n/2 {
		t.Errorf("%d of %d messages were confirmed: this tests little", len(confirmed), n)
	}
	t.Logf("%d of %d messages came again before they were confirmed", again, n)
}

// Consumers share a channel's messages, and those of a consumer that is closed go to the others.
func TestRealConsumersShare(t *testing.T) {
	nodes := startNodes(t, 3)
	if _, err := nodes[0].e.CreateTopicWith(within(t), "orders", node.TopicOptions{Partitions: 3}); err != nil {
		t.Fatal(err)
	}
	c := dialNodes(t, nodes)
	publish(t, c, 0, 3000)
	greedy := consumer(t, c, client.ConsumerOptions{MaxInFlight: 600})
	held, err := greedy.Batch(within(t), 100)
	if err != nil {
		t.Fatal(err)
	}
	var r received
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	for range 3 {
		s := consumer(t, dialNodes(t, nodes), client.ConsumerOptions{MaxInFlight: 30})
		wg.Go(func() {
			for {
				d, err := s.Next(ctx)
				if err != nil {
					return
				}
				r.note(&d)
				if err := d.Finish(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	if err := greedy.Close(within(t)); err != nil {
		t.Error(err)
	}
	if err := held[0].Finish(); !errors.Is(err, client.ErrNotInFlight) {
		t.Errorf("%v", err)
	}
	for deadline := time.Now().Add(patience); r.count() < 3000; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of 3000 messages have come", r.count())
		}
	}
	cancel()
	wg.Wait()
	if n := r.again(); n > 0 {
		t.Errorf("%d messages came to two of those who finish", n)
	}
}

// BenchmarkRealConsumer takes messages of 100 bytes from a node in the same process, in batches.
func BenchmarkRealConsumer(b *testing.B) {
	nodes := startNodes(b, 1)
	c := dialNodes(b, nodes)
	p, err := c.Producer(within(b), "orders", client.ProducerOptions{})
	if err != nil {
		b.Fatal(err)
	}
	m := &client.Message{Body: make([]byte, 100)}
	for range b.N {
		p.Produce(context.Background(), m, nil)
	}
	if err := p.Close(within(b)); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(100)
	b.ReportAllocs()
	b.ResetTimer()
	s := consumer(b, c, client.ConsumerOptions{MaxInFlight: 8192})
	for n := 0; n < b.N; {
		all, err := s.Batch(context.Background(), 1000)
		if err != nil {
			b.Fatal(err)
		}
		if err := all[len(all)-1].FinishThrough(); err != nil {
			b.Fatal(err)
		}
		n += len(all)
	}
	if err := s.Sync(within(b)); err != nil {
		b.Fatal(err)
	}
}
