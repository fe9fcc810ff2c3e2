package nsq

import (
	"context"
)

// largeInputBytes is the size beyond which a command that has not arrived yet needs a part of
// Options.MaxLargeInputBytes.
const largeInputBytes = 64 << 10

// reserve waits until the node has room for a command of need bytes, of which the first have arrived. Until then the
// client's further bytes stay in its socket. Only one command of a connection is being received at a time, so nobody
// who waits has a reservation; and each ends after MaxCommandTime at the latest.
func (c *conn) reserve(need int) *fault {
	n := int64(blockBytes(need))
	if n <= c.reserved {
		return nil
	}
	c.unreserve()
	if c.srv.large.TryAcquire(n) {
		c.keep(n)
		return nil
	}
	patience := c.srv.opts.MaxCommandTime + 4*sweepInterval // who has the room now must be gone by then
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	defer cancel()
	go func() { // stop must end the wait as well
		select {
		case <-c.stopped:
			cancel()
		case <-ctx.Done():
		}
	}()
	c.srv.counts.inputWaits.Add(1)
	c.waiting.Store(true)
	err := c.srv.large.Acquire(ctx, n)
	c.commandSince.Store(c.srv.now())
	c.lastByte.Store(c.srv.now())
	c.waiting.Store(false)
	switch {
	case err == nil:
		c.keep(n)
	case c.stopping.Load() || c.ctx.Err() != nil: // the next read tells
	default:
		return faultf("E_BAD_BODY body of %d bytes has found no room for %v, because too many large ones are being "+
			"received on this node; nothing of it was stored, try again later", need, patience)
	}
	return nil
}

func (c *conn) keep(n int64) {
	c.reserved = n
	c.srv.largeBytes.Add(n)
}

// unreserve gives the reservation back. The command that it was for has arrived, or never will.
func (c *conn) unreserve() {
	if n := c.reserved; n > 0 {
		c.reserved = 0
		c.srv.largeBytes.Add(-n)
		c.srv.large.Release(n)
	}
}
