package peer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"penstock/internal/lock"
	"penstock/netproto"
	"penstock/replicate"
)

// link is this node's end of the pair that it forms with one other node.
type link struct {
	net   *Net
	id    replicate.NodeID
	dials bool
	node  atomic.Pointer[Node]          // nil: the node is not in the table any more
	conn  atomic.Pointer[netproto.Conn] // the connection for TrySend: set before Up, cleared before Down
	turn  chan struct{}                 // capacity 1: held by one session from before its Up until after its Down
	kick  chan struct{}                 // capacity 1: dial now

	ups, dialFails atomic.Uint64
	shown          atomic.Pointer[x509.Certificate] // see Net.Shown

	mu       lock.Mutex[lock.PeerLink]
	newest   *session // the newest session, or nil if it has ended; guarded by mu
	sessions int      // sessions that have begun and not ended; guarded by mu
}

func newLink(n *Net, id replicate.NodeID, node *Node) *link {
	l := &link{net: n, id: id, dials: n.o.Self.ID < id, turn: make(chan struct{}, 1), kick: make(chan struct{}, 1)}
	l.node.Store(node)
	return l
}

// learn takes the table's new entry for the node, and ends a connection that no longer fits it.
func (l *link) learn(node *Node) {
	old := l.node.Swap(node)
	if old != nil && *old == *node {
		return
	}
	l.mu.Lock()
	s := l.newest
	// A boot that did not change in the table may be older than the connection. Only a change to another boot than the
	// connected one ends the connection.
	if s != nil && (old == nil || old.Address != node.Address || s.store != node.Store || old.Name != node.Name ||
		old.Boot != node.Boot && s.boot != node.Boot) {
		s.cancel(errChanged)
	}
	l.mu.Unlock()
	l.redial()
}

// forget ends the connection to a node that is no longer in the table.
func (l *link) forget() {
	l.node.Store(nil)
	l.mu.Lock()
	if l.newest != nil {
		l.newest.cancel(errGone)
	}
	l.mu.Unlock()
	l.redial()
}

// idle says whether a forgotten link has neither a dialing goroutine nor a session that would retire it.
func (l *link) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.dials && l.sessions == 0
}

func (l *link) redial() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// dial connects again and again until the node is forgotten or the Net is closed. It runs on the link's own goroutine.
func (l *link) dial() {
	backoff, failing := MinBackoff, false
	for l.net.ctx.Err() == nil {
		node := l.node.Load()
		if node == nil {
			if l.net.retire(l) {
				return
			}
			continue
		}
		s := l.net.newSession(l)
		s.begin()
		c, err := l.connect(s, node)
		began := time.Now()
		if err == nil {
			s.run(c)
		} else {
			s.end()
			l.dialFails.Add(1)
			if !failing { // once per series of failures: a node that is down for a day must not fill the log
				l.net.dialFailed(l, node, err)
			}
		}
		failing = err != nil
		lasting := err == nil && time.Since(began) >= MaxBackoff
		if lasting {
			backoff = MinBackoff
		}
		if l.pause(backoff) {
			backoff = MinBackoff
		} else if !lasting {
			backoff = min(2*backoff, MaxBackoff)
		}
	}
}

// pause waits about as long as backoff says, with jitter so that the nodes of a returning cluster do not all dial at
// once. It returns true if it was cut short.
func (l *link) pause(backoff time.Duration) bool {
	timer := time.NewTimer(backoff - rand.N(backoff/4))
	defer timer.Stop()
	select {
	case <-timer.C:
		return false
	case <-l.kick:
		return true
	case <-l.net.ctx.Done():
		return true
	}
}

func (l *link) connect(s *session, node *Node) (*netproto.Conn, error) {
	ctx, cancel := context.WithTimeout(s.ctx, l.net.o.Conn.HandshakeTimeout)
	defer cancel()
	nc, err := dialer.DialContext(ctx, "tcp", node.Address)
	if err != nil {
		return nil, err
	}
	if nc, err = l.net.verified(ctx, nc, node.Address); err != nil {
		if refused := new(tls.CertificateVerificationError); errors.As(err, &refused) {
			l.shown.Store(refused.UnverifiedCertificates[0])
		}
		return nil, err
	}
	l.note(nc)
	s.cert = certificateOf(nc)
	return netproto.Connect(ctx, nc, l.net.options(s))
}

// note keeps the certificate that the node has shown in a TLS handshake. Of the Net's link the caller knows that the
// node is at the other end.
func (l *link) note(nc net.Conn) {
	if cert := certificateOf(nc); cert != nil {
		l.shown.Store(cert)
	}
}

func (l *link) stats() NodeStats {
	s := NodeStats{ID: l.id, Dials: l.dials, Ups: l.ups.Load(), DialFails: l.dialFails.Load()}
	if node := l.node.Load(); node != nil {
		s.Name = node.Name
	}
	if c := l.conn.Load(); c != nil {
		s.Connected, s.Boot, s.Conn = c.Err() == nil, uuid.UUID(c.Peer().Boot), c.Stats()
	}
	return s
}
