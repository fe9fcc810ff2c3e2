package netproto

import (
	"errors"
	"os"
	"sync/atomic"
	"time"
)

// guests let a goroutine that waits for an answer read it from the connection itself, as a guest of the reader. That
// saves the switch from the reader to that goroutine, which costs more than the read. A read that is under way is
// expensive to interrupt. So the reader does not begin one after the answer to a guest, but rests: nobody reads until
// the next guest comes.
//
//	the reader                                  a guest
//	----------                                  -------
//	R1 Frames handles an answer, awaits no
//	   other, and calls Rest
//	R2 rests, and looks every guestTick         G1 sends a request; ReadHere: takes the reading, reads, calls Frames
//	                                            G2 has its answer: gives the reading back; the reader rests on
//	R3 no guest came for a tick, one has read   G3 the read is interrupted. ReadHere returns, and the guest waits for
//	   for a tick, or Recall was called:           its answer without reading
//	   takes the reading back and reads
//
// A frame that is half read stays in Conn.in, which belongs to whoever reads. A guest that meets anything but frames
// (an error, a Goodbye, a frame for which the buffer is too small) leaves it to the reader. Only the reader pings,
// watches the silence of the peer, and ends the connection; no frame waits for it longer than two ticks.
type guests struct {
	state   atomic.Uint32
	count   atomic.Uint64 // guests so far
	recalls atomic.Uint64 // calls of Recall so far
	roused  chan struct{} // has a token when the reader must take the reading back
	left    chan struct{} // gets a token from a guest that was recalled
}

const (
	readerReads   uint32 = iota
	readerRests          // a guest may take the reading
	guestReads           // and the reader rests
	guestRecalled        // the reader waits until the guest has left
)

const (
	guestTick = 20 * time.Millisecond
	// guestPause is for how long the reader does not rest after Recall has interrupted a guest: where several
	// goroutines wait at a time, interrupting would cost more than guests save.
	guestPause = 100 * time.Millisecond

	// MaxGuestTime bounds ReadHere, if this machine runs its goroutines in time.
	MaxGuestTime = 2 * guestTick
)

// longAgo is a deadline that ends a read at once.
var longAgo = time.Unix(1, 0)

// Rest says that no frames are expected after those of the calling Handler.Frames, until somebody calls Recall, or
// ReadHere for an answer of its own. Frames that come all the same are handled up to MaxGuestTime late.
func (c *Conn) Rest() { c.in.resting, c.in.recalls = true, c.guests.recalls.Load() }

// Recall says that a frame is expected for which nobody calls ReadHere. A guest that reads returns soon. Recall does
// not block.
func (c *Conn) Recall() {
	c.guests.recalls.Add(1)
	if c.guests.state.Load() != readerReads {
		c.rouse()
	}
}

func (c *Conn) rouse() {
	select {
	case c.guests.roused <- struct{}{}:
	default:
	}
}

// ReadHere reads frames and calls Handler.Frames on the calling goroutine, the guest, until enough returns true; it
// asks before each read. It gives up after MaxGuestTime, after Recall, and at the end of the connection. It returns
// false at once if the reader or another guest reads. A caller that then waits for a frame without reading must first
// call Recall, because the reader may rest. ReadHere takes no lock, and must not be called with one that Handler.Frames
// takes.
func (c *Conn) ReadHere(enough func() bool) bool {
	g := &c.guests
	if !g.state.CompareAndSwap(readerRests, guestReads) {
		return false
	}
	g.count.Add(1)
	ok := true
	for ok && g.state.Load() == guestReads && !enough() {
		ok = c.in.visit()
	}
	if !g.state.CompareAndSwap(guestReads, readerRests) {
		g.left <- struct{}{}
	} else if !ok {
		c.rouse()
	}
	return true
}

// visit makes one read for a guest. It returns false if the reader must go on.
func (in *reader) visit() bool {
	if in.failed != nil || in.farewell != nil || !in.reuse() {
		return false
	}
	n, err := in.recv()
	switch {
	case n > 0:
		if in.failed = in.arrived(n, time.Now()); in.failed == nil {
			in.failed = in.handle()
		}
	case errors.Is(err, os.ErrDeadlineExceeded): // the guest is recalled, or the reader is late
		return false
	default:
		in.failed = in.broke(err)
	}
	return in.failed == nil && in.farewell == nil
}

// rest lets guests read.
func (in *reader) rest() {
	c, g := in.c, &in.c.guests
	if in.timer == nil {
		in.timer = time.NewTimer(c.o.guestTick)
	}
	select {
	case <-g.roused: // from before
	default:
	}
	count, recalls := g.count.Load(), in.recalls
	g.state.Store(readerRests) // from now on a guest may use in
	for on := g.recalls.Load() == recalls && !c.ending.Load(); on; {
		c.mu.Lock() // guests set no deadlines
		c.armLocked(&c.readDeadline, time.Now(), c.o.PingEvery, c.nc.SetReadDeadline)
		c.mu.Unlock()
		in.timer.Reset(c.o.guestTick)
		before := count
		select {
		case <-in.timer.C:
			count = g.count.Load()
			on = count != before
		case <-g.roused:
			on = false
		}
	}
	for !g.state.CompareAndSwap(readerRests, readerReads) {
		if g.state.CompareAndSwap(guestReads, guestRecalled) {
			in.recall(recalls)
			return
		}
	}
}

// recall takes the reading from a guest: the state is guestRecalled. recalls is guests.recalls when the reader began to
// rest.
func (in *reader) recall(recalls uint64) {
	c, g := in.c, &in.c.guests
	called := g.recalls.Load() != recalls // before this guest calls Recall itself
	c.mu.Lock()
	_ = c.nc.SetReadDeadline(longAgo)
	c.mu.Unlock()
	<-g.left
	g.state.Store(readerReads)
	now := time.Now()
	if called {
		in.restAgain = now.Add(guestPause)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readDeadline = time.Time{}
	if c.armLocked(&c.readDeadline, now, c.o.PingEvery, c.nc.SetReadDeadline); c.state == stateClosing {
		_ = c.nc.SetReadDeadline(c.closeBy)
	}
}
