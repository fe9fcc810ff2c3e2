package peer

import (
	"context"
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
	link   *link // when accepting: set by admit
	ctx    context.Context
	cancel context.CancelCauseFunc // ends the connection, whatever it is doing
	serial uint64                  // the place in the order in which sockets were accepted; 0 when dialing

	store, boot uuid.UUID     // of the process; set by admit, under link.mu
	ready       chan struct{} // closed when Up has returned, or will not come
	up          bool          // Up came; to be read after ready
	reason      error         // why the connection ended; to be read after its Done
}

func (n *Net) newSession(l *link) *session {
	s := &session{net: n, link: l, ready: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancelCause(n.ctx)
	return s
}

// begin makes s the link's newest session, and ends the one before. Handshakes run side by side: if a socket that was
// accepted later has begun already, it is s that ends. If the node was forgotten meanwhile, s ends too.
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

// end is the last thing of every session that has begun.
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

// options are the connection's: the Net's, with s as the handler.
func (n *Net) options(s *session) netproto.Options {
	o := n.o.Conn
	o.Handler, o.Admit = s, s.admit
	return o
}

// admit says whether the peer is who this node wants to talk to. It runs in the handshake.
func (s *session) admit(peer *netproto.Hello) error {
	l := s.link
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
		return refuse("node %q has the store %v here, not %v: it is not the node that the cluster knows, or news of it are "+
			"on the way", peer.NodeID, node.Store, peer.Store)
	case s.link == nil && l.dials:
		return refuse("node %q must wait to be dialed: it has the larger id", peer.NodeID)
	}
	l.mu.Lock()
	s.link, s.store, s.boot = l, uuid.UUID(peer.Store), uuid.UUID(peer.Boot)
	l.mu.Unlock()
	return nil
}

func refuse(format string, args ...any) error {
	return &netproto.RefusedError{Status: netproto.StatusRejected, Text: fmt.Sprintf(format, args...)}
}

// Frames passes frames on, once Up has returned.
func (s *session) Frames(c *netproto.Conn, frames []netproto.Received) error {
	<-s.ready
	if !s.up {
		return errSuperseded
	}
	s.net.o.Handler.Frames(s.link.id, s.boot, frames, c)
	return nil
}

// Closed keeps the reason. What is to be done then, run does.
func (s *session) Closed(_ *netproto.Conn, err error) { s.reason = err }

// run leads a connection through its life and returns when it has left nothing behind.
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
	s.net.o.Logger.Info("connected to node", "node", l.name(), "id", l.id, "boot", s.boot, "address",
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
	s.net.o.Logger.Info("connection to node ended", "node", l.name(), "id", l.id, "boot", s.boot, "reason",
		s.reason.Error(), "process_gone", refused)
	s.net.o.Handler.Down(l.id, s.boot, refused)
}

// hangUp ends the connection and waits for it: in order if the Net is being closed, at once if it is of no use any
// more.
func (s *session) hangUp(c *netproto.Conn) {
	switch {
	case s.net.ctx.Err() != nil:
		c.Close()
	case s.ctx.Err() != nil:
		c.Abort(context.Cause(s.ctx))
	}
	<-c.Done()
}

// refused says whether the process is gone, see the package comment. It is over at once if a newer connection came:
// then somebody is there.
func (s *session) refused() bool {
	if !errors.Is(s.reason, netproto.ErrPeerGone) && !errors.Is(s.reason, netproto.ErrGoodbye) {
		return false
	}
	for end := time.Now().Add(ProbeSpan); s.ctx.Err() == nil; {
		node := s.link.node.Load()
		if node == nil {
			return false
		}
		nobody, somebody := s.probe(node.Peer)
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

// probe dials once. Neither answer is true if the host does not answer.
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
