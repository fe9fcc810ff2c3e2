package netproto

import (
	"syscall"
	"time"
)

// spot lets a sender write its frame itself when the connection is idle: on a quiet connection the switch to the writer
// and back costs more than the write. The write does not block: what the socket does not take is left to the writer.
// Lend and GiveBack are the same for somebody who writes to many connections with one system call.
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
	fd     int             // of raw
	asleep bool            // the writer waits in take
	busy   bool            // a sender writes on the spot, or the frames are lent
	lent   *drain          // what Lend has lent; the socket stays open meanwhile. nil: nothing
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
	if !c.idleLocked() || c.pending.frames != 1 && !lone {
		return nil
	}
	now := time.Now()
	if !lone && now.Sub(s.last) < spotPause {
		return nil
	}
	c.armWriteLocked(now)
	return c.seizeLocked(now)
}

// idleLocked says that frames are queued that another goroutine than the writer may write: the writer sleeps, and the
// frames are small and lie in one piece. The caller holds mu.
func (c *Conn) idleLocked() bool {
	s, d := &c.spot, c.pending
	switch {
	case s.raw == nil, !s.asleep, s.busy, s.rest != nil, c.pingDue, c.pongDue, c.state != stateOpen:
		return false
	}
	return d.frames > 0 && d.bytes <= maxSpotBytes && len(d.pieces) == 1
}

// seizeLocked takes the queue, which the caller is about to write. The caller holds mu, and idleLocked is true.
func (c *Conn) seizeLocked(now time.Time) *drain {
	s, d := &c.spot, c.pending
	s.last, s.busy = now, true
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
	s.buf = nil
	c.settle(d, s.n, err)
}

// Lend takes all frames that are queued, for a caller who writes to many connections with one system call. It returns
// the connection's socket and the bytes, which the caller must hand to that socket without waiting, and then call
// GiveBack; until then the socket stays open and nobody else writes to it. If data is nil, nothing is lent, and
// GiveBack must not be called: nothing is queued, or the frames are left to the connection's writer, which writes them
// at once. So it is with TLS, on systems whose sockets are no files, and when the writer has work already.
func (c *Conn) Lend() (fd int, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.idleLocked() {
		c.wakeLocked()
		return 0, nil
	}
	c.spot.lent = c.seizeLocked(time.Now())
	return c.spot.fd, c.spot.lent.pieces[0]
}

// GiveBack ends what Lend began: the socket has taken n bytes. If it is full (n is less than what was lent, and err is
// nil), the writer waits until it takes the rest. Any other err ends the connection.
func (c *Conn) GiveBack(n int, err error) { c.settle(c.spot.lent, n, err) }

// Flush has the frames leave that Queue has taken. It does not wait for the peer: it writes a few small frames itself
// if the writer sleeps, and otherwise leaves them to the writer.
func (c *Conn) Flush() {
	c.mu.Lock()
	if d := c.claimLocked(true); d != nil {
		c.mu.Unlock()
		c.writeOnSpot(d)
		return
	}
	c.wakeLocked()
	c.mu.Unlock()
}

// wakeLocked wakes the writer if anything is queued. A connection that ends has woken it already. The caller holds mu.
func (c *Conn) wakeLocked() {
	if c.state == stateOpen && c.pending.frames > 0 {
		c.wake.Signal()
	}
}

// settle ends what seizeLocked began. The socket has taken the first n bytes of d. It is full if that is not all and
// err is nil.
func (c *Conn) settle(d *drain, n int, err error) {
	s := &c.spot
	piece := d.pieces[0]
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
	closing := s.lent != nil && c.state == stateDead // Abort has left that to this goroutine
	s.busy, s.lent = false, nil
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
	if closing {
		_ = c.nc.Close()
	}
	if err != nil {
		c.Abort(readOrWriteError(err, "writing"))
	}
}
