package peer

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/google/uuid"

	"penstock/internal/strangers"
	"penstock/netproto"
)

var dialer net.Dialer

// name returns the other node's name, for logs and texts; "" if the node was forgotten.
func (l *link) name() string {
	if node := l.node.Load(); node != nil {
		return node.Name
	}
	return ""
}

// accept takes connections until the Net is closed. If the listener fails otherwise (usually because no file
// descriptors are left), accept tries again after a pause: if it gave up, this node would be cut off.
func (n *Net) accept() {
	for {
		nc, err := n.o.Listener.Accept()
		switch {
		case n.ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			if err == nil {
				_ = nc.Close()
			}
			return
		case err != nil:
			n.sparing.Line(slog.LevelError, "", "no connection from another node could be accepted; trying again", "error", err)
			select {
			case <-time.After(MinBackoff):
			case <-n.ctx.Done():
			}
			continue
		}
		serial := n.accepted.Add(1)
		member := n.shaking.Stranger(nc.RemoteAddr(), func() {
			n.crowded.Add(1)
			_ = nc.Close() // a node will dial again
		})
		member.Enter()
		n.all.Go(func() { n.take(nc, member, serial) })
	}
}

// take turns an accepted socket into a connection and runs it. member is its place among those whose handshake is not
// over.
func (n *Net) take(nc net.Conn, member *strangers.Stranger, serial uint64) {
	s := n.newSession(nil)
	s.serial = serial
	defer s.cancel(nil)
	c, err := n.shake(nc, s)
	if !member.Leave() && err == nil {
		c.Abort(errCrowded)
		<-c.Done()
		err = errCrowded
	}
	if err != nil {
		n.acceptFailed.Add(1)
		n.refused(nc, err)
		return
	}
	if s.twin {
		c.Close()
		<-c.Done()
		n.logTwin(c)
		return
	}
	s.begin()
	s.run(c)
}

// shake takes an accepted socket through both handshakes.
func (n *Net) shake(nc net.Conn, s *session) (*netproto.Conn, error) {
	o := n.options(s)
	nc, err := n.secured(nc, &o)
	if err != nil {
		return nil, err
	}
	s.cert = certificateOf(nc)
	c, err := netproto.Accept(n.ctx, nc, o)
	if err == nil && s.link != nil { // nil: it is a twin
		s.link.note(nc)
	}
	return c, err
}

// refused counts and logs a connection that did not come about.
func (n *Net) refused(nc net.Conn, err error) {
	which := ""
	if errors.Is(err, netproto.ErrUnproven) || errors.Is(err, errTLS) {
		n.unproven.Add(1)
		which = "unproven" // nodes of other secrets must not hide behind silent connections
	} else if errors.Is(err, netproto.ErrPeerGone) || errors.Is(err, context.Canceled) {
		return // only a probe, see session.probe
	}
	from := nc.RemoteAddr().String()
	n.sparing.Line(slog.LevelWarn, which, "a connection from another node was refused", "address", from, "error", err)
}

// logTwin says that another process wants this node's name: a supervisor may start it again and again.
func (n *Net) logTwin(c *netproto.Conn) {
	p := c.Peer()
	n.sparing.Warn("another process tried to start under this node's name, and was told that this one is here: give one "+
		"of them another node-id and a directory of its own", "name", p.NodeID, "address", c.RemoteAddr().String(),
		"boot", uuid.UUID(p.Boot))
}

func (n *Net) dialFailed(l *link, node *Node, err error) {
	if n.ctx.Err() == nil {
		n.o.Logger.Warn("a node cannot be reached; trying again", "peer", node.Name, "id", l.id, "address", node.Address,
			"error", err)
	}
}
