package peer

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"penstock/engine/meta"
	"penstock/internal/lock"
	"penstock/netproto"
	"penstock/replicate"
)

// Net is a node's connections to all others. Its methods may be called from any goroutine.
type Net struct {
	o     Options
	ctx   context.Context // until Close
	close context.CancelFunc
	all   sync.WaitGroup

	mu     lock.Mutex[lock.PeerNet] // one SetNodes at a time, and the end of links
	closed bool
	table  atomic.Pointer[table] // replaced whole, so that TrySend takes no lock

	accepted, acceptFailed, probes atomic.Uint64
}

// table is immutable.
type table struct {
	links map[replicate.NodeID]*link
	names map[string]*link
}

// Listen starts to accept connections. Nobody is known before SetNodes. The error says that the node's name cannot be a
// name; then the listener is still the caller's.
func Listen(o Options) (*Net, error) {
	n := &Net{o: o.withDefaults()}
	if err := validName(n.o.Self.Name); err != nil {
		return nil, err
	}
	n.ctx, n.close = context.WithCancel(context.Background())
	n.table.Store(&table{})
	n.all.Go(n.accept)
	return n, nil
}

// Addr is where the listener listens.
func (n *Net) Addr() net.Addr { return n.o.Listener.Addr() }

// SetNodes says who there is and where. Nodes that were not there before are dialed or let in from now on, nodes that
// are missing are disconnected, and so are those whose address or store changed, or whose boot changed to one that is
// not connected. This node may be among them. It does not wait for any connection. The nodes must not be changed
// afterwards; the map is not kept.
func (n *Net) SetNodes(nodes map[replicate.NodeID]*meta.Node) {
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

// publish makes links the table. A name belongs to the node that has it now.
func (n *Net) publish(links map[replicate.NodeID]*link) {
	t := &table{links: links, names: make(map[string]*link, len(links))}
	for _, l := range links {
		if node := l.node.Load(); node != nil {
			t.names[node.Name] = l
		}
	}
	n.table.Store(t)
}

// retire removes a link that is forgotten and has nothing left; false if the node came back meanwhile.
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

// TrySend queues the frame for a node, or returns ErrNotConnected, netproto.ErrQueueFull or netproto.ErrTooBig; then it
// was not taken. It never waits and allocates nothing. Frames of one goroutine arrive in the order of its calls, unless
// the connection ends between them. nil does not mean that the frame will arrive.
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
	return ErrNotConnected // it is ending; Down is on its way
}

// AwaitRoom waits until a connection whose queue was full has sent something, has ended, or is not there; then TrySend
// has another answer. Of goroutines that wait, any may be the first to find room. The error is ctx's.
func (n *Net) AwaitRoom(ctx context.Context, to replicate.NodeID) error {
	if l := n.table.Load().links[to]; l != nil {
		if c := l.conn.Load(); c != nil {
			return c.AwaitRoom(ctx)
		}
	}
	return nil
}

// ReadOn lets other goroutines read from the nodes whose frames are in a call of Handler.Frames that said it may block,
// and has not returned for at least this long. It does not block.
func (n *Net) ReadOn(after time.Duration) {
	for _, l := range n.table.Load().links {
		if c := l.conn.Load(); c != nil {
			c.ReadOn(after)
		}
	}
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

// Disconnect ends the connection to a node at once, for one whose frames are not valid. It does not wait, so a Handler
// may call it. The node is connected again as after any other end.
func (n *Net) Disconnect(node replicate.NodeID, reason error) {
	if l := n.table.Load().links[node]; l != nil {
		if c := l.conn.Load(); c != nil {
			c.Abort(reason)
		}
	}
}

// Close stops to listen, ends all connections in order, and returns when the last Down has returned and no goroutine is
// left. It must not be called by the Handler.
func (n *Net) Close() {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	_ = n.o.Listener.Close() // before the connections: whoever probes this node is to find it gone
	n.close()
	n.all.Wait()
}

// Stats are counts since Listen, and what holds now.
type Stats struct {
	Accepted     uint64 // connections from the listener, probes among them
	AcceptFailed uint64 // of those, without a connection: refused, not in time, or only a look
	Probes       uint64 // looks whether a process is gone
	Nodes        []NodeStats
}

// NodeStats are about one other node.
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

// Stats may be called at any time. The nodes are in the order of their ids.
func (n *Net) Stats() Stats {
	s := Stats{Accepted: n.accepted.Load(), AcceptFailed: n.acceptFailed.Load(), Probes: n.probes.Load()}
	for _, l := range n.table.Load().links {
		s.Nodes = append(s.Nodes, l.stats())
	}
	slices.SortFunc(s.Nodes, func(a, b NodeStats) int { return cmp.Compare(a.ID, b.ID) })
	return s
}
