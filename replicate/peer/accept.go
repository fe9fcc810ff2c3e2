package peer

import (
	"context"
	"errors"
	"net"
	"time"

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
	handshakes := make(chan struct{}, MaxHandshakeCount)
	for {
		nc, err := n.o.Listener.Accept()
		switch {
		case n.ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			if err == nil {
				_ = nc.Close()
			}
			return
		case err != nil:
			n.o.Logger.Error("no connection from another node could be accepted; trying again", "error", err)
			select {
			case <-time.After(MinBackoff):
			case <-n.ctx.Done():
			}
			continue
		}
		serial := n.accepted.Add(1)
		select {
		case handshakes <- struct{}{}:
		default:
			n.acceptFailed.Add(1)
			_ = nc.Close() // the node will dial again
			continue
		}
		n.all.Go(func() { n.take(nc, serial, func() { <-handshakes }) })
	}
}

// take turns an accepted socket into a connection and runs it. It calls shaken when the handshake is over.
func (n *Net) take(nc net.Conn, serial uint64, shaken func()) {
	s := n.newSession(nil)
	s.serial = serial
	defer s.cancel(nil)
	c, err := netproto.Accept(n.ctx, nc, n.options(s))
	shaken()
	if err != nil {
		n.acceptFailed.Add(1)
		if errors.Is(err, netproto.ErrPeerGone) || errors.Is(err, context.Canceled) {
			return // only a probe, see session.probe
		}
		n.o.Logger.Warn("a connection from another node was refused", "address", nc.RemoteAddr().String(), "error", err)
		return
	}
	s.begin()
	s.run(c)
}

func (n *Net) dialFailed(l *link, node *Node, err error) {
	if n.ctx.Err() == nil {
		n.o.Logger.Warn("a node cannot be reached; trying again", "node", node.Name, "id", l.id, "address", node.Address,
			"error", err)
	}
}
