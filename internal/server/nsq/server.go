package nsq

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"penstock/internal/lock"
	"penstock/internal/node"
	"penstock/internal/server/listen"
	"penstock/internal/server/metrics"
)

// Server serves NSQ's clients over TCP. Its methods are safe for concurrent use.
//
// It has one goroutine per connection (conn.serve), the sweep, the poll, and Serve. mu guards conns and stopping. It is
// held only briefly, and code that holds it touches nothing of a connection except its atomic fields and flight.mu.
//
// A message that is not on stable storage when the process ends has not been answered OK. Clients see their connections
// end, connect again, and get the messages again that they had not finished.
type Server struct {
	engine  *node.Engine
	opts    Options
	started time.Time

	ctx    context.Context // canceled when Shutdown has no connection left
	cancel context.CancelFunc
	quit   chan struct{} // closed after the last connection has ended; ends the sweep

	poll   publisherPoll
	counts counters

	mu       lock.Mutex[lock.NSQServer]
	conns    map[*conn]struct{}
	stopping bool
	stopOnce sync.Once

	wg      sync.WaitGroup // connections
	helpers sync.WaitGroup // the sweep and the poll
}

// counters are totals since the server's start. Any goroutine may count and read.
type counters struct {
	authFailures atomic.Uint64
	// Refused strangers, see stranger.go: too many connections, too large bodies, no AUTH in time.
	strangerConns, strangerBytes, strangerTime atomic.Uint64
	moderated                                  atomic.Uint64 // reads of moderated consumers and polled publishers
	inputWaits                                 atomic.Uint64 // commands that waited in conn.reserve
}

// Listen returns a Server of the clients that connect to Options.Listener, once Serve runs. The settings are valid
// and have their defaults. The caller must call Shutdown even if it never calls Serve. The engine must stay open until
// then.
func Listen(e *node.Engine, o Options) *Server {
	s := &Server{
		engine: e, opts: o, started: time.Now(), quit: make(chan struct{}), conns: make(map[*conn]struct{}),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.poll.open(s)
	s.helpers.Go(s.poll.run)
	s.helpers.Go(s.sweep)
	return s
}

// settings returns the settings of now.
func (s *Server) settings() *Settings { return s.opts.Settings.Load() }

// Addr returns the address to which clients connect.
func (s *Server) Addr() net.Addr { return s.opts.Listener.Addr() }

// Meter returns the numbers of now.
func (s *Server) Meter() metrics.NSQ {
	s.mu.Lock()
	conns := len(s.conns)
	s.mu.Unlock()
	return metrics.NSQ{
		Connections: conns, AuthFailures: s.counts.authFailures.Load(), Strangers: s.opts.Strangers.Size(),
		StrangersRefused: map[string]uint64{
			"connections": s.counts.strangerConns.Load(), "bytes": s.counts.strangerBytes.Load(),
			"time": s.counts.strangerTime.Load(),
		},
		LargeInputWaits: s.counts.inputWaits.Load(), ModeratedReads: s.counts.moderated.Load(),
		PolledPublishers: s.poll.size.Load(),
	}
}

// now returns the time since the server's start in ns, the time base of all fields that are an int64.
func (s *Server) now() int64 { return int64(time.Since(s.started)) }

// Serve accepts connections until Shutdown, and then returns nil. An error means that the listener failed.
func (s *Server) Serve() error {
	err := listen.Accept(s.opts.Listener, s.ctx.Done(), s.welcome, func(err error, retryAfter time.Duration) {
		s.opts.Log.Warn("cannot accept a connection; clients wait", "error", err, "retry_after", retryAfter)
	})
	if err != nil {
		return fmt.Errorf("nsq: accepting connections failed: %w", err)
	}
	return nil
}

// welcome starts serving a connection, or closes it if there are too many.
func (s *Server) welcome(nc *net.TCPConn) {
	c, err := newConn(s, nc)
	if err != nil {
		_ = nc.Close()
		return
	}
	most := s.settings().MaxConnections
	s.mu.Lock()
	full := len(s.conns) >= most
	s.mu.Unlock()
	if full {
		c.kill()
		s.opts.Log.Warn("refusing an NSQ connection: MaxConnections reached",
			"client", c.remote, "limit", most)
		return
	}
	if c.stranger != nil && !c.stranger.Enter() {
		c.turnAway()
		return
	}
	s.mu.Lock()
	if s.stopping {
		s.mu.Unlock()
		c.leaveStrangers()
		c.kill()
		return
	}
	s.conns[c] = struct{}{}
	s.wg.Add(1)
	s.mu.Unlock()
	go c.serve()
}

func (s *Server) remove(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	c.leaveStrangers()
	s.wg.Done()
}

// each calls f for every connection. It iterates over a copy of the list, so that f runs without s.mu.
func (s *Server) each(f func(*conn)) {
	s.mu.Lock()
	all := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		all = append(all, c)
	}
	s.mu.Unlock()
	for _, c := range all {
		f(c)
	}
}

// Reconsider ends the connections whose subscription the token file, which has been read again, does not allow any
// more.
func (s *Server) Reconsider() { s.each((*conn).reconsider) }

// Refuse stops accepting connections. Those that there are go on until Shutdown.
func (s *Server) Refuse() {
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	_ = s.opts.Listener.Close() // an error only means that it was closed before
}

// Shutdown stops accepting connections, answers the commands that were read, closes the connections, and waits until
// all of that is done. If ctx ends first, it cuts the remaining connections off.
func (s *Server) Shutdown(ctx context.Context) {
	s.Refuse()
	s.each((*conn).stop)
	gone := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(gone)
	}()
	select {
	case <-gone:
	case <-ctx.Done():
		s.each((*conn).kill)
		<-gone
	}
	s.cancel()
	s.stopOnce.Do(func() {
		close(s.quit)
		s.poll.stop()
		s.helpers.Wait()
		s.poll.free()
	})
}
