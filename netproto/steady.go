package netproto

import (
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// A link may be slow as long as it is steady. A write may take any time while the peer's side acknowledges bytes, and a
// peer that cannot have been reached by a Ping yet, because it still gets what was written before, is not silent.

// minFrameRate is how many bytes a second of a frame must arrive once FrameTimeout has passed.
const minFrameRate = 1 << 10

// frameLate is the rule for a frame of which so many bytes arrived in that time.
func frameLate(arrived int, took, timeout time.Duration) bool {
	return took > timeout && float64(arrived) < took.Seconds()*minFrameRate
}

// sample is what the kernel knows of the bytes that were written to the connection, counted from its beginning: those
// that the peer's side has acknowledged, and all.
type sample struct{ acked, written uint64 }

// crossing is the rule that tells a slow link from a silent peer: bytes are still on their way that were written before
// the earlier sample was taken, and some have arrived since. Nothing of the sort is seen of a peer whose system takes
// everything at once while its process stands still.
func crossing(earlier, now sample) bool {
	return now.acked < earlier.written && now.acked > earlier.acked
}

// steadiness is what a connection knows of its link. The goroutine that reads owns pinged; Conn.mu guards the rest,
// except quick.
type steadiness struct {
	raw    syscall.RawConn // of the socket, below TLS too; nil: the system tells nothing
	pinged sample          // at the last tick

	timer   *time.Timer // runs while a write may be under way
	watched sample      // when it fired last

	quick atomic.Bool // see Conn.Quick
}

const (
	// quickBytes is how many bytes a link must have carried to count as quick, and how many may wait on the way of one
	// that does not.
	quickBytes = 32 << 10
	// slowWrite is how long the write of what was queued must last for a link to count as slow.
	slowWrite = time.Second
)

func (s *steadiness) init(c *Conn) {
	nc := c.nc
	for t, ok := nc.(interface{ NetConn() net.Conn }); ok; t, ok = nc.(interface{ NetConn() net.Conn }) {
		nc = t.NetConn()
	}
	if sc, ok := nc.(syscall.Conn); ok && canSample {
		s.raw, _ = sc.SyscallConn()
	}
	if s.raw == nil {
		s.quick.Store(true)
		return
	}
	s.timer = time.AfterFunc(time.Hour, c.watchWrite)
	s.timer.Stop()
	if c.o.SlowStart {
		shorten(s.raw, quickBytes/2)
	} else {
		s.quick.Store(true)
	}
}

// Quick reports whether the link is known to take at once what is written. Without Options.SlowStart it always is. On
// a link that is not, little should be queued at a time: at most QuickBytes by users who can wait.
func (c *Conn) Quick() bool { return c.steady.quick.Load() }

// Waiting reports whether the link is not known to be quick, and as much is queued as should be. The user goes on when
// AwaitRoom returns.
func (c *Conn) Waiting() bool {
	if c.Quick() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state == stateOpen && c.queuedBytes >= quickBytes
}

// wroteIn judges the link by a write that took so long.
func (c *Conn) wroteIn(took time.Duration) {
	s := &c.steady
	switch {
	case !c.o.SlowStart || s.raw == nil:
	case took >= slowWrite:
		if s.quick.Swap(false) {
			shorten(s.raw, quickBytes/2)
		}
	case !s.quick.Load():
		if now, ok := take(s.raw); ok && now.acked >= quickBytes && now.written-now.acked < quickBytes/4 {
			shorten(s.raw, 0)
			s.quick.Store(true)
		}
	}
}

// armWriteLocked sets the deadline of a write that begins, and watches it. The caller holds mu.
func (c *Conn) armWriteLocked(now time.Time) {
	before := c.writeDeadline
	c.armLocked(&c.writeDeadline, now, c.o.WriteTimeout, c.nc.SetWriteDeadline)
	if c.steady.timer != nil && c.writeDeadline != before {
		c.steady.timer.Reset(c.o.WriteTimeout / 4)
	}
}

// watchWrite moves the deadline of a write of which the peer's side has acknowledged something since it was called
// last: after a stop, a write ends within a quarter more than WriteTimeout.
func (c *Conn) watchWrite() {
	now, ok := take(c.steady.raw)
	c.mu.Lock()
	defer c.mu.Unlock()
	earlier := c.steady.watched
	c.steady.watched = now
	if t := time.Now(); ok && c.state == stateOpen && t.Before(c.writeDeadline) {
		if c.queuedFrames > 0 && earlier.written > 0 && now.acked > earlier.acked {
			c.writeDeadline = t.Add(c.o.WriteTimeout)
			_ = c.nc.SetWriteDeadline(c.writeDeadline)
		}
		c.steady.timer.Reset(c.o.WriteTimeout / 4)
	}
}

// onItsWay reports whether the peer may not have been reached yet by what was written a tick ago. The goroutine that
// reads calls it at each tick.
func (in *reader) onItsWay() bool {
	s := &in.c.steady
	if s.raw == nil {
		return false
	}
	earlier := s.pinged
	now, ok := take(s.raw)
	s.pinged = now
	return ok && crossing(earlier, now)
}
