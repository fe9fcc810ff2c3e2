package peer

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/google/uuid"

	"penstock/netproto"
)

// session is one connection, from before its handshake until its Down has returned. It is the connection's
// netproto.Handler.
type session struct {
	net    *Net
	link   *link // when accepting, admit sets it
	ctx    context.Context
	cancel context.CancelCauseFunc // ends the connection, whatever it is doing
	cert   *x509.Certificate       // that the peer has shown; nil: none; set before the Hellos
	serial uint64                  // number of the accepted socket, in the order of acceptance; 0 when dialing

	store, boot uuid.UUID     // of the other process; set by admit, guarded by link.mu
	ready       chan struct{} // closed when Up has returned, or will not be called
	up          bool          // Up was called; read it only after ready is closed
	twin        bool          // the peer is another process of this node's own name, see Ask; set by admit
	reason      error         // why the connection ended; read it only after the connection's Done
}

func (n *Net) newSession(l *link) *session {
	s := &session{net: n, link: l, ready: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancelCause(n.ctx)
	return s
}

// begin makes s the link's newest session and ends the previous one. Handshakes run concurrently: if a socket that was
// accepted later has begun already, s ends instead. If the node was forgotten meanwhile, s ends too.
func (s *session) begin() {
	l := s.link
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sessions++
	switch {
	case l.newest != nil && l.newest.serial > s.serial:
		s.cancel(errSuperseded)
	case l.newest != nil:
		l.newest.cancel(errSuperseded)
		l.newest = s
	default:
		l.newest = s
	}
	if l.node.Load() == nil {
		s.cancel(errGone)
	}
}

// end is the last call of every session that has begun.
func (s *session) end() {
	l := s.link
	s.cancel(nil)
	l.mu.Lock()
	if l.newest == s {
		l.newest = nil
	}
	l.sessions--
	idle := l.sessions == 0
	l.mu.Unlock()
	if idle && !l.dials && l.node.Load() == nil {
		l.net.retire(l)
	}
}

// options returns the Net's options for connections, with s as the handler.
func (n *Net) options(s *session) netproto.Options {
	o := n.o.Conn
	o.Handler, o.Admit = s, s.admit
	return o
}

// admit decides in the handshake whether the peer is a node that this node wants to talk to.
func (s *session) admit(peer *netproto.Hello) error {
	if err := s.net.o.Trust.Names.speaks(s.cert, peer.NodeID, s.net.knows); err != nil {
		return err
	}
	l := s.link
	if l == nil && s.net.isTwin(peer) {
		s.twin = true
		return nil
	}
	if l == nil {
		l = s.net.table.Load().names[peer.NodeID]
	}
	if l == nil {
		return refuse("this node does not know a node %q (yet); it must have joined the cluster", peer.NodeID)
	}
	node := l.node.Load()
	switch {
	case peer.Role != netproto.RoleNode:
		return refuse("this is the port for nodes of the cluster")
	case node == nil || node.Name != peer.NodeID:
		return refuse("node %q was expected here", l.name())
	case uuid.UUID(peer.Store) != node.Store:
		// The peer is not told which store would be right.
		return fmt.Errorf("%w (the cluster knows %v, the peer has %v)",
			refuse("node %q has another store here: it is not the node that the cluster knows, or news of it are on the way",
				peer.NodeID), node.Store, peer.Store)
	case s.link == nil && l.dials:
		return refuse("node %q must wait to be dialed: it has the larger id", peer.NodeID)
	}
	l.mu.Lock()
	s.link, s.store, s.boot = l, uuid.UUID(peer.Store), uuid.UUID(peer.Boot)
	l.mu.Unlock()
	return nil
}

// isTwin says whether the peer is another process of this node's own name, which asks whether this one is still here.
func (n *Net) isTwin(peer *netproto.Hello) bool {
	return peer.Role == netproto.RoleNode && peer.NodeID == n.o.Self.Name && uuid.UUID(peer.Boot) != n.o.Self.Boot
}

func refuse(format string, args ...any) *netproto.RefusedError {
	return &netproto.RefusedError{Status: netproto.StatusRejected, Text: fmt.Sprintf(format, args...)}
}

// Frames passes frames to the Net's Handler, once Up has returned.
func (s *session) Frames(_ *netproto.Conn, frames []netproto.Received) error {
	<-s.ready
	if !s.up {
		return errSuperseded
	}
	s.net.o.Handler.Frames(s.link.id, s.boot, frames)
	return nil
}

// Closed stores the reason; run does everything else at the end of a connection.
func (s *session) Closed(_ *netproto.Conn, err error) { s.reason = err }

// run takes a connection through its life, and returns when nothing of it is left.
func (s *session) run(c *netproto.Conn) {
	l := s.link
	defer s.end()
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-s.ctx.Done():
	}
	if s.ctx.Err() != nil {
		close(s.ready)
		s.hangUp(c)
		return
	}
	l.conn.Store(c)
	l.ups.Add(1)
	s.up = true
	s.net.o.Logger.Info("connected to node", "peer", l.name(), "id", l.id, "boot", s.boot, "address",
		c.RemoteAddr().String())
	s.net.o.Handler.Up(l.id, s.boot)
	close(s.ready)
	select {
	case <-c.Done():
	case <-s.ctx.Done():
	}
	s.hangUp(c)
	l.conn.Store(nil)
	refused := s.refused()
	s.net.o.Logger.Info("connection to node ended", "peer", l.name(), "id", l.id, "boot", s.boot, "reason",
		s.reason.Error(), "process_gone", refused)
	s.net.o.Handler.Down(l.id, s.boot, refused)
}

// hangUp ends the connection and waits for its end: in order if the Net is being closed, at once if the session was
// cancelled.
func (s *session) hangUp(c *netproto.Conn) {
	switch {
	case s.net.ctx.Err() != nil:
		c.Close()
	case s.ctx.Err() != nil:
		c.Abort(context.Cause(s.ctx))
	}
	<-c.Done()
}

// refused says whether the process is gone, see the package comment. It returns false at once if a newer connection
// came, because then a process is there.
func (s *session) refused() bool {
	if !errors.Is(s.reason, netproto.ErrPeerGone) && !errors.Is(s.reason, netproto.ErrGoodbye) {
		return false
	}
	for end := time.Now().Add(ProbeSpan); s.ctx.Err() == nil; {
		node := s.link.node.Load()
		if node == nil {
			return false
		}
		nobody, somebody := s.probe(node.Address)
		if nobody || !somebody || time.Now().After(end) {
			return nobody
		}
		select {
		case <-time.After(probePause):
		case <-s.ctx.Done():
		}
	}
	return false
}

// probe dials once. If the host does not answer, it returns false for both.
func (s *session) probe(address string) (nobody, somebody bool) {
	s.net.probes.Add(1)
	ctx, cancel := context.WithTimeout(s.ctx, ProbeTimeout)
	defer cancel()
	nc, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return errors.Is(err, syscall.ECONNREFUSED), false
	}
	_ = nc.Close()
	return false, true
}
