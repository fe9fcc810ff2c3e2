package netproto

import (
	"slices"
	"sync"
	"testing"
	"time"
)

// blocking is a handler. For the request with number 0, its call first reports on blocked and then blocks at its end
// until free is closed.
type blocking struct {
	free    chan struct{}
	blocked chan struct{} // gets a value when a call is about to block
	ended   chan struct{} // gets a value when that call has returned
	got     chan uint64   // the requests in the order in which they were handled

	mu   sync.Mutex
	busy int // calls that have not called MayBlock
}

func newBlocking() *blocking {
	return &blocking{
		free: make(chan struct{}), blocked: make(chan struct{}, 1), ended: make(chan struct{}, 1),
		got: make(chan uint64, 1000),
	}
}

func (b *blocking) frames(c *Conn, frames []Received) error {
	b.count(1)
	waits := false
	for i := range frames {
		b.got <- frames[i].Request
		waits = waits || frames[i].Request == 0
	}
	b.count(-1)
	if waits {
		c.MayBlock()
		b.blocked <- struct{}{}
		<-b.free
		b.ended <- struct{}{}
	}
	return nil
}

func (b *blocking) count(by int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy += by; b.busy > 1 {
		panic("two goroutines handle frames")
	}
}

// next returns the next count requests that are handled.
func (b *blocking) next(t *testing.T, count int) (all []uint64) {
	t.Helper()
	for range count {
		select {
		case n := <-b.got:
			all = append(all, n)
		case <-time.After(patience):
			t.Fatalf("%d requests of %d came", len(all), count)
		}
	}
	return all
}

func sendRequests(t *testing.T, c *Conn, from, to uint64) (sent []uint64) {
	t.Helper()
	for n := from; n < to; n++ {
		if err := c.TrySend(&Frame{Type: TypeForwardPut, Request: n, Head: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		sent = append(sent, n)
	}
	return sent
}

// A handler that blocks at its end keeps its connection from reading only until somebody calls ReadOn. Then later
// frames are handled, in order and by one goroutine at a time, and the goroutine that blocked just ends.
func TestReadingGoesOnBesideACallThatBlocks(t *testing.T) {
	b := newBlocking()
	s := newSink(b.frames)
	sender, reader := handshake(t, testOptions("a", newSink(nil)), testOptions("b", s))
	for round := range uint64(3) {
		b.free = make(chan struct{})
		sendRequests(t, sender, 0, 1)
		b.next(t, 1)
		<-b.blocked
		reader.ReadOn(time.Hour)
		sent := sendRequests(t, sender, 1, 100)
		select {
		case n := <-b.got:
			t.Fatalf("round %d: request %d is handled beside a call that has just begun to block", round, n)
		case <-time.After(20 * time.Millisecond): // there is no event to wait for if nothing happens
		}
		reader.ReadOn(0)
		reader.ReadOn(0) // somebody is reading already
		if got := b.next(t, len(sent)); !slices.Equal(got, sent) {
			t.Fatalf("round %d: the requests came as %v", round, got)
		}
		close(b.free)
		<-b.ended
		if got := b.next(t, len(sendRequests(t, sender, 100, 110))); got[0] != 100 || got[9] != 109 {
			t.Fatalf("round %d: the requests after that came as %v", round, got)
		}
	}
	reader.Close()
	if s.wait(t); s.closed.Load() != 1 {
		t.Errorf("the handler heard of the end %d times", s.closed.Load())
	}
}

// A call that blocks only briefly keeps its goroutine, which then goes on reading.
func TestShortCallsAreNotTakenOver(t *testing.T) {
	b := newBlocking()
	close(b.free)
	sender, reader := handshake(t, testOptions("a", newSink(nil)), testOptions("b", newSink(b.frames)))
	for range 50 {
		before := reader.turn.Load()
		sendRequests(t, sender, 0, 1)
		b.next(t, 1)
		<-b.blocked
		<-b.ended
		reader.ReadOn(time.Hour)
		sendRequests(t, sender, 1, 2)
		if b.next(t, 1); reader.turn.Load() != before {
			t.Fatal("another goroutine reads")
		}
	}
}

// The end of a connection does not wait for a call that called MayBlock, whichever comes first.
func TestEndBesideACallThatBlocks(t *testing.T) {
	for name, end := range map[string]func(sender, reader *Conn){
		"this side closes":  func(_, reader *Conn) { reader.Close() },
		"this side aborts":  func(_, reader *Conn) { reader.Abort(nil) },
		"the peer closes":   func(sender, reader *Conn) { reader.ReadOn(0); sender.Close() },
		"nobody reads on":   func(sender, reader *Conn) { sender.Abort(nil); reader.Close() },
		"it is asked twice": func(_, reader *Conn) { go reader.ReadOn(0); reader.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBlocking()
			defer close(b.free)
			s := newSink(b.frames)
			sender, reader := handshake(t, testOptions("a", newSink(nil)), testOptions("b", s))
			sendRequests(t, sender, 0, 1)
			<-b.blocked
			go end(sender, reader) // in its own goroutine, because it may wait for the call
			if s.wait(t); s.closed.Load() != 1 {
				t.Errorf("the handler heard of the end %d times", s.closed.Load())
			}
			select {
			case <-reader.Done():
			case <-time.After(patience):
				t.Fatal("the connection waits for the call")
			}
		})
	}
}

// The end of a connection does not wait either for a call that calls MayBlock after the end.
func TestCallThatBlocksAfterTheEnd(t *testing.T) {
	b, in, ended := newBlocking(), make(chan struct{}), make(chan struct{})
	defer close(b.free)
	s := newSink(func(c *Conn, frames []Received) error {
		close(in)
		<-ended
		return b.frames(c, frames)
	})
	sender, reader := handshake(t, testOptions("a", newSink(nil)), testOptions("b", s))
	sendRequests(t, sender, 0, 1)
	<-in
	reader.Abort(nil)
	close(ended)
	if s.wait(t); s.closed.Load() != 1 {
		t.Errorf("the handler heard of the end %d times", s.closed.Load())
	}
}
