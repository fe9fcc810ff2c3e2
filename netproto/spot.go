package netproto

import (
	"syscall"
	"time"
)

// spot lets a sender write its frame itself when the connection is idle: on a quiet connection the switch to the writer
// and back costs more than the write. The write does not block: what the socket does not take is left to the writer.
//
//	a sender                              the writer
//	--------                              ----------
//	A1 the writer sleeps, nothing waits:  B1 sleeps
//	   takes the queue, busy
//	A2 writes without mu                  B2 woken (a ping, the end): sleeps again while busy
//	   others queue and do not write
//	A3 not busy; rest for the writer      B3 writes rest, then the queue
//	   wakes it if anything waits
//
// Conn.mu guards the fields above the blank line. The goroutine that set busy owns the fields below it.
type spot struct {
	raw    syscall.RawConn // nil: this connection cannot write without blocking, and the writer writes everything
	asleep bool            // the writer waits in take
	busy   bool            // a sender writes on the spot
	rest   *drain          // what that sender could not write
	spare  *drain          // an empty drain to replace pending; nil while rest is set or a sender writes
	last   time.Time       // when the last write began

	buf   []byte
	n     int
	err   error
	write func(fd uintptr) bool
}

const (
	// maxSpotBytes bounds the bytes that a sender copies into the socket, because the sender's other work waits
	// meanwhile.
	maxSpotBytes = 16 << 10
	// spotPause is how long nothing must have been written for a connection to count as idle. Frames at shorter
	// intervals are coalesced, unless their senders know better (Frame.Lone).
	spotPause = 100 * time.Microsecond
)

// claimLocked takes the queue if the sender of its only frame should write that frame itself, else it returns nil. lone
// is the frame's Lone. It reads the clock last, because most often the connection is busy. The caller holds mu.
func (c *Conn) claimLocked(lone bool) *drain {
	s := &c.spot
	d := c.pending
	switch {
	case s.raw == nil, !s.asleep, s.busy, s.rest != nil, c.pingDue, c.pongDue:
		return nil
	case d.frames != 1, d.bytes > maxSpotBytes, len(d.pieces) != 1:
		return nil
	}
	now := time.Now()
	if !lone && now.Sub(s.last) < spotPause {
		return nil
	}
	s.last, s.busy = now, true
	c.armLocked(&c.writeDeadline, now, c.o.WriteTimeout, c.nc.SetWriteDeadline)
	c.pending, s.spare = s.spare, nil
	return d
}

// writeOnSpot writes the drain that claimLocked took. The caller does not hold mu.
func (c *Conn) writeOnSpot(d *drain) {
	s := &c.spot
	piece := d.pieces[0]
	s.buf, s.n, s.err = piece, 0, nil
	err := s.raw.Write(s.write)
	if err == nil {
		err = s.err
	}
	n := s.n
	s.buf = nil
	left := err == nil && n < len(piece)
	frames, bytes := d.frames, d.bytes
	if left {
		d.pieces[0] = piece[n:]
	} else {
		if err == nil {
			c.countSent(d)
		}
		d.reset()
	}
	c.mu.Lock()
	s.busy = false
	if left {
		s.rest = d // its frames count as queued until the writer has written the rest
	} else {
		s.spare = d
		c.queuedFrames -= frames
		c.queuedBytes -= bytes
		c.roomLocked()
	}
	if left || c.state != stateOpen || c.pending.frames > 0 || c.pingDue || c.pongDue {
		c.wake.Signal()
	}
	c.mu.Unlock()
	if err != nil {
		c.Abort(readOrWriteError(err, "writing"))
	}
}
