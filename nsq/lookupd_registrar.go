package nsq

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"penstock/engine"
)

// registrar registers this node at stock nsqlookupds, as an nsqd does, so that consumers that know only these find it. It tells them
// of the topics that this node leads. Methods are safe for concurrent use.
type registrar struct {
	engine *engine.Engine
	log    *slog.Logger
	ping   time.Duration
	self   nsqdIdentity

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	nudge  chan struct{}
	now    atomic.Pointer[led]

	mu        sync.Mutex
	addresses []string
	peers     map[string]*lookupdPeer
	running   bool // the goroutine that looks at what is led
	started   bool
}

// nsqdIdentity is the body of IDENTIFY.
type nsqdIdentity struct {
	BroadcastAddress string `json:"broadcast_address"`
	Hostname         string `json:"hostname"`
	HTTPPort         int    `json:"http_port"`
	TCPPort          int    `json:"tcp_port"`
	Version          string `json:"version"`
}

func newRegistrar(s *Server) *registrar {
	self := s.self()
	r := &registrar{
		engine: s.engine, log: s.opts.Logger, ping: lookupdPing, nudge: make(chan struct{}, 1), peers: map[string]*lookupdPeer{},
		self: nsqdIdentity{self.BroadcastAddress, self.Hostname, self.HTTPPort, self.TCPPort, self.Version},
	}
	if s.opts.lookupdPing > 0 {
		r.ping = s.opts.lookupdPing
	}
	r.now.Store(&led{})
	r.ctx, r.cancel = context.WithCancel(context.Background())
	_ = r.set(s.opts.LookupdTCPAddresses) // they were checked
	return r
}

// checkLookupds says what is wrong with a list of nsqlookupds.
func checkLookupds(addresses []string) error {
	if len(addresses) > maxLookupds {
		return fmt.Errorf("nsq: %d nsqlookupds are more than %d", len(addresses), maxLookupds)
	}
	for _, a := range addresses {
		if _, _, err := net.SplitHostPort(a); err != nil {
			return fmt.Errorf("nsq: the nsqlookupd %q is not HOST:PORT", a)
		}
	}
	return nil
}

// list is where this node registers.
func (r *registrar) list() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string{}, r.addresses...)
}

// set replaces the nsqlookupds. Connections to those that stay go on.
func (r *registrar) set(addresses []string) error {
	if err := checkLookupds(addresses); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addresses = slices.Clone(addresses)
	r.arrange()
	return nil
}

// start begins to register. Clients must be served already.
func (r *registrar) start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.started = true
	r.arrange()
}

// stop ends the connections, upon which nsqlookupds do not mention this node any more, and waits for their goroutines.
func (r *registrar) stop() {
	r.mu.Lock()
	r.started = false
	r.cancel()
	r.mu.Unlock()
	r.wg.Wait()
}

// arrange starts and ends peers. r.mu is held.
func (r *registrar) arrange() {
	if !r.started || r.ctx.Err() != nil {
		return
	}
	for _, address := range r.addresses {
		if r.peers[address] != nil {
			continue
		}
		ctx, cancel := context.WithCancel(r.ctx)
		p := &lookupdPeer{address: address, r: r, cancel: cancel, wake: make(chan struct{}, 1), tried: make(chan struct{})}
		r.peers[address] = p
		r.wg.Go(func() { p.run(ctx) })
	}
	maps.DeleteFunc(r.peers, func(address string, p *lookupdPeer) bool {
		gone := !slices.Contains(r.addresses, address)
		if gone {
			p.cancel()
		}
		return gone
	})
	if len(r.peers) > 0 && !r.running {
		r.running = true
		r.wg.Go(r.watch)
	}
}

// peerList is a copy.
func (r *registrar) peerList() []*lookupdPeer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.peers))
}

// leading is what this node led when it was looked at last.
func (r *registrar) leading() led { return *r.now.Load() }

// changed makes the registrar look at what is led now, not only at the next turn.
func (r *registrar) changed() {
	select {
	case r.nudge <- struct{}{}:
	default:
	}
}

// watch looks at what this node leads, again and again, and wakes the peers when it changed. It ends when there are no peers.
func (r *registrar) watch() {
	for r.ctx.Err() == nil {
		began := time.Now()
		next := ledNow(r.engine)
		if !maps.EqualFunc(next, r.leading(), ledTopic.equal) {
			r.now.Store(&next)
			for _, p := range r.peerList() {
				select {
				case p.wake <- struct{}{}:
				default:
				}
			}
		}
		if !r.rest(ledShare * time.Since(began)) {
			return
		}
	}
}

// rest lasts as long as ledInterval, or until something changed, but never less than least. It says whether to go on.
func (r *registrar) rest(least time.Duration) bool {
	select {
	case <-time.After(least):
	case <-r.ctx.Done():
		return false
	}
	select {
	case <-r.nudge:
	case <-time.After(ledInterval - least):
	case <-r.ctx.Done():
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = len(r.peers) > 0
	return r.running
}
