package native

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"penstock/internal/netio"
	"penstock/internal/node"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// flusher makes the Flusher of an engine. It is closed when all that the test begins afterwards has ended.
func flusher(t testing.TB, e *node.Engine, ring bool) *netio.Flusher {
	t.Helper()
	f, err := netio.NewFlusher(ring)
	if err != nil {
		t.Logf("without io_uring: %v", err)
	}
	if e != nil {
		e.HoldAnswers(f)
	}
	t.Cleanup(f.Close)
	return f
}

// Clients that are answered together each get all of their answers, in order, with and without the system call that
// sends to many.
func TestAnswersTogether(t *testing.T) {
	for _, ring := range []bool{true, false} {
		t.Run(fmt.Sprintf("ring=%v", ring), func(t *testing.T) {
			w := open(t, func(o *Options) {
				if !ring {
					o.Answers = flusher(t, nil, false)
				}
			})
			w.e.HoldAnswers(w.s.opts.Answers)
			const clients, rounds = 80, 20 // more clients than one system call can serve
			topic := w.dial().ask(true, "orders").Topics[0].ID
			var all sync.WaitGroup
			for range clients {
				c := w.dial()
				all.Go(func() {
					p := c.openProducer(topic, 0, "")
					for i := range uint32(rounds) {
						first := c.publish(topic, 0, seal(t, p, 2*i, 1))
						if i%4 == 0 { // two on their way
							second := c.publish(topic, 0, seal(t, p, 2*i+1, 1))
							a := c.produced(first)
							if b := c.produced(second); b.First <= a.First {
								t.Errorf("stored as %d after %d", b.First, a.First)
							}
							continue
						}
						c.produced(first)
						c.produced(c.publish(topic, 0, seal(t, p, 2*i+1, 1)))
					}
				})
			}
			all.Wait()
			if n := w.e.Stats("orders", "")[0].MessageCount; n != 2*clients*rounds {
				t.Errorf("%d messages are stored, want %d", n, 2*clients*rounds)
			}
		})
	}
}

// An answer that comes alone, to a client that waits for it alone, leaves at once, on the goroutine that learns of the
// commit. All others are left to the Flusher, and so is a lone one that the commit log's goroutine completes: it sends
// all that it has completed.
func TestLoneAnswerLeavesAtOnce(t *testing.T) {
	w := open(t, nil)
	w.e.HoldAnswers(nil) // the test holds and releases
	f := w.s.opts.Answers
	c := w.dial()
	c.ask(false)
	s := w.s.all()[0]
	for i, o := range []struct{ alone, lone, held, atOnce bool }{
		{alone: true, lone: true, atOnce: true},
		{alone: false, lone: true}, // the client has sent more
		{alone: true, lone: false}, // others are answered, too
		{alone: true, lone: true, held: true},
	} {
		eventually(t, "an idle connection", func() bool { return s.conn.Stats().QueuedFrames == 0 })
		s.place.Take() // the Flusher does nothing
		if o.held {
			f.Hold()
		}
		if s.reserve(s.pays(), 1) != nil {
			t.Fatal("no room")
		}
		p := &produce{
			s: s, task: task{request: 7, bytes: 1, batch: seal(t, wire.Producer{}, 0, 2)}, alone: o.alone,
			count: s.publishes("t"),
		}
		p.stored(node.Produced{First: 3, Lone: o.lone})
		if left := s.conn.Stats().QueuedFrames; (left == 0) != o.atOnce {
			t.Errorf("%+v: %d frames wait", o, left)
		}
		f.Release()
		s.place.Leave()
		s.Flush()
		if m := c.produced(7); m.First != 3 {
			t.Errorf("%+v: %+v", o, m)
		}
		if got := s.publishes("t").Load(); got != uint64(2*(i+1)) {
			t.Errorf("%+v: %d messages are counted", o, got)
		}
	}
}

// A client that does not read its answers holds up nobody, although the others are answered with the same system calls.
// It loses its connection when it is owed too much.
func TestDeafClientHoldsUpNobody(t *testing.T) {
	w := open(t, nil)
	f := w.s.opts.Answers
	fine := w.dial()
	topic := fine.ask(true, "orders").Topics[0].ID
	p := fine.openProducer(topic, 0, "")
	others := w.s.all()
	deaf := &client{t: t, frames: make(chan frame, 1<<16), gate: make(chan struct{}), ended: make(chan error, 1)}
	made, err := w.try(func(o *netproto.Options) { o.Handler = deaf })
	if err != nil {
		t.Fatal(err)
	}
	defer close(deaf.gate)
	defer made.c.Abort(nil)
	var s *session
	eventually(t, "the session of the deaf client", func() bool {
		for _, x := range w.s.all() {
			if !slices.Contains(others, x) {
				s = x
			}
		}
		return s != nil
	})
	next := uint32(0)
	for n := 0; s.conn.Err() == nil; n++ {
		// What a batch's commit does, many times: until the socket is full, and then the connection's queue.
		f.Hold()
		for range 500 {
			s.postSoon(&netproto.Frame{Type: wire.TypeProduced, Request: 7, Head: make([]byte, 1024)}, false)
		}
		f.Release()
		if n%4 == 0 {
			fine.produced(fine.publish(topic, 0, seal(t, p, next, 1)))
			next++
		}
		if n > 10_000 {
			t.Fatal("the connection takes everything")
		}
	}
	mustBe(t, s.conn.Err(), errUnread)
	if n := s.conn.Stats().QueueFull; n == 0 || next == 0 {
		t.Errorf("the queue was full %d times; the other client was answered %d times", n, next)
	}
	fine.produced(fine.publish(topic, 0, seal(t, p, next, 1)))
}
