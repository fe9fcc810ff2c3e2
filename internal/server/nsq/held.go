package nsq

import (
	"errors"
	"syscall"

	"penstock/internal/node"
	"penstock/internal/node/message"
)

// errLate says that the time for writing a message of an ordered channel passed when half of its frame was on the
// socket. The other half cannot be left out, so the connection ends.
var errLate = errors.New("nsq: the client did not read an ordered message for so long that another client may have it")

// heldFrame is a message frame that may be written only until its deadline. After that, another client may have been
// given the next message of the ordered channel.
type heldFrame struct {
	from, to int // the frame is chunk.p[from:to]
	what     message.HeldDelivery
}

// holdLast marks the last frame in next, which begins at from, as held if the delivery d has a deadline. The caller
// holds mu.
func (o *output) holdLast(from int, d *node.Delivery) {
	if !d.Until.IsZero() && !o.sealed {
		if o.next.held == nil {
			o.next.held, o.spareHeld = o.spareHeld, nil
		}
		o.next.held = append(o.next.held, heldFrame{from, len(o.next.p), message.HeldDelivery{ID: d.ID, Until: d.Until}})
		o.heldCount++
	}
}

// cut removes the frames for which drop returns true from a chunk of which at bytes are written. A frame that is
// written completely stays. If a frame to be dropped is written in part, it stays as well, and cut returns errLate. The
// caller holds mu.
func (o *output) cut(c *chunk, at int, drop func(*heldFrame) bool) error {
	kept := c.held[:0]
	gone := 0 // bytes removed so far
	var err error
	for i := range c.held {
		f := c.held[i]
		f.from, f.to = f.from-gone, f.to-gone
		switch {
		case f.to <= at || !drop(&f):
			kept = append(kept, f)
		case c.encoded || f.from < at:
			kept = append(kept, f)
			err = errLate
		default:
			c.p = append(c.p[:f.from], c.p[f.to:]...)
			gone += f.to - f.from
			o.heldCount--
			o.dropped = append(o.dropped, f.what)
		}
	}
	c.held = kept
	return err
}

func late(f *heldFrame) bool { return f.what.Until.Passed() }

// writeHeld writes the rest of a chunk with held frames, from byte n on. Each time the socket accepts more, it first
// drops the frames whose deadline has passed. It returns how many bytes are written. The writer goroutine calls it.
func (o *output) writeHeld(raw syscall.RawConn, c *chunk, n int) (int, error) {
	o.mu.Lock()
	o.slow, o.slowAt = c, n
	o.mu.Unlock()
	var err error
	waitErr := raw.Write(func(fd uintptr) bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		if err = o.cut(c, o.slowAt, late); err != nil {
			return true
		}
		for o.slowAt < len(c.p) {
			m, werr := syscall.Write(int(fd), c.p[o.slowAt:])
			switch {
			case werr == nil:
				o.slowAt += m
			case errors.Is(werr, syscall.EAGAIN):
				return false // called again when the socket has room
			case !errors.Is(werr, syscall.EINTR):
				err = werr
				return true
			}
		}
		return true
	})
	o.mu.Lock()
	o.slow, n = nil, o.slowAt
	o.mu.Unlock()
	return n, errors.Join(err, waitErr)
}

func (s *sink) Drained() bool {
	o := &s.out
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.heldCount == 0 || o.failed != nil && o.lent.k == nil
}

// Withdraw implements message.HeldSink. A frame that a system call is writing at this moment counts as sent: Withdraw
// leaves it alone.
func (s *sink) Withdraw(id node.ID) bool {
	o := &s.out
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.heldCount == 0 {
		return true
	}
	that := func(f *heldFrame) bool { return f.what.ID == id }
	before := len(o.next.p)
	err := o.cut(&o.next, 0, that)
	o.unsent -= before - len(o.next.p)
	if o.slow != nil {
		err = errors.Join(err, o.cut(o.slow, o.slowAt, that))
	}
	return err == nil
}

func (s *sink) Dropped(dst []message.HeldDelivery) []message.HeldDelivery {
	o := &s.out
	o.mu.Lock()
	n := len(dst)
	dst = append(dst, o.dropped...)
	clear(o.dropped)
	o.dropped = o.dropped[:0]
	o.mu.Unlock()
	for _, d := range dst[n:] {
		s.flight.gave(d.ID)
	}
	return dst
}
