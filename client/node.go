package client

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"penstock/netproto"
)

// protocolVersion is the version of the payloads in package wire.
const protocolVersion netproto.Version = 1

// clientName is what the node shows to people about this client.
const clientName = "penstock/client"

// node is an address at which a node is, or was, and the connection to it. It connects, again and again, while somebody
// watches it.
type node struct {
	client  *Client
	address string
	ctx     context.Context // ends when nobody watches, or the client is closed
	cancel  context.CancelFunc

	mu       sync.Mutex // guards the rest
	watchers map[watcher]struct{}
	live     *link
	attempts int   // that have failed since the last connection
	err      error // of the newest one
}

// watcher is woken when the state of a node has changed. wake must not block.
type watcher interface{ wake() }

// acquire returns the node at the address, and connects to it until every watcher has released it.
func (c *Client) acquire(address string, w watcher) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[address]
	if n == nil && c.closed {
		n = &node{client: c, address: address, watchers: map[watcher]struct{}{w: {}}, attempts: 1, err: ErrClosed}
		n.ctx, n.cancel = c.ctx, func() {}
		return n
	}
	if n == nil {
		n = &node{client: c, address: address, watchers: make(map[watcher]struct{})}
		n.ctx, n.cancel = context.WithCancel(c.ctx)
		c.nodes[address] = n
		c.goroutines.Go(n.run)
	}
	n.mu.Lock()
	n.watchers[w] = struct{}{}
	n.mu.Unlock()
	return n
}

// release ends the watcher's interest. The connection is closed when nobody is left.
func (c *Client) release(n *node, w watcher) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n.mu.Lock()
	delete(n.watchers, w)
	left := len(n.watchers)
	n.mu.Unlock()
	if left == 0 && c.nodes[n.address] == n {
		delete(c.nodes, n.address)
		n.cancel()
	}
}

// state is the connection, or nil, and how many attempts to connect have failed since the last one.
func (n *node) state() (l *link, attempts int, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.live, n.attempts, n.err
}

func (n *node) set(l *link, err error) {
	n.mu.Lock()
	n.live, n.err = l, err
	if n.attempts++; l != nil {
		n.attempts = 0
	}
	n.mu.Unlock()
	n.notify()
}

func (n *node) notify() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for w := range n.watchers {
		w.wake()
	}
}

// run connects until the node is released. Between attempts it pauses, longer each time, unless the connection lasted;
// longest if the node says that it is busy, as it does when all its clients come back at once.
func (n *node) run() {
	o := &n.client.o
	if pause, err := n.client.busyFor(n.address); pause > 0 {
		if n.set(nil, err); !n.pause(pause) {
			return
		}
	}
	for fails := 1; ; fails++ {
		began := time.Now()
		l, err := n.connect()
		pause := max(o.delay(fails), n.client.isBusy(n.address, err))
		if err == nil {
			n.client.reached(n.address)
			n.serve(l)
			if time.Since(began) >= o.MaxDelay {
				fails, pause = 1, o.delay(1)
			}
		} else if n.ctx.Err() == nil {
			if n.set(nil, err); n.client.tells(n.address) {
				o.Logger.Warn("cannot connect; trying again", "node", n.address, "error", err)
			}
			if o.Hooks.Failed != nil {
				o.Hooks.Failed(n.address, err)
			}
		}
		if !n.pause(pause) {
			return
		}
	}
}

// pause waits, and returns false if the node was released meanwhile.
func (n *node) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-n.ctx.Done():
		return false
	}
}

// serve offers the connection to those who watch the node, until it ends.
func (n *node) serve(l *link) {
	o := &n.client.o
	o.Logger.Debug("connected", "node", n.address)
	if o.Hooks.Connected != nil {
		o.Hooks.Connected(n.address)
	}
	n.set(l, nil)
	select {
	case <-l.conn.Done():
	case <-n.ctx.Done():
		l.conn.Close()
	}
	err := l.conn.Err()
	n.set(nil, err)
	if n.ctx.Err() == nil {
		o.Logger.Warn("connection lost; connecting again", "node", n.address, "error", err)
	}
	if o.Hooks.Disconnected != nil {
		o.Hooks.Disconnected(n.address, err)
	}
}

// connect makes one attempt: TCP, TLS, the frames' handshake, the token.
func (n *node) connect() (*link, error) {
	o := &n.client.o
	ctx, cancel := context.WithTimeout(n.ctx, connectTimeout)
	defer cancel()
	var token string
	if o.Token != nil {
		var err error
		if token, err = o.Token(ctx, n.address); err != nil {
			return nil, err
		}
	}
	nc, err := n.dial(ctx)
	if err != nil {
		return nil, err
	}
	l := newLink(n)
	hello := netproto.Hello{
		Role: netproto.RoleClient, MinVersion: protocolVersion, MaxVersion: protocolVersion,
	}
	l.conn, err = netproto.Connect(ctx, nc, netproto.Options{Hello: hello, Handler: l})
	if err != nil {
		l.cancel()
		return nil, err
	}
	peer := l.conn.Peer()
	l.era = eraOf(peer)
	l.windowBytes = int64(max(peer.WindowBytes, 1))
	l.window = semaphore.NewWeighted(l.windowBytes)
	if err = l.prove(ctx, token); err != nil {
		l.conn.Close()
		return nil, err
	}
	return l, nil
}

// eraOf names the revisions that a node gives to Metadata. Those of one era can be compared. A cluster has one era, the
// zero ID. A single node, which is a cluster of its own, has another one for each of its processes: its revisions are
// times of its clock, which may have been set back, and when it becomes part of a cluster they are larger than any of
// the cluster's.
func eraOf(peer *netproto.Hello) netproto.ID {
	if peer.Cluster == peer.Store {
		return peer.Boot
	}
	return netproto.ID{}
}

func (n *node) dial(ctx context.Context) (net.Conn, error) {
	o := &n.client.o
	dial, to := o.Dial, n.address
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	if mapped, ok := o.Addresses[to]; ok {
		to = mapped
	}
	nc, err := dial(ctx, "tcp", to)
	if err != nil || o.TLS == nil {
		return nc, n.announced(err)
	}
	config := o.TLS
	if config.ServerName == "" {
		config = config.Clone()
		config.ServerName, _, _ = net.SplitHostPort(n.address)
	}
	secure := tls.Client(nc, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = nc.Close()
		return nil, n.announced(err)
	}
	return secure, nil
}

// announced is err as an AnnouncedError if the program has not named the address itself.
func (n *node) announced(err error) error {
	if t := n.client.view.tellerOf(n.address); err != nil && t.by != "" {
		return &AnnouncedError{Node: t.node, Address: n.address, ToldBy: t.by, Err: err}
	}
	return err
}
