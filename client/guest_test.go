package client

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"penstock/netproto"
)

// guestWorld is a producer at two partitions. Its calls of ProduceSync read their answers themselves.
type guestWorld struct {
	t       *testing.T
	cluster *testCluster
	topic   *testTopic
	client  *Client
	p       *Producer
	stored  int // messages at partition 0
	others  int // topics beside orders
}

func newGuestWorld(t *testing.T, nodes int) *guestWorld {
	w := &guestWorld{t: t, cluster: newTestCluster(t, nodes)}
	w.topic = w.cluster.create("orders", 2)
	w.client = w.cluster.dial(t)
	w.p = w.client.producer(t, "orders", ProducerOptions{
		Partition: func(m *Message, _ int) int { return int(m.Body[0] - '0') },
	})
	return w
}

// sync produces at partition 0.
func (w *guestWorld) sync(ctx context.Context) error {
	_, err := w.p.ProduceSync(ctx, &Message{Body: []byte("0")})
	return err
}

// guests is how many calls have read from the connections that there are.
func (w *guestWorld) guests() (n uint64) {
	w.client.mu.Lock()
	defer w.client.mu.Unlock()
	for _, node := range w.client.nodes {
		if l, _, _ := node.state(); l != nil {
			n += l.conn.Stats().Guests
		}
	}
	return n
}

// waits makes a call wait for its answer, which the node holds back, while it reads from the connection itself.
func (w *guestWorld) waits(ctx context.Context) <-chan error {
	w.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if err := w.sync(ctx); err != nil { // after the answer the connection's reader rests
			w.t.Fatal(err)
		}
		w.stored += 2
		before := w.guests()
		w.cluster.mu.Lock()
		w.cluster.hold = true
		w.cluster.mu.Unlock()
		result := make(chan error, 1)
		go func() { result <- w.sync(ctx) }()
		eventually(w.t, "the node has the message", func() bool {
			w.cluster.mu.Lock()
			defer w.cluster.mu.Unlock()
			return len(w.cluster.held) == 1
		})
		for range 10 {
			if w.guests() > before {
				return result
			}
			time.Sleep(time.Millisecond) // it sends before it reads; if it does not read, there is another try
		}
		if w.release(); <-result != nil {
			w.t.Fatal("a call failed")
		}
	}
	w.t.Fatal("no call reads its answer itself")
	return nil
}

// release sends the answers that were held back.
func (w *guestWorld) release() {
	w.cluster.mu.Lock()
	defer w.cluster.mu.Unlock()
	w.cluster.hold = false
	for _, answer := range w.cluster.held {
		answer()
	}
	w.cluster.held = nil
}

// returns waits for the end of a call.
func (w *guestWorld) returns(result <-chan error) error {
	w.t.Helper()
	select {
	case err := <-result:
		return err
	case <-time.After(patience):
		w.t.Fatal("the call does not return")
		return nil
	}
}

// Calls in a row read their answers themselves.
func TestSyncReadsItsAnswer(t *testing.T) {
	w := newGuestWorld(t, 1)
	for end := time.Now().Add(patience); w.guests() < 50; {
		if err := w.sync(within(t)); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(end) {
			t.Fatalf("%d calls have read", w.guests())
		}
	}
	before := w.guests()
	for range 20 { // a call that must be ready to return soon leaves reading to others
		ctx, cancel := context.WithTimeout(context.Background(), netproto.MaxGuestTime)
		if err := w.sync(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		cancel()
	}
	if now := w.guests(); now != before {
		t.Errorf("%d calls with little time have read", now-before)
	}
}

// conn is the connection to the only node.
func (w *guestWorld) conn() *netproto.Conn {
	w.client.mu.Lock()
	defer w.client.mu.Unlock()
	l, _, _ := w.client.nodes[w.cluster.nodes[0].address].state()
	return l.conn
}

// Between the calls nobody reads. A question makes the connection's reader read, and does not wait until it does so of
// its own accord, 20 to 40 ms later.
func TestQuestionWhileNobodyReads(t *testing.T) {
	w := newGuestWorld(t, 1)
	for end := time.Now().Add(patience); w.others < 50 && time.Now().Before(end); { // a busy machine is slow at times
		if err := w.sync(within(t)); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if !w.conn().ReadHere(func() bool { return true }) {
			continue // the reader reads; after a guest it would rest for at least half of MaxGuestTime
		}
		w.others++
		w.client.producer(t, fmt.Sprintf("other%d", w.others), ProducerOptions{})
		if time.Since(began) < netproto.MaxGuestTime/8 {
			return
		}
	}
	t.Errorf("%d questions took long", w.others)
}

// While others await frames at any time, the connection's reader reads.
func TestNoGuestBesideAReader(t *testing.T) {
	w := newGuestWorld(t, 1)
	r, err := w.client.Reader(within(t), "orders", 0, FromOldest())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for range 100 {
		if err := w.sync(within(t)); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Next(within(t)); err != nil {
			t.Fatal(err)
		}
	}
	if n := w.guests(); n > 0 {
		t.Errorf("%d calls have read", n)
	}
}

// What may happen while a call reads its answer itself: the call ends as it would otherwise, and nobody else waits
// until the connection's reader looks after it, which takes 20 to 40 ms.
func TestBesideAGuest(t *testing.T) {
	for _, v := range []struct {
		name  string
		nodes int
		act   func(w *guestWorld, cancel context.CancelFunc)
		soon  bool  // act does not take long
		err   error // what the call returns; nil: it stores its message
	}{
		{"the answer comes", 1, func(*guestWorld, context.CancelFunc) {}, true, nil},
		{"the answer comes late", 1, func(*guestWorld, context.CancelFunc) {
			time.Sleep(2 * netproto.MaxGuestTime)
		}, false, nil},
		{"its context ends", 1, func(_ *guestWorld, cancel context.CancelFunc) { cancel() }, true, context.Canceled},
		{"another call at the partition", 1, func(w *guestWorld, _ context.CancelFunc) {
			go func() { _ = w.sync(within(w.t)) }()
			w.stored++
			w.isStored()
		}, true, nil},
		{"a message without a call", 1, func(w *guestWorld, _ context.CancelFunc) {
			w.p.Produce(context.Background(), &Message{Body: []byte("0")}, func(*Message, ID, error) {})
			w.stored++
			w.isStored()
		}, true, nil},
		{"a call at another partition", 1, func(w *guestWorld, _ context.CancelFunc) {
			if _, err := w.p.ProduceSync(within(w.t), &Message{Body: []byte("1")}); err != nil {
				w.t.Error(err)
			}
		}, true, nil},
		{"a question", 1, func(w *guestWorld, _ context.CancelFunc) {
			w.others++
			w.client.producer(w.t, fmt.Sprintf("other%d", w.others), ProducerOptions{})
		}, true, nil},
		{"a reader", 1, func(w *guestWorld, _ context.CancelFunc) {
			r, err := w.client.Reader(within(w.t), "orders", 0, FromOldest())
			if err != nil {
				w.t.Fatal(err)
			}
			defer r.Close()
			for range w.stored {
				if _, err := r.Next(within(w.t)); err != nil {
					w.t.Fatal(err)
				}
			}
		}, true, nil},
		{"another leader", 2, func(w *guestWorld, _ context.CancelFunc) {
			w.cluster.change(func() { w.topic.parts[0].leader, w.cluster.hold = 1, false })
		}, false, nil},
		{"the connection is cut", 1, func(w *guestWorld, _ context.CancelFunc) {
			w.cluster.mu.Lock()
			w.cluster.hold = false
			w.cluster.mu.Unlock()
			w.cluster.cut(0)
		}, false, nil},
		{"the producer is closed", 1, func(w *guestWorld, _ context.CancelFunc) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			_ = w.p.Close(ctx)
		}, false, ErrUnknown},
		{"the client is closed", 1, func(w *guestWorld, _ context.CancelFunc) { w.client.Close() }, false, ErrUnknown},
	} {
		t.Run(v.name, func(t *testing.T) {
			w := newGuestWorld(t, v.nodes)
			for round := range 50 { // a busy machine makes some rounds slow
				ctx, cancel := context.WithCancel(within(t))
				result := w.waits(ctx)
				began := time.Now()
				v.act(w, cancel)
				took := time.Since(began)
				if v.err == nil {
					w.release()
				}
				if err := w.returns(result); !errors.Is(err, v.err) {
					t.Fatalf("round %d: %v, want %v", round, err, v.err)
				}
				cancel()
				if w.release(); !v.soon || took < netproto.MaxGuestTime/8 {
					return
				}
			}
			t.Error("it always takes long")
		})
	}
}

// A call whose context is cancelled while it reads its answer returns at once, and not when the connection's reader
// looks after it, which takes 20 to 40 ms.
func TestSyncNoticesItsContext(t *testing.T) {
	w := newGuestWorld(t, 1)
	for name, calls := range map[string]int{"its own context": 1, "the context of many calls": 5} {
		t.Run(name, func(t *testing.T) {
			for soon, round := 0, 0; soon < 10; round++ { // a busy machine makes some rounds slow
				if round == 50 {
					t.Fatalf("it takes long: %d of %d calls returned soon", soon, round)
				}
				ctx, cancel := context.WithCancel(within(t))
				for range calls {
					if err := w.sync(ctx); err != nil {
						t.Fatal(err)
					}
				}
				result := w.waits(ctx)
				began := time.Now()
				cancel()
				if err := w.returns(result); !errors.Is(err, context.Canceled) || !errors.Is(err, ErrUnknown) {
					t.Fatal(err)
				}
				took := time.Since(began)
				if w.release(); took < netproto.MaxGuestTime/8 {
					soon++
				}
			}
		})
	}
}

// isStored waits until as many messages are stored at partition 0 as should be.
func (w *guestWorld) isStored() {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("%d messages are stored", w.stored), func() bool {
		return len(w.cluster.bodies(w.topic.parts[0])) == w.stored
	})
}
