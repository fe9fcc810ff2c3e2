package nsq

import (
	"context"
	"errors"

	"penstock/internal/server/nsq/command"
	"penstock/internal/shares"
	"penstock/internal/strangers"
)

const (
	// largeInputBytes is how much of a command may arrive before the rest of it needs a part of
	// Options.MaxLargeInputBytes.
	largeInputBytes = 64 << 10

	// minLargeInputRate is how many bytes a second of such a command must arrive, after Options.LargeInputGrace: who
	// holds room must use it.
	minLargeInputRate = 16 << 10
)

// largeInput looks at an incomplete command of need bytes, of which unread have arrived. It reserves room for the whole
// of it, in one step, when largeInputBytes are there: what its head announces costs nothing before. The room is not
// taken bit by bit as the bytes arrive, because clients that each hold a part would wait for each other; so nobody who
// waits holds anything, and each ends by the rules of pulse.judge.
func (c *conn) largeInput(need, unread int) *command.Fault {
	if need <= largeInputBytes || unread < largeInputBytes {
		return nil
	}
	if f := c.reserve(need); f != nil {
		return f
	}
	c.arrived.Store(int64(unread))
	return nil
}

// reserve waits until the node has room for a command of need bytes, and the client's share has. Until then the
// client's further bytes stay in its socket.
func (c *conn) reserve(need int) *command.Fault {
	n := int64(blockBytes(need))
	if n <= c.reserved {
		return nil
	}
	c.unreserve()
	who := c.payer()
	if c.srv.opts.Received.TryTake(who, n) == nil {
		c.reserved, c.reservedBy = n, who
		return nil
	}
	patience := c.srv.settings().MaxCommandTime + 4*sweepInterval // who has the room now must be gone by then
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
	err := c.srv.opts.Received.Take(ctx, who, n)
	c.commandSince.Store(c.srv.now())
	c.lastByte.Store(c.srv.now())
	c.waiting.Store(false)
	switch {
	case err == nil:
		c.reserved, c.reservedBy = n, who
	case c.stopping.Load() || c.ctx.Err() != nil: // the next read tells
	case errors.Is(err, shares.ErrShare):
		return command.Faultf("E_BAD_BODY body of %d bytes has found no room for %v, because other large commands of this "+
			"client's token or address are being received, of %d bytes at most (a quarter of max-large-input-bytes); nothing "+
			"of it was stored, try again later", need, patience, c.srv.opts.Received.Share())
	default:
		return command.Faultf("E_BAD_BODY body of %d bytes has found no room for %v, because too many large ones are being "+
			"received on this node, of %d bytes at most (max-large-input-bytes); nothing of it was stored, try again later",
			need, patience, c.srv.settings().MaxLargeInputBytes)
	}
	return nil
}

// payer is who the connection's large commands are charged to: its token, or the address of a client that has shown
// none.
func (c *conn) payer() string {
	if l := c.login.Load(); l != nil {
		return "token " + l.who.Name()
	}
	return strangers.Of(c.out.nc.RemoteAddr()).String()
}

// unreserve gives the reservation back. The command that it was for has arrived, or never will.
func (c *conn) unreserve() {
	if n := c.reserved; n > 0 {
		c.arrived.Store(0)
		c.reserved = 0
		c.srv.opts.Received.Give(c.reservedBy, n)
	}
}
