package netproto

import (
	"errors"
	"sync/atomic"
	"time"
)

// turn is one goroutine's right to read from the connection.
//
// A call of Handler.Frames may have handled its frames and still have slow work left, such as a write to a disk that
// may hang. It calls MayBlock before that work. If the call returns soon, the same reader goes on, and no goroutine
// switch was needed. If the call does not return, ReadOn lets another goroutine read:
//
//	the reader                        the caller of ReadOn       the next reader
//	----------                        --------------------       ---------------
//	A1 Frames: handles the frames
//	A2 MayBlock: blocked
//	A3 is in a write that hangs       B1 blocked: takenOver
//	A4 the write returns              B2 starts the next reader  C1 fills, parses, Frames
//	A5 takenOver: ends
//
// If A4 comes before B1, the same reader goes on: A4 and B1 both change the state from blocked, and one of the two
// fails. The end of the connection does not wait for a call of Frames that was taken over.
type turn struct {
	state atomic.Uint32
	since atomic.Int64 // when the state became blocked, by MayBlock: ns since loaded
}

const (
	turnReads uint32 = iota
	turnBlocked
	turnTakenOver
)

// errTakenOver ends a reader after another goroutine has taken its turn.
var errTakenOver = errors.New("netproto: another goroutine reads")

var loaded = time.Now()

// MayBlock says that the calling Handler.Frames has handled its frames and may not return for a long time. A call of
// Frames may call MayBlock once; afterwards it must not use the frames and must return nil. Frames that arrive
// meanwhile are handled by another call of Frames, at the same time, if ReadOn or the end of the connection asks for
// it.
func (c *Conn) MayBlock() {
	t := c.turn.Load()
	clear(c.in.burst)
	c.in.burst = c.in.burst[:0]
	t.since.Store(int64(time.Since(loaded)))
	t.state.Store(turnBlocked)
	if c.ending.Load() { // the goroutine that ended it may have called ReadOn too early
		c.ReadOn(0)
	}
}

// ReadOn lets another goroutine read if the reader has been in a call that may block for at least the given time. Any
// goroutine may call it. It does not block.
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

// goOn says whether the reader whose call of Handler.Frames has returned still has the turn.
func (t *turn) goOn() bool {
	return t.state.Load() == turnReads || t.state.CompareAndSwap(turnBlocked, turnReads)
}
