package nsq

import (
	"fmt"
	"sync/atomic"
	"time"

	"penstock/internal/server/audit"
)

// Strangers are clients that have to prove who they are, with AUTH, and have not. Until then a client costs the node
// little, whatever it sends:
//
//   - at most MaxStrangers of them are connected at once; for the next one, the oldest of the address that has the most
//     has to go, so that clients that hold connections, or open many, cannot keep others out; one for which the node
//     waits for an auth server stays (package strangers);
//   - the bodies of their commands have at most MaxStrangerBytes together; a larger one is refused before it is read;
//   - they have StrangerTime to send AUTH;
//   - their read buffers do not grow, and a deflate compressor, which takes about 1 MiB, is made only after AUTH.
//
// On a node that requires no AUTH there are no strangers.

// beStranger makes a new connection that of a stranger.
func (c *conn) beStranger() {
	o := c.srv.settings()
	c.stranger = c.srv.opts.Strangers.Stranger(c.out.nc.RemoteAddr(), c.makeRoom)
	c.parser.Stranger, c.parser.Allowance = true, o.MaxStrangerBytes
	c.in.small = true
	c.authBy.Store(c.srv.now() + int64(o.StrangerTime))
}

// beKnown lifts the limits of strangers, after AUTH has succeeded. The reader calls it.
func (c *conn) beKnown() {
	c.parser.Stranger = false
	c.in.small = false
	if c.wire != nil {
		c.wire.in.small = false
	}
	c.authBy.Store(0)
	c.leaveStrangers()
}

// leaveStrangers ends the connection's part in Options.Strangers. The reader calls it.
func (c *conn) leaveStrangers() {
	if c.stranger != nil {
		c.stranger.Leave()
		c.stranger = nil
	}
}

// stay says whether the node itself works on the client's proof, so that the client must not be made to go.
func (c *conn) stay(stays bool) {
	if c.stranger != nil {
		c.stranger.Stay(stays)
	}
}

// makeRoom ends the connection of a stranger, because others have come since and there are too many. It is the end of
// the connection in Options.Strangers.
func (c *conn) makeRoom() {
	c.countStranger(&c.srv.counts.strangerConns, fmt.Sprintf("no AUTH, and %d further clients that have sent none are "+
		"connected, which is the most that there may be", c.srv.settings().MaxStrangers))
	c.kill()
}

// countStranger records that a stranger was refused.
func (c *conn) countStranger(n *atomic.Uint64, why string) {
	n.Add(1)
	c.srv.opts.Audit.Refused(audit.Entry{Who: c.certified(), From: c.remote, What: "connection"}, why)
}

// turnAway closes a new connection with a sentence, because there are too many strangers and all of them wait for an
// auth server. It does not wait for the client.
func (c *conn) turnAway() {
	why := fmt.Sprintf("E_AUTH_FAILED AUTH failed: %d other clients wait for the answer of an auth server, which is the "+
		"most that may; try again later", c.srv.settings().MaxStrangers)
	c.countStranger(&c.srv.counts.strangerConns, why)
	_ = c.out.nc.SetWriteDeadline(time.Now().Add(sweepInterval))
	_, _ = c.out.nc.Write(appendFrame(nil, frameError, why)) // into the empty buffer of a new socket
	c.kill()
}
