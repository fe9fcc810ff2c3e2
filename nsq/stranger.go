package nsq

import (
	"fmt"
	"sync/atomic"
	"time"

	"penstock/nsq/internal/audit"
)

// Strangers are clients that have to prove who they are, with AUTH, and have not. Until then a client costs the node
// little, whatever it sends:
//
//   - at most MaxStrangers of them are connected at once; the next one is told so, and its connection closed;
//   - the bodies of their commands have at most MaxStrangerBytes together; a larger one is refused before it is read;
//   - they have StrangerTime to send AUTH;
//   - their read buffers do not grow, and a deflate compressor, which takes about 1 MiB, is made only after AUTH.
//
// On a node that requires no AUTH there are no strangers.

// beStranger makes a new connection that of a stranger.
func (c *conn) beStranger() {
	o := &c.srv.opts
	c.stranger = true
	c.parser.stranger, c.parser.allowance = true, o.MaxStrangerBytes
	c.in.small = true
	c.authBy.Store(c.srv.now() + int64(o.StrangerTime))
}

// beKnown lifts the limits of strangers, after AUTH has succeeded. The reader calls it.
func (c *conn) beKnown() {
	c.parser.stranger = false
	c.in.small = false
	if c.wire != nil {
		c.wire.in.small = false
	}
	c.authBy.Store(0)
	c.srv.mu.Lock()
	c.leaveStrangers()
	c.srv.mu.Unlock()
}

// leaveStrangers ends the connection's part in Server.strangers. The caller holds Server.mu.
func (c *conn) leaveStrangers() {
	if c.stranger {
		c.stranger = false
		c.srv.strangers--
	}
}

// countStranger records that a stranger was refused.
func (c *conn) countStranger(n *atomic.Uint64, why string) {
	n.Add(1)
	c.srv.audit.Refused(audit.Entry{Who: c.certified(), From: c.remote, What: "connection"}, why)
}

// turnAway closes a new connection with a sentence, because there are too many strangers. It does not wait for the
// client.
func (c *conn) turnAway() {
	why := fmt.Sprintf("E_AUTH_FAILED AUTH failed: %d other clients are connected that have not sent AUTH yet, which is "+
		"the most that there may be; try again later", c.srv.opts.MaxStrangers)
	c.countStranger(&c.srv.counts.strangerConns, why)
	_ = c.nc.SetWriteDeadline(time.Now().Add(sweepInterval))
	_, _ = c.nc.Write(appendFrame(nil, frameError, why)) // into the empty buffer of a new socket
	c.kill()
}
