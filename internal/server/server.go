package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"penstock/internal/descriptors"
	"penstock/internal/lock"
	"penstock/internal/netio"
	"penstock/internal/node"
	"penstock/internal/server/audit"
	"penstock/internal/server/auth"
	"penstock/internal/server/history"
	"penstock/internal/server/listen"
	"penstock/internal/server/lookup"
	"penstock/internal/server/metrics"
	"penstock/internal/server/native"
	"penstock/internal/server/web"
	"penstock/internal/shares"
	"penstock/internal/sparing"
	"penstock/internal/strangers"
)

// diskPatience is how long Shutdown waits for a disk that does not take the end of the audit.
const diskPatience = time.Second

// Server serves one Engine to NSQ's clients. It does not close the engine, which must stay open until Shutdown has
// returned.
//
// It has one goroutine per connection (conn.serve), the flusher, the sweep, and the goroutines of Serve: one that
// accepts connections, the HTTP servers and the lookup service. Methods are safe for concurrent use. mu guards conns
// and stopping. It is held only briefly, and code that holds it touches nothing of a connection except its atomic
// fields and flight.mu.
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

	tcp     *net.TCPListener
	httpLn  net.Listener // nil: off
	http    *http.Server
	front   http.Handler // for Options.Front, which answers with it once the server listens
	httpsLn net.Listener // nil: off; TLS on httpsBound
	https   *http.Server
	// httpsBound is the listener below httpsLn, which counts the connections.
	httpsBound net.Listener
	flusher    *netio.Flusher
	poll       publisherPoll

	certs *certificates   // nil: TLS is not offered
	auth  *auth.Authority // nil: every client may do everything

	sparing  *sparing.Log
	gate     *web.Gate // of all HTTP listeners
	audit    *audit.Log
	sessions sessions // of browsers
	lookups  *lookup.Service
	native   *native.Server // nil: off
	metrics  *metrics.Collector
	counts   counters
	deleted  web.Deletions
	pasts    [2]*past
	history  *history.Log // of pasts, that of the last minutes
	statting sync.Mutex   // held while a goroutine asks the file system; see vitalsHere

	known    *shares.Budget // connections of NSQ's and native clients that have sent AUTH
	received *shares.Budget // Options.MaxLargeInputBytes: large commands and bodies that have not wholly arrived
	turns    turns

	strangers *strangers.Room // connections whose client has to send AUTH and has not: at most Options.MaxStrangers

	mu        lock.Mutex[lock.NSQServer]
	conns     map[*conn]struct{}
	stopping  bool
	stopOnce  sync.Once
	auditOnce sync.Once

	wg      sync.WaitGroup // connections
	helpers sync.WaitGroup // the sweep, the poll, statistics and the history
}

// Listen opens the listeners, so that their addresses are known and a second server on the same addresses fails here.
// Clients are served once Serve runs; a Front serves them from now on. The caller must call Shutdown even if it never
// calls Serve.
func Listen(e *node.Engine, o Options) (*Server, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	s := &Server{
		engine: e, opts: o, started: time.Now(),
		quit:     make(chan struct{}),
		conns:    make(map[*conn]struct{}),
		received: shares.New(&shares.LargeInput, o.MaxLargeInputBytes, o.largestCommand()),
		pasts:    newPasts(), strangers: strangers.New(unproven(o.MaxStrangers, descriptors.Limit())),
		turns: newTurns(),
	}
	s.history = s.past(false).Log
	s.metrics = metrics.New(metrics.Options{
		Engine: e, Version: s.opts.Version, Started: s.started, MaxSeries: s.opts.MaxMetricSeries,
		Server: s.meter,
	})
	if f := s.opts.Front; f != nil {
		s.sparing, s.audit = f.sparing, f.audit // with what was refused while the node started
	} else {
		s.sparing = sparing.New(s.opts.Logger)
		s.audit = audit.New(s.sparing, o.MaxAuditEntries)
	}
	s.gate = o.gate(s.audit)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	var err error
	if s.certs, err = s.opts.certificates(s.sparing); err != nil {
		return nil, err
	}
	if s.auth, err = auth.Open(&s.opts.Auth); err != nil {
		return nil, err
	}
	s.known = shares.Percent(int64(descriptors.ForClients(o.MaxConnections)), e.TokenShare())
	e.WatchAuth(s.auth.Note)
	// An engine that writes to the disk without io_uring, because of the configuration or the kernel, has sockets do so.
	if s.flusher, err = netio.NewFlusher(e.Info().IOEngine != "pwrite"); err != nil {
		s.opts.Logger.Info("each answer is written with a system call of its own", "why", err)
	}
	if err := s.listen(); err != nil {
		for _, ln := range []net.Listener{s.httpLn, s.httpsLn} {
			if ln != nil {
				_ = ln.Close() // the error of listen is the one to report
			}
		}
		s.shutDownNative(context.Background()) // it serves nobody yet
		if s.tcp != nil {
			_ = s.tcp.Close()
		}
		s.flusher.Close()
		return nil, err
	}
	if s.opts.DataPath != "" {
		s.audit.Keep(filepath.Join(s.opts.DataPath, "audit"), s.opts.MaxAuditBytes)
	}
	e.HoldAnswers(s.flusher)
	s.poll.open(s)
	s.helpers.Go(s.poll.run)
	s.helpers.Go(s.sweep)
	s.startStatsd()
	s.helpers.Go(s.remember)
	e.OnQuestion(s.answerQuestion)
	if f := s.opts.Front; f != nil {
		f.handler.Store(&s.front) // not in Serve: whoever hears that the node is ready may ask at once
	}
	return s, nil
}

// listen opens the listeners that are not off.
func (s *Server) listen() error {
	ln, err := s.opts.Front.open("clients", s.opts.TCPAddress)
	if err != nil {
		return err
	}
	s.tcp = ln.(*net.TCPListener)
	handler := s.counted(s.table().Handler(s.policy()))
	if err := s.listenHTTPS(handler); err != nil {
		return err
	}
	if s.opts.TLS.Required == requiredAlways {
		handler = s.allowProbes(s.refusePlain)
	}
	if f := s.opts.Front; f != nil && !f.secure {
		s.front, s.httpLn, s.http = handler, f.ln, f.server
	} else if s.opts.HTTPAddress != Off {
		ln, err := s.opts.Front.open("HTTP", s.opts.HTTPAddress)
		if err != nil {
			return err
		}
		s.httpLn = listen.Bound(ln, s.opts.MaxConnections)
		s.http = web.NewServer(handler, s.gate, s.sparing)
	}
	if err := s.listenNative(); err != nil {
		return err
	}
	return s.listenLookups()
}

// listenLookups opens the listeners of the lookup service. The other listeners must be open already, because their
// ports are part of its answers.
func (s *Server) listenLookups() error {
	host, tcpPort := s.opts.BroadcastAddress, s.toldTCP()
	var err error
	s.lookups, err = lookup.Listen(s.engine, &lookup.Options{
		Address: s.opts.LookupAddress, TCPAddress: s.opts.LookupTCPAddress, Open: s.opts.Front.open,
		Self: lookup.Producer{
			RemoteAddress: net.JoinHostPort(host, strconv.Itoa(tcpPort)), Hostname: s.opts.Hostname,
			BroadcastAddress: host, TCPPort: tcpPort, HTTPPort: s.toldHTTP(), Version: s.opts.Version,
		},
		Guarded:   s.opts.Auth.Enabled(),
		Directory: s.opts.Directory, Policy: s.policy(), Gate: s.gate, Maker: s.makerOf,
		Nsqlookupds: s.opts.LookupdTCPAddresses, PingInterval: s.opts.lookupdPing,
		InactiveProducerTimeout: s.opts.InactiveProducerTimeout,
		MaxConnections:          s.opts.MaxConnections,
		MaxCommandTime:          s.opts.MaxCommandTime,
		WriteTimeout:            s.opts.WriteTimeout,
		Log:                     s.sparing,
	})
	return err
}

// toldTCP and toldHTTP return the ports that clients are told; 0: the service is off.
func (s *Server) toldTCP() int { return cmp.Or(s.opts.Announced.TCP, listen.Port(s.TCPAddr())) }

func (s *Server) toldHTTP() int {
	if s.HTTPAddr() == nil {
		return 0
	}
	return cmp.Or(s.opts.Announced.HTTP, listen.Port(s.HTTPAddr()))
}

// TCPAddr returns the address to which clients connect.
func (s *Server) TCPAddr() net.Addr { return s.tcp.Addr() }

// HTTPAddr returns the address at which HTTP is served, or nil if it is off.
func (s *Server) HTTPAddr() net.Addr {
	if s.httpLn == nil {
		return nil
	}
	return s.httpLn.Addr()
}

// LookupAddr returns the address at which lookups are answered, or nil if they are off.
func (s *Server) LookupAddr() net.Addr { return s.lookups.HTTPAddr() }

// LookupTCPAddr returns the address at which stock nsqds register, or nil if that is off.
func (s *Server) LookupTCPAddr() net.Addr { return s.lookups.TCPAddr() }

// now returns the time since the server's start in ns, the time base of all fields that are an int64.
func (s *Server) now() int64 { return int64(time.Since(s.started)) }

// Serve serves clients until Shutdown, and then returns nil. An error means that a listener failed.
func (s *Server) Serve() error {
	if limit := descriptors.Limit(); limit-descriptors.Reserve(limit) < s.opts.MaxConnections {
		s.opts.Logger.Info("the limit of open files allows fewer connections than max-connections: one beyond it is closed "+
			"at once, so that the node can go on storing. Raise it (LimitNOFILE of a unit, ulimit -n), or lower "+
			"max-connections", "open_files", limit, "for_clients", limit-descriptors.Reserve(limit),
			"max_connections", s.opts.MaxConnections)
	}
	webs, front := s.webs(), s.opts.Front
	failed := make(chan error, 3+len(webs))
	go func() { failed <- s.accept() }()
	go func() { failed <- s.serveNative() }()
	for _, w := range webs {
		go func() {
			if front != nil && w.server == front.server {
				failed <- <-front.ended
				return
			}
			err := w.server.Serve(w.ln)
			if errors.Is(err, http.ErrServerClosed) {
				err = nil
			}
			failed <- err
		}()
	}
	go func() { failed <- s.lookups.Serve() }() // last, because lookups send clients here
	for range cap(failed) {
		if err := <-failed; err != nil {
			return err
		}
	}
	return nil
}

// webService is an HTTP server with its listener.
type webService struct {
	server *http.Server
	ln     net.Listener
}

// webs returns nsqd's HTTP servers, as far as they are not off.
func (s *Server) webs() []webService {
	var out []webService
	if s.http != nil {
		out = append(out, webService{s.http, s.httpLn})
	}
	if s.https != nil {
		out = append(out, webService{s.https, s.httpsLn})
	}
	return out
}

// accept accepts connections until the listener is closed.
func (s *Server) accept() error {
	err := listen.Accept(s.tcp, s.ctx.Done(), s.welcome, func(err error, retryAfter time.Duration) {
		s.sparing.Warn("cannot accept a connection; clients wait", "error", err, "retry_after", retryAfter)
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
	s.mu.Lock()
	full := len(s.conns) >= s.opts.MaxConnections
	s.mu.Unlock()
	if full {
		c.kill()
		s.sparing.Warn("refusing an NSQ connection: MaxConnections reached",
			"client", c.remote, "limit", s.opts.MaxConnections)
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

// Shutdown stops accepting connections, answers the commands that were read, closes the connections, and waits until
// all of that is done. If ctx ends first, it cuts the remaining connections off and returns ctx's error. The engine
// must stay open until Shutdown has returned.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	s.lookups.Unregister() // first, so that consumers are not sent to a node that is stopping
	_ = s.tcp.Close()      // an error only means that it was closed before
	s.lookups.Shutdown(ctx)
	s.shutDownNative(ctx)
	webs := s.webs()
	for _, w := range webs {
		_ = w.server.Shutdown(ctx)
		_ = w.ln.Close() // if Serve never ran; after Shutdown, or a running Serve would report a failure
	}
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
		s.engine.OnQuestion(nil)
		s.engine.HoldAnswers(nil)
		s.helpers.Wait()
		s.flusher.Close()
		s.poll.free()
	})
	s.lookups.Close()
	for _, w := range webs {
		_ = w.server.Close() // requests that did not end in time
	}
	s.auditOnce.Do(func() { // last, when nobody asks for anything any more
		ctx, cancel := context.WithTimeout(context.Background(), diskPatience)
		defer cancel()
		s.audit.Close(ctx)
		s.sparing.Close()
	})
	return ctx.Err()
}
