package lookup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"penstock/internal/node"
	"penstock/internal/server/listen"
	"penstock/internal/server/web"
	"penstock/internal/sparing"
)

// Options configure a Service. They have no defaults here; package server fills them in.
type Options struct {
	Address    string // of nsqlookupd's HTTP API; listen.Off: not served
	TCPAddress string // where stock nsqds register; listen.Off: not served. It requires an Address.

	// Open opens a TCP listener. what is the service that its error names. nil: listen.TCP.
	Open func(what, address string) (net.Listener, error)

	// Guarded: lookups of a topic that we have name only our own nodes, whatever stock nsqds have registered. Whoever
	// reaches TCPAddress can register, and consumers show their tokens to whom lookups name.
	Guarded bool

	Self      Producer   // this node, as described by its own answers while it is alone, and to stock nsqlookupds
	Directory Directory  // nil: the engine itself
	Policy    web.Policy // decides which clients may send requests that change something
	// Maker returns the token for which a topic counts that the request makes: see node.TopicOptions. nil: nobody.
	Maker func(*http.Request) (string, error)
	Gate  *web.Gate // decides which requests the HTTP API looks at at all

	Nsqlookupds             []string      // HOST:PORT of the stock nsqlookupds at which this node registers
	PingInterval            time.Duration // between PINGs to Nsqlookupds; 0: nsqd's interval
	InactiveProducerTimeout time.Duration // answers leave out a registered nsqd that is silent for longer

	MaxConnections int           // of the HTTP API, at once
	MaxCommandTime time.Duration // from the first byte of a command on the TCP port to its last
	WriteTimeout   time.Duration // for an nsqd to take an answer

	Log *sparing.Log
}

// Service answers lookups, accepts registrations of stock nsqds, and registers this node at stock nsqlookupds. It does
// not own its engine, which must stay open until Shutdown has returned.
//
// Call Listen first, and then Serve, once, in a goroutine of its own. Unregister, Shutdown and Close, in this order,
// end the Service. They may be called more than once, and also if Serve never ran. Methods are safe for concurrent use.
// Listen sets the fields, and nothing changes them afterwards. Each part has its own lock, and calls no other part
// while it holds that lock. Nothing here is persistent: after a crash, stock nsqds connect and register again, and this
// node registers again at stock nsqlookupds.
type Service struct {
	engine *node.Engine
	log    *sparing.Log

	api        *api         // nil: lookups are not served; httpLn, http and tcp are then nil, too
	httpLn     net.Listener // the listener of http
	http       *http.Server
	tcp        *tcpServer // nil: registrations are not accepted
	registrar  *registrar
	inCreation topicsInCreation
}

// Listen opens the listeners that are not off, so that their addresses are known before Serve runs. If it fails, it
// leaves no listener open. The caller has validated the options, Nsqlookupds with CheckNsqlookupds.
func Listen(e *node.Engine, o *Options) (*Service, error) {
	if o.Open == nil {
		own := *o
		own.Open, o = listen.TCP, &own
	}
	s := &Service{engine: e, log: o.Log}
	if err := s.listen(o); err != nil {
		return nil, err
	}
	s.registrar = newRegistrar(e, o)
	return s, nil
}

func (s *Service) listen(o *Options) error {
	if o.Address == listen.Off {
		return nil
	}
	ln, err := o.Open("lookups", o.Address)
	if err != nil {
		return err
	}
	dir := o.Directory
	if dir == nil {
		dir = engineDirectory{s.engine, s.CreateTopic}
	}
	s.httpLn = listen.Bound(ln, o.MaxConnections)
	s.api = newAPI(dir, o.Self, o.InactiveProducerTimeout)
	s.api.guarded, s.api.maker = o.Guarded, o.Maker
	s.http = web.NewServer(s.api.table().Handler(o.Policy), o.Gate, o.Log)
	if o.TCPAddress == listen.Off {
		return nil
	}
	if err := s.listenTCP(o); err != nil {
		_ = ln.Close() // the error of listenTCP is the one to report
		return err
	}
	return nil
}

// listenTCP opens the listener for stock nsqds. The HTTP API's listener must be open already, because the answer to
// IDENTIFY contains its port.
func (s *Service) listenTCP(o *Options) error {
	ln, err := o.Open("registrations", o.TCPAddress)
	if err != nil {
		return err
	}
	at := identityOf(&o.Self)
	at.HTTPPort, at.TCPPort = listen.Port(s.HTTPAddr()), listen.Port(ln.Addr())
	self, err := json.Marshal(at)
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	s.tcp = &tcpServer{
		registry: s.api.registry, self: self, log: o.Log,
		ln: ln.(*net.TCPListener), conns: map[*net.TCPConn]struct{}{},
	}
	s.tcp.times.Store(timesOf(o))
	return nil
}

// HTTPAddr returns the address of the HTTP API, or nil if it is off.
func (s *Service) HTTPAddr() net.Addr { return listen.Addr(s.httpLn) }

// Routes returns the routes of the HTTP API, or nil if it is off.
func (s *Service) Routes() web.Table {
	if s.api == nil {
		return nil
	}
	return s.api.table()
}

// TCPAddr returns the address at which stock nsqds register, or nil if that is off.
func (s *Service) TCPAddr() net.Addr {
	if s.tcp == nil {
		return nil
	}
	return s.tcp.ln.Addr()
}

// Connections returns how many connections of the HTTP API and of stock nsqds are open.
func (s *Service) Connections() (http, tcp int) {
	if l := s.tcp; l != nil {
		l.mu.Lock()
		tcp = len(l.conns)
		l.mu.Unlock()
	}
	return listen.Open(s.httpLn), tcp
}

// Nsqlookupds returns the addresses of the stock nsqlookupds at which this node registers.
func (s *Service) Nsqlookupds() []string { return s.registrar.list() }

// SetNsqlookupds replaces that list. Connections to nsqlookupds that are in both lists stay open.
func (s *Service) SetNsqlookupds(addresses []string) error { return s.registrar.set(addresses) }

// Change takes over from o MaxConnections, InactiveProducerTimeout, MaxCommandTime and WriteTimeout. Any goroutine may
// call it.
func (s *Service) Change(o *Options) {
	listen.Limit(s.httpLn, o.MaxConnections)
	if s.api != nil {
		s.api.registry.inactive.Store(int64(o.InactiveProducerTimeout))
	}
	if s.tcp != nil {
		s.tcp.times.Store(timesOf(o))
	}
}

// Serve registers this node at the stock nsqlookupds, and serves until Shutdown. It returns nil after Shutdown, and an
// error if a listener failed. Call it only when clients can already connect to the node, since consumers may come at
// once.
func (s *Service) Serve() error {
	failed := make(chan error, 2)
	go func() {
		var err error
		if s.tcp != nil {
			err = s.tcp.serve()
		}
		failed <- err
	}()
	go func() {
		var err error
		if s.http != nil {
			err = s.http.Serve(s.httpLn)
		}
		if errors.Is(err, http.ErrServerClosed) {
			err = nil
		}
		failed <- err
	}()
	s.registrar.start()
	for range cap(failed) {
		if err := <-failed; err != nil {
			return err
		}
	}
	return nil
}

// Unregister ends the registrations at stock nsqlookupds. It is the first step of a shutdown, so that consumers are not
// sent to a node that is stopping.
func (s *Service) Unregister() { s.registrar.stop() }

// Shutdown closes the connections of stock nsqds and accepts no more HTTP requests. Requests that are being served may
// finish until ctx ends. Call Unregister before it and Close after it.
func (s *Service) Shutdown(ctx context.Context) {
	if s.tcp != nil {
		s.tcp.close()
	}
	if s.http == nil {
		return
	}
	_ = s.http.Shutdown(ctx)
	// The listener is still open if Serve never ran. Close it only after Shutdown: a running Serve would otherwise
	// report that its listener failed.
	_ = s.httpLn.Close()
}

// Close breaks off the requests for which Shutdown did not wait.
func (s *Service) Close() {
	if s.http != nil {
		_ = s.http.Close()
	}
}

// maxNsqlookupds bounds the number of stock nsqlookupds at which a node registers.
const maxNsqlookupds = 64

// CheckNsqlookupds returns an error if the list of nsqlookupds is too long or has an address that is not HOST:PORT.
func CheckNsqlookupds(addresses []string) error {
	if len(addresses) > maxNsqlookupds {
		return fmt.Errorf("nsq: %d nsqlookupds are more than %d", len(addresses), maxNsqlookupds)
	}
	for _, a := range addresses {
		if _, _, err := net.SplitHostPort(a); err != nil {
			return fmt.Errorf("nsq: the nsqlookupd %q is not HOST:PORT", a)
		}
	}
	return nil
}
