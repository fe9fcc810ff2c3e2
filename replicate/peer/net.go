package peer

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"

	"penstock/internal/lock"
	"penstock/internal/sparing"
	"penstock/internal/strangers"
	"penstock/netproto"
	"penstock/replicate"
)

// Net holds a node's connections to all other nodes. Its methods may be called from any goroutine.
type Net struct {
	o     Options
	ctx   context.Context // until Close
	close context.CancelFunc
	all   sync.WaitGroup

	mu     lock.Mutex[lock.PeerNet] // serializes SetNodes and the removal of links; guards closed
	closed bool
	table  atomic.Pointer[table] // replaced as a whole, so that TrySend takes no lock

	accepted, acceptFailed, probes atomic.Uint64
	unproven, crowded              atomic.Uint64
	shaking                        *strangers.Room // connections whose handshake is not over
	sparing                        *sparing.Log    // of what strangers cause
}

// table is immutable once it is published.
type table struct {
	links map[replicate.NodeID]*link
	names map[string]*link
}

// Listen starts to accept connections. The Net knows no other node before SetNodes. The only error is that the node's
// name is not usable as a name; then the caller still owns the listener.
func Listen(o Options) (*Net, error) {
	n := &Net{o: o.withDefaults()}
	if err := validName(n.o.Self.Name); err != nil {
		return nil, err
	}
	n.sparing, n.shaking = sparing.New(n.o.Logger), strangers.New(n.o.MaxHandshakeCount)
	n.ctx, n.close = context.WithCancel(context.Background())
	n.table.Store(&table{})
	n.all.Go(n.accept)
	return n, nil
}

// LimitHandshakes changes Options.MaxHandshakeCount; 0 is its default.
func (n *Net) LimitHandshakes(count int) { n.shaking.Limit(cmp.Or(count, DefaultMaxHandshakeCount)) }

// SetNodes says which nodes there are, and their addresses. New nodes are dialed or admitted from now on. Missing nodes
// are disconnected. So are nodes whose address or store changed, and nodes whose boot changed to one that is not the
// connected one. The map may have this node. SetNodes waits for no connection. The caller must not change the nodes
// afterwards; the Net does not keep the map.
func (n *Net) SetNodes(nodes map[replicate.NodeID]*Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return
	}
	links := maps.Clone(n.table.Load().links)
	if links == nil {
		links = make(map[replicate.NodeID]*link)
	}
	for id, l := range links {
		if nodes[id] == nil {
			l.forget()
			if l.idle() {
				delete(links, id)
			}
		}
	}
	for id, node := range nodes {
		if id == n.o.Self.ID || node == nil {
			continue
		}
		if l := links[id]; l != nil {
			l.learn(node)
			continue
		}
		l := newLink(n, id, node)
		links[id] = l
		if l.dials {
			n.all.Go(l.dial)
		}
	}
	n.publish(links)
}

// publish replaces the table by one with these links. A name maps to the node that has the name now. The caller holds
// mu.
func (n *Net) publish(links map[replicate.NodeID]*link) {
	t := &table{links: links, names: make(map[string]*link, len(links))}
	for _, l := range links {
		if node := l.node.Load(); node != nil {
			t.names[node.Name] = l
		}
	}
	n.table.Store(t)
}

// retire removes a link that is forgotten and has nothing left to do. It returns false if the node came back.
func (n *Net) retire(l *link) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l.node.Load() != nil {
		return false
	}
	if old := n.table.Load(); old.links[l.id] == l {
		links := maps.Clone(old.links)
		delete(links, l.id)
		n.publish(links)
	}
	return true
}

// TrySend queues the frame for a node. If it returns ErrNotConnected, netproto.ErrQueueFull or netproto.ErrTooBig, the
// frame was not taken. It never waits and allocates nothing. Frames of one goroutine arrive in the order of its calls,
// unless the connection ends between them. nil does not mean that the frame will arrive.
func (n *Net) TrySend(to replicate.NodeID, f *netproto.Frame) error {
	l := n.table.Load().links[to]
	if l == nil {
		return ErrNotConnected
	}
	c := l.conn.Load()
	if c == nil {
		return ErrNotConnected
	}
	err := c.TrySend(f)
	if err == nil || errors.Is(err, netproto.ErrQueueFull) || errors.Is(err, netproto.ErrTooBig) {
		return err
	}
	return ErrNotConnected // the connection is ending; Down is on its way
}

// AwaitRoom waits until a connection whose queue was full has sent something or has ended; then TrySend may have
// another answer. It returns at once if there is no connection. Several goroutines may wait, and any of them may find
// the room first. The error is ctx's.
func (n *Net) AwaitRoom(ctx context.Context, to replicate.NodeID) error {
	if l := n.table.Load().links[to]; l != nil {
		if c := l.conn.Load(); c != nil {
			return c.AwaitRoom(ctx)
		}
	}
	return nil
}

// Connected says whether TrySend has a connection to send on.
func (n *Net) Connected(node replicate.NodeID) bool {
	l := n.table.Load().links[node]
	if l == nil {
		return false
	}
	c := l.conn.Load()
	return c != nil && c.Err() == nil
}

// Shown returns the certificate that a node showed when it was connected or dialed last, also if it was not valid. It
// returns nil if the node showed none, or none is known. The caller must not change it.
func (n *Net) Shown(node replicate.NodeID) *x509.Certificate {
	l := n.table.Load().links[node]
	if l == nil {
		return nil
	}
	return l.shown.Load()
}

// Received returns a number that changes whenever something arrives from a node, even an answer to a probe. It returns
// false if there is no connection.
func (n *Net) Received(node replicate.NodeID) (uint64, bool) {
	l := n.table.Load().links[node]
	if l == nil {
		return 0, false
	}
	c := l.conn.Load()
	if c == nil || c.Err() != nil {
		return 0, false
	}
	return c.Stats().ReadBytes, true
}

// Disconnect ends the connection to a node at once; the caller uses it for a node that sends invalid frames. It does
// not wait, so a Handler may call it. The node connects again as after any other end.
func (n *Net) Disconnect(node replicate.NodeID, reason error) {
	if l := n.table.Load().links[node]; l != nil {
		if c := l.conn.Load(); c != nil {
			c.Abort(reason)
		}
	}
}

// Close stops listening, ends all connections in order, and returns when the last Down has returned and no goroutine is
// left. The Handler must not call it.
func (n *Net) Close() {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	_ = n.o.Listener.Close() // before the connections: a node that probes this one is to find it gone
	n.close()
	n.all.Wait()
	n.sparing.Close()
}

// Stats has counters since Listen, and the current state.
type Stats struct {
	Accepted     uint64 // connections from the listener, including probes
	AcceptFailed uint64 // accepted ones without a session: refused, too slow, or only a probe
	Unproven     uint64 // of those, the ones that did not prove that they belong to the cluster
	Crowded      uint64 // of those, the ones that were closed for newer ones; see Options.MaxHandshakeCount
	LinesLeftOut uint64 // lines that strangers caused and of which the log has only the number
	Probes       uint64 // dials to find out whether a process is gone
	Nodes        []NodeStats
}

// NodeStats describes the link to one other node.
type NodeStats struct {
	ID        replicate.NodeID
	Name      string
	Dials     bool // this side dials
	Connected bool
	Boot      uuid.UUID      // of the connected process
	Ups       uint64         // connections so far
	DialFails uint64         // dials that led to no connection
	Conn      netproto.Stats // of the current connection
}

// Stats returns the counters; it may be called at any time. Nodes are in the order of their ids.
func (n *Net) Stats() Stats {
	s := Stats{
		Accepted: n.accepted.Load(), AcceptFailed: n.acceptFailed.Load(), Probes: n.probes.Load(),
		Unproven: n.unproven.Load(), Crowded: n.crowded.Load(), LinesLeftOut: n.sparing.LeftOut(),
	}
	for _, l := range n.table.Load().links {
		s.Nodes = append(s.Nodes, l.stats())
	}
	slices.SortFunc(s.Nodes, func(a, b NodeStats) int { return cmp.Compare(a.ID, b.ID) })
	return s
}
