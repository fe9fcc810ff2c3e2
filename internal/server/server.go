package server

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"penstock/internal/descriptors"
	"penstock/internal/netio"
	"penstock/internal/node"
	"penstock/internal/server/api"
	"penstock/internal/server/audit"
	"penstock/internal/server/auth"
	"penstock/internal/server/listen"
	"penstock/internal/server/lookup"
	"penstock/internal/server/metrics"
	"penstock/internal/server/native"
	"penstock/internal/server/nsq"
	"penstock/internal/server/publish"
	"penstock/internal/server/stats"
	"penstock/internal/server/statsd"
	"penstock/internal/server/web"
	"penstock/internal/shares"
	"penstock/internal/sparing"
	"penstock/internal/strangers"
)

// diskPatience is how long Shutdown waits for a disk that does not take the end of the audit.
const diskPatience = time.Second

// Server opens a node's ports for clients, and has what they share. cmd/engine makes one for its engine, which it does
// not close: the engine must stay open until Shutdown has returned.
//
// Its fields are set by Listen and stay; what changes has locks of its own. Its goroutines are those of Serve, one for
// each port, and the helpers. Methods are safe for concurrent use. A crash leaves nothing of it but the files of the
// audit and the history, which the next process reads.
type Server struct {
	engine  *node.Engine
	opts    Options
	started time.Time

	ctx    context.Context // ends the helpers; canceled when Shutdown has no connection left
	cancel context.CancelFunc

	tcp     *net.TCPListener
	httpLn  net.Listener // nil: off
	http    *http.Server
	front   http.Handler // for Options.Front, which answers with it once the server listens
	httpsLn net.Listener // nil: off; TLS on httpsBound
	https   *http.Server
	// httpsBound is the listener below httpsLn, which counts the connections.
	httpsBound net.Listener
	flusher    *netio.Flusher

	certs *certificates   // nil: TLS is not offered
	auth  *auth.Authority // nil: every client may do everything

	sparing   *sparing.Log
	gate      *web.Gate // of all HTTP listeners but a Front's
	guard     *api.Guard
	audit     *audit.Log
	lookups   *lookup.Service
	nsq       *nsq.Server
	api       *api.Service
	stale     atomic.Bool    // see CredentialsStale
	native    *native.Server // nil: off
	metrics   *metrics.Collector
	publishes publish.Counts
	stats     *stats.Collector

	settings  atomic.Pointer[nsq.Settings] // of now: Change replaces them
	strangers *strangers.Room              // NSQ's clients that have to send AUTH and have not
	pushes    *statsd.Pusher
	changing  sync.Mutex // held by Change, and guards lookupds and largest
	largest   int64      // LargestCommand that was allowed since the start
	lookupds  []string   // LookupdTCPAddresses, as they were set last

	known    *shares.Budget // connections of NSQ's and native clients that have sent AUTH
	received *shares.Budget // Options.MaxLargeInputBytes: large commands and bodies that have not wholly arrived

	stopOnce  sync.Once
	auditOnce sync.Once

	helpers sync.WaitGroup // the pushes to statsd, and the history
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
		largest:   o.LargestCommand(),
		received:  shares.New(&shares.LargeInput, o.MaxLargeInputBytes, o.LargestCommand()),
		strangers: strangers.New(unproven(o.MaxStrangers, descriptors.Limit())),
	}
	s.settings.Store(&s.opts.Settings)
	s.lookupds = o.LookupdTCPAddresses
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
	s.known = shares.Percent(int64(descriptors.ForClients(o.MaxConnections)), e.Catalog().TokenShare())
	e.WatchAuth(s.auth.Note)
	// An engine that writes to the disk without io_uring, because of the configuration or the kernel, has sockets do so.
	if s.flusher, err = netio.NewFlusher(e.Info().IOEngine != "pwrite"); err != nil {
		s.opts.Logger.Info("each answer is written with a system call of its own", "why", err)
	}
	guard := api.NewGuard(e, s.auth, s.audit, s.opts.OpenPages, s.opts.Logger)
	s.guard = guard
	if err := s.listen(guard); err != nil {
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
	s.nsq = nsq.Listen(e, s.nsqOptions())
	s.stats = &stats.Collector{
		Engine: e, Version: s.opts.Version, Started: s.started, Publishers: s.publishers, Connected: s.producers,
	}
	s.serveAPI(guard)
	s.pushes = statsd.New(s.opts.Statsd, s.stats, s.opts.BroadcastAddress, s.toldHTTP(), s.opts.Logger)
	s.helpers.Go(func() { s.pushes.Run(s.ctx.Done()) })
	s.helpers.Go(func() { s.api.Remember(s.ctx) })
	e.OnQuestion(s.api.AnswerQuestion)
	if f := s.opts.Front; f != nil {
		f.handler.Store(&s.front) // not in Serve: whoever hears that the node is ready may ask at once
	}
	return s, nil
}

// listen opens the listeners that are not off.
func (s *Server) listen(guard *api.Guard) error {
	ln, err := s.opts.Front.open("clients", s.opts.TCPAddress)
	if err != nil {
		return err
	}
	s.tcp = ln.(*net.TCPListener)
	if err := s.openHTTP(); err != nil {
		return err
	}
	if err := s.listenNative(); err != nil {
		return err
	}
	return s.listenLookups(guard)
}

// serveAPI makes the HTTP API, when everything that it tells is there.
func (s *Server) serveAPI(guard *api.Guard) {
	s.api = api.New(api.Options{
		Settings: &s.settings, Guard: guard, Lookups: s.lookups, Metrics: s.metrics, Stats: s.stats,
		Publishes: &s.publishes, Received: s.received, ClusterHandler: s.opts.ClusterHandler,
		Version: s.opts.Version, Hostname: s.opts.Hostname, BroadcastAddress: s.opts.BroadcastAddress,
		TCPPort: s.toldTCP(), HTTPPort: s.toldHTTP(), Started: s.started,
		DataPath: s.opts.DataPath, BackupPath: s.opts.BackupPath, Logger: s.opts.Logger, LogLevel: s.opts.LogLevel,
		Reload: s.opts.Reload, ConfigValues: s.opts.ConfigValues, ConfigList: s.opts.ConfigList,
	})
	s.handleHTTP()
}

// listenLookups opens the listeners of the lookup service. The other listeners must be open already, because their
// ports are part of its answers.
func (s *Server) listenLookups(guard *api.Guard) error {
	host, tcpPort := s.opts.BroadcastAddress, s.toldTCP()
	var err error
	o := &lookup.Options{
		Address: s.opts.LookupAddress, TCPAddress: s.opts.LookupTCPAddress, Open: s.opts.Front.open,
		Self: lookup.Producer{
			RemoteAddress: net.JoinHostPort(host, strconv.Itoa(tcpPort)), Hostname: s.opts.Hostname,
			BroadcastAddress: host, TCPPort: tcpPort, HTTPPort: s.toldHTTP(), Version: s.opts.Version,
		},
		Guarded:   s.opts.Auth.Enabled(),
		Directory: s.opts.Directory, Policy: guard.Policy(), Gate: s.gate, Maker: guard.MakerOf,
		Nsqlookupds: s.opts.LookupdTCPAddresses, PingInterval: s.opts.lookupdPing, Log: s.sparing,
	}
	s.opts.limitLookups(o)
	s.lookups, err = lookup.Listen(s.engine, o)
	return err
}

// limitLookups puts into l the limits that the lookup service has, too.
func (o *Options) limitLookups(l *lookup.Options) {
	l.MaxConnections, l.InactiveProducerTimeout = o.MaxConnections, o.InactiveProducerTimeout
	l.MaxCommandTime, l.WriteTimeout = o.MaxCommandTime, o.WriteTimeout
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
func (s *Server) HTTPAddr() net.Addr { return listen.Addr(s.httpLn) }

// nsqOptions returns what the server of NSQ's clients needs.
func (s *Server) nsqOptions() nsq.Options {
	o := nsq.Options{
		Settings: &s.settings, Listener: s.tcp, TLSRequired: s.opts.TLS.Required != requiredNot,
		Auth: s.auth, Version: s.opts.Version, Topic: s.lookups.Topic, Answers: s.flusher, Known: s.known,
		Received: s.received, Strangers: s.strangers,
		Publishes: &s.publishes, Audit: s.audit, Log: s.sparing, Logger: s.opts.Logger,
	}
	if s.certs != nil {
		o.TLS = s.certs.outer
	}
	return o
}

// producers returns how many open connections of all protocols have published to each topic.
func (s *Server) producers() map[string]int {
	counts := map[string]int{}
	if s.native != nil {
		counts = s.native.Producers()
	}
	s.nsq.CountProducers(counts)
	return counts
}

// publishers describes the open connections of all protocols that have published to topic; "": to any.
func (s *Server) publishers(topic string) []stats.Client {
	all := s.nsq.Publishers(topic)
	if s.native != nil {
		all = append(all, s.native.Publishers(topic)...)
	}
	return all
}

// LookupAddr returns the address at which lookups are answered, or nil if they are off.
func (s *Server) LookupAddr() net.Addr { return s.lookups.HTTPAddr() }

// LookupTCPAddr returns the address at which stock nsqds register, or nil if that is off.
func (s *Server) LookupTCPAddr() net.Addr { return s.lookups.TCPAddr() }

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
	go func() { failed <- s.nsq.Serve() }()
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

// Shutdown stops accepting connections, answers the commands that were read, closes the connections, and waits until
// all of that is done. If ctx ends first, it cuts the remaining connections off and returns ctx's error. The engine
// must stay open until Shutdown has returned.
func (s *Server) Shutdown(ctx context.Context) error {
	s.lookups.Unregister() // first, so that consumers are not sent to a node that is stopping
	s.nsq.Refuse()
	s.lookups.Shutdown(ctx)
	s.shutDownNative(ctx)
	webs := s.webs()
	for _, w := range webs {
		_ = w.server.Shutdown(ctx)
		_ = w.ln.Close() // if Serve never ran; after Shutdown, or a running Serve would report a failure
	}
	s.nsq.Shutdown(ctx)
	s.cancel()
	s.stopOnce.Do(func() {
		s.engine.OnQuestion(nil)
		s.engine.HoldAnswers(nil)
		s.helpers.Wait()
		s.flusher.Close()
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

// CreateTopic returns the topic of that name. If there is none, it creates one and, as nsqd does, gives it the channels
// that the lookup services know.
func (s *Server) CreateTopic(ctx context.Context, name string, o node.TopicOptions) (*node.Topic, error) {
	return s.lookups.CreateTopic(ctx, name, o)
}
