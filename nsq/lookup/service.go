package lookup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"penstock/engine"
	"penstock/nsq/internal/listen"
	"penstock/nsq/internal/web"
)

// Options configure a Service. There are no defaults: package nsq has them.
type Options struct {
	Address    string // of nsqlookupd's HTTP API; listen.Off: none
	TCPAddress string // where stock nsqds register; listen.Off: none. It needs an Address.

	Self      Producer   // this node, as it is named in answers while it is alone, and at stock nsqlookupds
	Directory Directory  // nil: the engine
	Permit    web.Permit // decides about the requests that change something

	Nsqlookupds             []string      // HOST:PORT of the stock nsqlookupds at which this node registers
	PingInterval            time.Duration // between PINGs to these; 0: as nsqd
	InactiveProducerTimeout time.Duration // an nsqd that registered and is silent for longer is in no answer

	MaxConnections int           // of the HTTP API
	MaxCommandTime time.Duration // a command on the TCP port that began must be complete after this
	WriteTimeout   time.Duration // an nsqd must read an answer within this

	Logger *slog.Logger
}

// Service answers lookups, takes registrations and registers this node elsewhere. It does not own its engine, which
// must stay open until Shutdown returned.
//
// Listen comes first, then Serve, once, from a goroutine of its own. Unregister, Shutdown and Close end it, also where
// Serve never ran, and may be called again. Methods are safe for concurrent use. The fields are set by Listen and not
// changed; each part has a lock of its own, and calls no other part while it holds it. Nothing here is on disk: after a
// crash stock nsqds connect and register again, and this node registers itself again.
type Service struct {
	engine *engine.Engine
	log    *slog.Logger

	api        *api         // nil: off, and with it the next three
	httpLn     net.Listener // of http
	http       *http.Server
	tcp        *tcpServer // nil: off
	registrar  *registrar
	inCreation topicsInCreation
}

// Listen opens the listeners that are not off, so that the addresses are known. If it fails, none stays open. The
// options are checked already, o.Nsqlookupds by CheckNsqlookupds.
func Listen(e *engine.Engine, o *Options) (*Service, error) {
	s := &Service{engine: e, log: o.Logger}
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
	ln, err := net.Listen("tcp", o.Address)
	if err != nil {
		return listen.Error("lookups", o.Address, err)
	}
	dir := o.Directory
	if dir == nil {
		dir = engineDirectory{s.engine, s.CreateTopic}
	}
	s.httpLn = listen.Bound(ln, o.MaxConnections)
	s.api = newAPI(dir, o.Self, o.InactiveProducerTimeout)
	s.http = web.NewServer(s.api.handler(o.Permit), o.Logger)
	if o.TCPAddress == listen.Off {
		return nil
	}
	if err := s.listenTCP(o); err != nil {
		_ = ln.Close() // the first error is the one to report
		return err
	}
	return nil
}

// listenTCP opens the listener for stock nsqds. The HTTP API's is open: its port is part of the answer to IDENTIFY.
func (s *Service) listenTCP(o *Options) error {
	ln, err := net.Listen("tcp", o.TCPAddress)
	if err != nil {
		return listen.Error("registrations", o.TCPAddress, err)
	}
	// The order of the keys is nsqlookupd's.
	self, err := json.Marshal(struct {
		BroadcastAddress string `json:"broadcast_address"`
		Hostname         string `json:"hostname"`
		HTTPPort         int    `json:"http_port"`
		TCPPort          int    `json:"tcp_port"`
		Version          string `json:"version"`
	}{
		o.Self.BroadcastAddress, o.Self.Hostname, listen.Port(s.HTTPAddr()), listen.Port(ln.Addr()), o.Self.Version,
	})
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	s.tcp = &tcpServer{
		registry: s.api.registry, self: self, log: o.Logger,
		ln: ln.(*net.TCPListener), conns: map[*net.TCPConn]struct{}{},
		commandTime: o.MaxCommandTime, idleTime: 2 * o.InactiveProducerTimeout, writeTime: o.WriteTimeout,
	}
	return nil
}

// HTTPAddr is where lookups are answered; nil when that is off.
func (s *Service) HTTPAddr() net.Addr {
	if s.httpLn == nil {
		return nil
	}
	return s.httpLn.Addr()
}

// TCPAddr is where stock nsqds register; nil when that is off.
func (s *Service) TCPAddr() net.Addr {
	if s.tcp == nil {
		return nil
	}
	return s.tcp.ln.Addr()
}

// Nsqlookupds are the addresses of the stock nsqlookupds at which this node registers.
func (s *Service) Nsqlookupds() []string { return s.registrar.list() }

// SetNsqlookupds replaces them. Connections to those that stay go on.
func (s *Service) SetNsqlookupds(addresses []string) error { return s.registrar.set(addresses) }

// Serve registers this node at the stock nsqlookupds, and serves until Shutdown; then it returns nil. An error means
// that a listener failed. Clients of the node must be able to connect already.
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

// Unregister ends the registrations at stock nsqlookupds. It is the first step of a shutdown: clients should not be
// sent to a node that stops.
func (s *Service) Unregister() { s.registrar.stop() }

// Shutdown closes the connections of stock nsqds and stops taking requests. Those under way are answered until ctx
// ends. Unregister comes before it, Close after it.
func (s *Service) Shutdown(ctx context.Context) {
	if s.tcp != nil {
		s.tcp.close()
	}
	if s.http == nil {
		return
	}
	_ = s.http.Shutdown(ctx)
	// In case Serve never ran. Not before Shutdown: a Serve that runs would take it for a failure of the listener.
	_ = s.httpLn.Close()
}

// Close cuts the requests that Shutdown did not wait for.
func (s *Service) Close() {
	if s.http != nil {
		_ = s.http.Close()
	}
}

// maxNsqlookupds bounds the stock nsqlookupds at which a node registers.
const maxNsqlookupds = 64

// CheckNsqlookupds says what is wrong with a list of nsqlookupds.
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
