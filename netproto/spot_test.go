package netproto

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// idle waits until the connection counts as idle.
func idle(t *testing.T, c *Conn) {
	t.Helper()
	until(t, "the connection is idle", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.spot.asleep && !c.spot.busy && c.queuedFrames == 0 && time.Since(c.spot.last) > spotPause
	})
}

// On an idle connection the sender has written its frame when TrySend returns. Right after that, the writer takes over.
func TestSpotWritesBeforeTrySendReturns(t *testing.T) {
	h := &counting{there: make(chan struct{}, 1)}
	a, _ := handshake(t, testOptions("a", newSink(nil), noPings),
		Options{Hello: testHello("b"), Handler: h, PingEvery: time.Hour})
	h.want.Store(100)
	for range 100 {
		idle(t, a)
		before := a.Stats()
		if err := a.TrySend(&Frame{Type: TypePutAck, Head: make([]byte, 100)}); err != nil {
			t.Fatal(err)
		}
		if s := a.Stats(); s.SentFrames != before.SentFrames+1 || s.Writes != before.Writes+1 || s.QueuedFrames != 0 ||
			s.QueuedBytes != 0 {
			t.Fatalf("after TrySend: %+v, before: %+v", s, before)
		}
	}
	<-h.there
}

// A lone frame is written by its sender also right after another one.
func TestSpotWritesLoneFrames(t *testing.T) {
	h := &counting{there: make(chan struct{}, 1)}
	a, _ := handshake(t, testOptions("a", newSink(nil), noPings),
		Options{Hello: testHello("b"), Handler: h, PingEvery: time.Hour})
	h.want.Store(200)
	idle(t, a)
	for range 200 {
		a.mu.Lock()
		a.spot.last = time.Now() // as if the writer had just written
		a.mu.Unlock()
		before := a.Stats().Writes
		if err := a.TrySend(&Frame{Type: TypePutAck, Lone: true, Head: make([]byte, 100)}); err != nil {
			t.Fatal(err)
		}
		if s := a.Stats(); s.Writes != before+1 || s.QueuedFrames != 0 {
			t.Fatalf("%+v", s)
		}
	}
	<-h.there
}

// Large frames are left to the writer, because the sender has other work to do.
func TestSpotLeavesLargeFrames(t *testing.T) {
	h := &counting{there: make(chan struct{}, 1)}
	a, _ := handshake(t, testOptions("a", newSink(nil), noPings),
		Options{Hello: testHello("b"), Handler: h, PingEvery: time.Hour})
	h.want.Store(1)
	idle(t, a)
	a.mu.Lock()
	last := a.spot.last
	a.mu.Unlock()
	if err := a.TrySend(&Frame{Type: TypePutAck, Body: [][]byte{make([]byte, maxSpotBytes)}}); err != nil {
		t.Fatal(err)
	}
	<-h.there
	until(t, "the frame is written", func() bool { return a.Stats().QueuedFrames == 0 })
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.spot.last == last || a.spot.spare == nil || a.spot.spare.chunks != nil {
		t.Error("the writer did not write it")
	}
}

// The writer writes the rest of a sender's frame that the socket did not take, before anything that came later.
func TestSpotLeavesRestToWriter(t *testing.T) {
	got := make(chan uint64, 1<<16)
	open := make(chan struct{})
	right := newSink(func(_ *Conn, frames []Received) error {
		<-open
		for i := range frames {
			got <- frames[i].Request
		}
		return nil
	})
	a, _ := handshake(t, testOptions("a", newSink(nil), noPings), testOptions("b", right, noPings))
	sent := uint64(0)
	send := func() {
		if err := a.TrySend(&Frame{
			Type: TypePutAck, Request: sent, Head: make([]byte, maxSpotBytes-HeaderBytes),
		}); err != nil {
			t.Fatal(err)
		}
		sent++
	}
	for left := false; !left; { // the peer does not read, so the socket becomes full
		idle(t, a)
		send()
		left = a.Stats().QueuedFrames > 0
		if sent > 10_000 {
			t.Fatal("the socket takes everything")
		}
	}
	for range 20 {
		send()
	}
	close(open)
	for want := range sent {
		if r := <-got; r != want {
			t.Fatalf("frame %d arrived in place of %d", r, want)
		}
	}
	idle(t, a)
	if s := a.Stats(); s.SentFrames != sent || s.QueuedBytes != 0 {
		t.Errorf("%d frames sent: %+v", sent, s)
	}
}

type countedOwner struct{ released atomic.Int64 }

func (o *countedOwner) Release() { o.released.Add(1) }

// gapless returns what a sink does with frames that senders have numbered from 1 on, each on a stream of its own: it
// reports a frame that is missing, or comes twice. last gets the newest number of each stream.
func gapless(t *testing.T, last []uint64) func(*Conn, []Received) error {
	return func(_ *Conn, frames []Received) error {
		for i := range frames {
			f := &frames[i]
			if n := binary.LittleEndian.Uint64(f.Payload); n != last[f.Stream]+1 {
				t.Errorf("sender %d: frame %d after %d", f.Stream, n, last[f.Stream])
			} else {
				last[f.Stream] = n
			}
		}
		return nil
	}
}

// Senders with and without pauses, small and borrowed frames, and an end at any moment: each sender's frames arrive in
// order, and every owner of a frame that was taken is released once.
func TestSpotBesideWriter(t *testing.T) {
	const senders = 4
	for round := range 40 {
		var last [senders]uint64
		right := newSink(gapless(t, last[:]))
		a, b := handshake(t, testOptions("a", newSink(nil)), testOptions("b", right))
		owner := &countedOwner{}
		taken := atomic.Int64{}
		var wg sync.WaitGroup
		for s := range uint32(senders) {
			wg.Go(func() {
				big := make([]byte, MinBorrowBytes)
				for n := uint64(1); n < 400; n++ {
					f := Frame{Type: TypePutAck, Stream: s, Head: binary.LittleEndian.AppendUint64(nil, n), Owner: owner}
					if n%7 == uint64(s) {
						f.Body = [][]byte{big}
					}
					if a.TrySend(&f) != nil {
						return // the connection has ended, in the rounds that end it
					}
					taken.Add(1)
					for start := time.Now(); s%2 == 0 && time.Since(start) < 2*spotPause; {
						continue // the connection becomes idle between two frames
					}
				}
			})
		}
		if round%2 == 1 {
			until(t, "frames are on their way", func() bool { return taken.Load() > int64(round*10) })
			a.Abort(nil)
		}
		wg.Wait()
		if round%2 == 0 {
			a.Close()
			<-b.Done()
			for s, n := range last {
				if n != 399 {
					t.Errorf("sender %d: %d frames arrived", s, n)
				}
			}
		}
		<-a.Done()
		if r := owner.released.Load(); r != taken.Load() {
			t.Fatalf("round %d: %d frames taken, %d owners released", round, taken.Load(), r)
		}
	}
}
