package netproto

import (
	"errors"
	"sync/atomic"
	"time"
)

// turn is the right to read of one goroutine.
//
// A call of Handler.Frames that has handled its frames may have something left that takes long, such as a write to a
// disk that may hang. It calls MayBlock first. When it returns soon the reader goes on, and no goroutine was switched.
// When it does not, ReadOn lets another goroutine read:
//
//	the reader                        whoever calls ReadOn       the next reader
//	----------                        --------------------       ---------------
//	A1 Frames: handles the frames
//	A2 MayBlock: blocked
//	A3 is in a write that hangs       B1 blocked: takenOver
//	A4 the write returns              B2 starts the next reader  C1 fills, parses, Frames
//	A5 takenOver: ends
//
// If A4 comes before B1 the reader goes on: of the two that change the state from blocked, one fails. A call that was
// taken over is not waited for when the connection ends.
type turn struct {
	state atomic.Uint32
	since atomic.Int64 // of blocked: when MayBlock was called, ns since loaded
}

const (
	turnReads uint32 = iota
	turnBlocked
	turnTakenOver
)

// errTakenOver ends a reader in whose place another one reads.
var errTakenOver = errors.New("netproto: another goroutine reads")

var loaded = time.Now()

// MayBlock says that the call of Handler.Frames in which it is called has handled its frames, and may not return for
// long. It may be called once in a call, which then uses the frames no more and returns nil. Frames that come meanwhile
// are handled by another call, at the same time, if ReadOn or the end of the connection asks for it.
func (c *Conn) MayBlock() {
	t := c.turn.Load()
	clear(c.in.burst)
	c.in.burst = c.in.burst[:0]
	t.since.Store(int64(time.Since(loaded)))
	t.state.Store(turnBlocked)
	if c.ending.Load() { // whoever ended it may have looked too early
		c.ReadOn(0)
	}
}

// ReadOn lets another goroutine read if the reader has been in a call that may block for at least this long. Any
// goroutine may call it; it does not block.
func (c *Conn) ReadOn(after time.Duration) {
	t := c.turn.Load()
	if t.state.Load() != turnBlocked || int64(time.Since(loaded))-t.since.Load() < int64(after) ||
		!t.state.CompareAndSwap(turnBlocked, turnTakenOver) {
		return
	}
	c.turn.Store(new(turn))
	c.in.resume()
	go c.read()
}

// goOn says whether the reader whose call of Handler.Frames has returned is still the one that reads.
func (t *turn) goOn() bool {
	return t.state.Load() == turnReads || t.state.CompareAndSwap(turnBlocked, turnReads)
}
