package lookup

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"penstock/internal/node"
	"penstock/internal/sparing"
)

// registrar registers this node at stock nsqlookupds, as an nsqd does, so that consumers that know only these find it.
// It registers the topics that this node leads, with their channels.
//
// It has one goroutine per nsqlookupd (nsqlookupd.run). While there is at least one nsqlookupd, another goroutine
// (watch) checks periodically which topics this node leads. stop ends them all. Methods are safe for concurrent use:
// the Service calls start and stop, the HTTP endpoint for the configuration calls list and set, and every creation of a
// topic calls lookAgain and current.
//
// Registration compares states rather than following events. So a lost connection, a leadership that moved, and a topic
// that was deleted and created again are all one case: next.commands(known).
type registrar struct {
	engine  *node.Engine
	log     *slog.Logger
	sparing *sparing.Log // of what clients can cause
	ping    time.Duration
	self    identity

	ctx    context.Context // ended by stop
	cancel context.CancelFunc
	wg     sync.WaitGroup
	look   chan struct{}       // capacity 1: tells watch to look at once
	newest atomic.Pointer[led] // what this node led when watch last looked; never nil

	mu        sync.Mutex // guards the following
	addresses []string
	lookupds  map[string]*nsqlookupd // by address; from start on, exactly the ones in addresses
	watching  bool                   // the goroutine watch is running
	started   bool
}

// identity is the body of the IDENTIFY command, and of its answer. The keys come in nsqlookupd's order.
type identity struct {
	BroadcastAddress string `json:"broadcast_address"`
	Hostname         string `json:"hostname"`
	HTTPPort         int    `json:"http_port"`
	TCPPort          int    `json:"tcp_port"`
	Version          string `json:"version"`
}

func identityOf(p *Producer) identity {
	return identity{p.BroadcastAddress, p.Hostname, p.HTTPPort, p.TCPPort, p.Version}
}

func newRegistrar(e *node.Engine, o *Options) *registrar {
	r := &registrar{
		engine: e, log: o.Log.Logger(), sparing: o.Log, ping: pingInterval, look: make(chan struct{}, 1),
		addresses: slices.Clone(o.Nsqlookupds), lookupds: map[string]*nsqlookupd{},
		self: identityOf(&o.Self),
	}
	if o.PingInterval > 0 {
		r.ping = o.PingInterval
	}
	r.newest.Store(&led{})
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// list returns the addresses at which this node registers.
func (r *registrar) list() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string{}, r.addresses...)
}

// set replaces the list of nsqlookupds. Connections to nsqlookupds that are in both lists stay open.
func (r *registrar) set(addresses []string) error {
	if err := CheckNsqlookupds(addresses); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addresses = slices.Clone(addresses)
	r.reconcile()
	return nil
}

// start begins to register this node. Clients must already be able to connect to it.
func (r *registrar) start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.started = true
	r.reconcile()
}

// stop closes the connections, which makes the nsqlookupds forget this node, and waits for the goroutines to end.
func (r *registrar) stop() {
	r.mu.Lock()
	r.started = false
	r.cancel()
	r.mu.Unlock()
	r.wg.Wait()
}

// reconcile starts a goroutine for each nsqlookupd that is new in addresses, and ends the goroutines of those that are
// no longer there. The caller holds r.mu.
func (r *registrar) reconcile() {
	if !r.started || r.ctx.Err() != nil {
		return
	}
	for _, address := range r.addresses {
		if r.lookupds[address] != nil {
			continue
		}
		ctx, cancel := context.WithCancel(r.ctx)
		n := &nsqlookupd{
			address: address, registrar: r, cancel: cancel, wake: make(chan struct{}, 1), tried: make(chan struct{}),
		}
		r.lookupds[address] = n
		r.wg.Go(func() { n.run(ctx) })
	}
	maps.DeleteFunc(r.lookupds, func(address string, n *nsqlookupd) bool {
		gone := !slices.Contains(r.addresses, address)
		if gone {
			n.cancel()
		}
		return gone
	})
	if len(r.lookupds) > 0 && !r.watching {
		r.watching = true
		r.wg.Go(r.watch)
	}
}

// current returns the nsqlookupds that have a goroutine at the moment.
func (r *registrar) current() []*nsqlookupd {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.lookupds))
}

// leading returns what this node led when watch last looked.
func (r *registrar) leading() led { return *r.newest.Load() }

// lookAgain makes watch look again before its interval ends.
func (r *registrar) lookAgain() {
	select {
	case r.look <- struct{}{}:
	default:
	}
}

// watch compares what this node leads with what it led before, and wakes the nsqlookupds when that changed. It ends
// when there are no nsqlookupds left; reconcile starts it again.
func (r *registrar) watch() {
	for r.ctx.Err() == nil {
		began := time.Now()
		next := ledNow(r.engine)
		if !maps.EqualFunc(next, r.leading(), ledTopic.equal) {
			r.newest.Store(&next)
			for _, n := range r.current() {
				select {
				case n.wake <- struct{}{}:
				default:
				}
			}
		}
		if !r.pause(ledShare * time.Since(began)) {
			return
		}
	}
}

// pause waits for ledInterval or until lookAgain is called, but never for less than least. It reports whether watch
// should go on.
func (r *registrar) pause(least time.Duration) bool {
	select {
	case <-time.After(least):
	case <-r.ctx.Done():
		return false
	}
	select {
	case <-r.look:
	case <-time.After(ledInterval - least):
	case <-r.ctx.Done():
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watching = len(r.lookupds) > 0
	return r.watching
}
