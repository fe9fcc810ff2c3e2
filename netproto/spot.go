package netproto

import (
	"net"
	"syscall"
	"time"
)

// spot lets a sender write its frame itself when the connection is idle: on a quiet connection the way to the writer
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
// The fields belong to Conn.mu, those below the line to whoever is busy.
type spot struct {
	raw    syscall.RawConn // nil: this connection cannot write without blocking
	asleep bool            // the writer waits
	busy   bool            // a sender writes
	rest   *drain          // what it could not write
	spare  *drain          // empty; nil while rest is
	last   time.Time       // when the last write began

	buf   []byte
	n     int
	err   error
	write func(fd uintptr) bool
}

const (
	// maxSpotBytes bounds what a sender copies into the socket: the rest of its work waits meanwhile.
	maxSpotBytes = 16 << 10
	// spotPause is the time without a write after which a connection counts as idle. Frames that come more densely are
	// coalesced.
	spotPause = 100 * time.Microsecond
)

func (s *spot) init(nc net.Conn) {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	s.raw, s.spare = raw, new(drain)
	s.write = func(fd uintptr) bool {
		for {
			n, err := syscall.Write(int(fd), s.buf)
			if err == syscall.EINTR {
				continue
			}
			s.n, s.err = max(n, 0), err
			return true
		}
	}
}

// claimLocked takes the queue if its one frame is for its sender to write, else it returns nil. Most often the
// connection is busy, and then it does not look at the clock.
func (c *Conn) claimLocked() *drain {
	s := &c.spot
	d := c.pending
	switch {
	case s.raw == nil, !s.asleep, s.busy, s.rest != nil, c.pingDue, c.pongDue:
		return nil
	case d.frames != 1, d.bytes > maxSpotBytes, len(d.pieces) != 1:
		return nil
	}
	now := time.Now()
	if now.Sub(s.last) < spotPause {
		return nil
	}
	s.last, s.busy = now, true
	c.armLocked(&c.writeDeadline, now, c.o.WriteTimeout, c.nc.SetWriteDeadline)
	c.pending, s.spare = s.spare, nil
	return d
}

// writeOnSpot writes what claimLocked has taken.
func (c *Conn) writeOnSpot(d *drain) {
	s := &c.spot
	piece := d.pieces[0]
	s.buf, s.n, s.err = piece, 0, nil
	err := s.raw.Write(s.write)
	if err == nil && s.err != syscall.EAGAIN {
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
		s.rest = d // it counts until the writer has written it
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
