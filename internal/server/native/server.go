package native

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"penstock/internal/descriptors"
	"penstock/internal/node"
	"penstock/internal/shares"
	"penstock/internal/strangers"
	"penstock/netproto"
)

const (
	// protocolVersion is the meaning of all types of internal/server/native/wire.
	protocolVersion = 1

	// heraldPause is the least time between two looks at what clients have to be told of topics and leaders.
	heraldPause = 20 * time.Millisecond

	// partingTime is how long clients get between a GoAway and the end of their connection, if nothing of theirs waits
	// for an answer.
	partingTime = 200 * time.Millisecond
	// partingCheck is how often Shutdown looks whether answers are still owed.
	partingCheck = 5 * time.Millisecond
)

// Server serves one Engine to native clients. It does not close the engine, which must stay open until Shutdown has
// returned. Methods are safe for concurrent use.
//
// It has the goroutines of netproto.Serve, one per session, the herald, and those of what sessions open. mu is
// a leaf: its holders call nothing.
type Server struct {
	engine *node.Engine
	opts   Options
	now    atomic.Pointer[Options] // those of now: see Change
	hello  netproto.Hello
	meter  meter

	started time.Time // of sample

	ctx    context.Context // ends when Shutdown has let go of the clients
	cancel context.CancelFunc
	began  atomic.Bool   // Serve was called
	ended  chan struct{} // closed when Serve has returned

	// Of all connections, with a share for each token or address.
	inFlight   *shares.Budget // bytes of requests that are not answered yet; at most Options.MaxInFlightBytes
	subscribed *shares.Budget // open subscriptions; at most Options.MaxSubscriptions
	readers    *shares.Budget // open readers; at most Options.MaxReaders
	output     *shares.Budget // bytes that are not written yet; at most Options.MaxOutputBytes

	pinned  atomic.Int64 // bytes of the engine's memory that are on their way to clients
	workers sync.WaitGroup

	strangers *strangers.Room // sessions whose client has to send Auth and has not

	mu       sync.Mutex
	sessions map[*session]struct{}
	stopping bool
}

// Listen makes a Server, which owns Options.Listener from then on. Clients are served once Serve runs. The caller must
// call Shutdown even if it never calls Serve. If Listen returns an error, the listener is still the caller's.
func Listen(e *node.Engine, o Options) (*Server, error) {
	if err := o.setDefaults(e); err != nil {
		return nil, err
	}
	s := &Server{
		engine: e, opts: o, meter: newMeter(), sessions: map[*session]struct{}{}, ended: make(chan struct{}),
		started:    time.Now(),
		strangers:  strangers.New(o.MaxStrangers),
		inFlight:   budget(&shares.NativeRequests, o.MaxInFlightBytes, o.MaxConnInFlightBytes),
		subscribed: budget(&shares.Subscriptions, int64(o.MaxSubscriptions), o.MaxConnSubscriptions),
		readers:    budget(&shares.Readers, int64(o.MaxReaders), o.MaxConnReaders),
		output:     budget(&shares.NativeOutput, o.MaxOutputBytes, int(o.MaxConnOutputBytes)),
	}
	s.now.Store(&s.opts)
	var err error
	if s.hello, err = helloOf(e); err != nil {
		return nil, err
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// Change takes over from o MaxConnections, and the limits of clients that have to send Auth, of handshakes and of one
// connection's requests. Connections that are open stay, and keep what they were told. One goroutine at a time may call
// it.
func (s *Server) Change(o Options) {
	next := s.opts
	next.MaxConnections, next.MaxStrangers, next.MaxStrangerBytes = o.MaxConnections, o.MaxStrangers, o.MaxStrangerBytes
	next.StrangerTime, next.HandshakeTimeout, next.MaxHandshakes = o.StrangerTime, o.HandshakeTimeout, o.MaxHandshakes
	next.MaxConnInFlightBytes = o.MaxConnInFlightBytes
	s.strangers.Limit(next.MaxStrangers)
	s.inFlight.Change(&shares.NativeRequests, next.MaxInFlightBytes,
		min(next.MaxInFlightBytes, int64(max(next.MaxConnInFlightBytes, s.opts.MaxConnInFlightBytes))))
	s.now.Store(&next)
}

// budget is that of all connections, of which a token or address has its part, and at least what one connection may.
func budget(of *shares.Resource, all int64, connection int) *shares.Budget {
	return shares.New(of, all, min(all, int64(connection)))
}

// helloOf is what the node says about itself. A single node is a cluster of its own.
func helloOf(e *node.Engine) (netproto.Hello, error) {
	info, self := e.Info(), e.Node()
	store, err := uuid.Parse(info.StoreID)
	if err != nil {
		return netproto.Hello{}, fmt.Errorf("native: the store's id: %w", err)
	}
	h := netproto.Hello{
		Role: netproto.RoleNode, NodeID: info.NodeID, Store: netproto.ID(store), Cluster: netproto.ID(store),
		Boot: netproto.ID(self.Boot), MinVersion: protocolVersion, MaxVersion: protocolVersion,
	}
	if snap := e.Snapshot(); snap != nil {
		h.Cluster = netproto.ID(snap.Cluster)
	} else {
		h.Boot = netproto.ID(uuid.New())
	}
	return h, nil
}

// Addr returns the address to which clients connect.
func (s *Server) Addr() net.Addr { return s.opts.Listener.Addr() }

// Serve serves clients until Shutdown, and then returns nil. An error means that the listener failed.
func (s *Server) Serve() error {
	s.began.Store(true)
	defer close(s.ended)
	ln := descriptors.Guard(s.opts.Listener)
	o := netproto.Options{
		Hello: s.hello, Admit: admit, HandlerFor: func(nc net.Conn) netproto.Handler { return newSession(s, nc) },
		Renew: s.renew, SlowStart: true, WriteTimeout: s.opts.writeTimeout,
	}
	if s.opts.Secure != nil {
		ln = s.opts.Secure(ln)
	}
	var beside sync.WaitGroup
	beside.Go(s.herald)
	most := func() int { return s.now.Load().MaxConnections }
	err := netproto.Serve(s.ctx, ln, o, most, func(remote net.Addr, err error) {
		s.meter.turnedAway(awayHandshake)
		if s.opts.Busy != nil && errors.Is(err, netproto.ErrTooManyHandshakes) {
			s.opts.Busy()
		}
		s.opts.Logger.Debug("a native client could not connect", "client", remote, "error", err)
	})
	s.cancel()
	beside.Wait()
	s.workers.Wait()
	return err
}

// renew is netproto's Options.Renew.
func (s *Server) renew(o *netproto.Options) {
	now := s.now.Load()
	o.HandshakeTimeout, o.MaxHandshakeCount = now.HandshakeTimeout, now.MaxHandshakes
	o.Hello.WindowBytes = uint32(min(now.MaxConnInFlightBytes/8*7, 1<<31)) // the rest is for what is not batches
	if s.opts.Auth != nil {
		o.MaxStrangerBytes = now.MaxStrangerBytes
	}
}

// admit refuses peers that are no clients.
func admit(peer *netproto.Hello) error {
	if peer.Role != netproto.RoleClient {
		return &netproto.RefusedError{
			Status: netproto.StatusRejected, Text: "this port is for clients; nodes connect to the cluster address", Peer: *peer,
		}
	}
	return nil
}

// enter adds a session. If there are too many strangers, it expels the oldest of the address that has the most, or the
// new one if the server waits for an auth server for all others.
func (s *Server) enter(x *session) {
	s.workers.Add(1)
	s.mu.Lock()
	s.sessions[x] = struct{}{}
	stopping := s.stopping
	s.mu.Unlock()
	if x.stranger != nil && !x.stranger.Enter() {
		x.makeRoom()
	}
	if stopping {
		x.goAway(0)
	}
}

// leave removes a session whose connection has ended.
func (s *Server) leave(x *session) {
	st := x.conn.Stats()
	x.leave()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, x)
	s.meter.received.Add(st.ReceivedBytes)
	s.meter.sent.Add(st.SentBytes)
}

// all returns the sessions.
func (s *Server) all() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.sessions))
}

// sample decides by chance whether the duration of a batch is measured: of one in 16, so that the clock is not read for
// each. It returns the ns since the start, or 0: it is not.
func (s *Server) sample() int64 {
	if rand.Uint32()%16 != 0 {
		return 0
	}
	return max(int64(time.Since(s.started)), 1)
}

// herald wakes the sessions when topics or leaders may have changed.
func (s *Server) herald() {
	for {
		news := s.engine.News()
		for _, x := range s.all() {
			x.stale.Store(true)
			x.rouse()
		}
		select {
		case <-news:
		case <-s.ctx.Done():
			return
		}
		select {
		case <-time.After(heraldPause):
		case <-s.ctx.Done():
			return
		}
	}
}

// Shutdown tells the clients to connect elsewhere, answers what they have sent, closes the connections and waits until
// all of that is done. If ctx ends first, it cuts the remaining connections off and returns ctx's error.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	for i, x := range s.all() {
		x.goAway(i)
	}
	s.part(ctx)
	s.cancel()
	_ = s.opts.Listener.Close() // an error only means that it was closed before
	if !s.began.Load() {
		return ctx.Err()
	}
	select {
	case <-s.ended:
	case <-ctx.Done():
		for _, x := range s.all() {
			x.conn.Abort(netproto.ErrClosed)
		}
		<-s.ended
	}
	return ctx.Err()
}

// part waits until no request waits for its answer, not even one of a client that has left, and until the clients have
// had partingTime to leave or all have left. If ctx ends first, it returns then.
func (s *Server) part(ctx context.Context) {
	began := time.Now()
	ticker := time.NewTicker(partingCheck)
	defer ticker.Stop()
	for {
		left := len(s.all()) == 0 || time.Since(began) >= partingTime
		if left && s.inFlight.Used() == 0 {
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}
