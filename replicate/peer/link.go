package peer

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"penstock/engine/meta"
	"penstock/internal/lock"
	"penstock/netproto"
	"penstock/replicate"
)

// link is this node's side of the pair with another node.
type link struct {
	net   *Net
	id    replicate.NodeID
	dials bool
	node  atomic.Pointer[meta.Node]     // nil: forgotten
	conn  atomic.Pointer[netproto.Conn] // what TrySend uses: set before Up, unset before Down
	turn  chan struct{}                 // of one: held from before Up until after Down
	kick  chan struct{}                 // of one: dial now

	ups, dialFails atomic.Uint64

	mu       lock.Mutex[lock.PeerLink]
	newest   *session // the last one that began, if it has not ended
	sessions int      // that have begun and not ended
}

func newLink(n *Net, id replicate.NodeID, node *meta.Node) *link {
	l := &link{net: n, id: id, dials: n.o.Self.ID < id, turn: make(chan struct{}, 1), kick: make(chan struct{}, 1)}
	l.node.Store(node)
	return l
}

// learn takes what the table says now.
func (l *link) learn(node *meta.Node) {
	old := l.node.Swap(node)
	switch {
	case old == node:
		return
	case old != nil && old.Peer == node.Peer && old.Store == node.Store && old.Name == node.Name && old.Boot == node.Boot:
		return
	}
	l.mu.Lock()
	s := l.newest
	// A boot that did not change may be older than the connection: only news of another process ends it.
	if s != nil && (old == nil || old.Peer != node.Peer || s.store != node.Store || old.Name != node.Name ||
		old.Boot != node.Boot && s.boot != node.Boot) {
		s.cancel(errChanged)
	}
	l.mu.Unlock()
	l.redial()
}

// forget ends the connection to a node that is not in the table any more.
func (l *link) forget() {
	l.node.Store(nil)
	l.mu.Lock()
	if l.newest != nil {
		l.newest.cancel(errGone)
	}
	l.mu.Unlock()
	l.redial()
}

// idle says whether nobody will retire a forgotten link.
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

// dial connects again and again, until the node is forgotten or the Net closed.
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
			if !failing { // once per row of failures: a node that is down for a day must not fill the log
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

// pause waits, with jitter so that the nodes of a cluster that comes back do not all dial at once; true if it was cut
// short.
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

func (l *link) connect(s *session, node *meta.Node) (*netproto.Conn, error) {
	ctx, cancel := context.WithTimeout(s.ctx, l.net.o.Conn.HandshakeTimeout)
	defer cancel()
	nc, err := dialer.DialContext(ctx, "tcp", node.Peer)
	if err != nil {
		return nil, err
	}
	return netproto.Connect(ctx, nc, l.net.options(s))
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
