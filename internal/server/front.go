package server

import (
	"cmp"
	"errors"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"penstock/internal/node/health"
	"penstock/internal/server/api"
	"penstock/internal/server/audit"
	"penstock/internal/server/handshakes"
	"penstock/internal/server/listen"
	"penstock/internal/server/web"
	"penstock/internal/sparing"
)

// Front is the HTTP listener of a node that starts. It answers from before recovery on: the probes and /health with the
// progress of the start, and 503 to everything else. When the Server serves, it answers all requests on the same
// listener, so no connection is refused in between.
//
// If HTTP is off and HTTPS is not, all this is so for HTTPS.
//
// The addresses that the Server will listen on are tried before anything else happens, so that one that cannot be used
// is reported before a data directory is made. Only HTTP stays open: a client of NSQ's protocol that connected now
// would have to wait without a word, instead of trying another node. Listeners whose ports the kernel has chosen stay
// open, too, until the Server takes them, because a node of a cluster announces its ports before the Server listens.
type Front struct {
	node    string
	startup *health.Startup
	sparing *sparing.Log
	audit   *audit.Log
	certs   *certificates // nil: TLS is not offered
	secure  bool          // it serves HTTPS
	bound   net.Listener  // counts the connections
	ln      net.Listener  // bound, with TLS if it is secure; nil: HTTP and HTTPS are off
	server  *http.Server
	gate    *web.Gate                    // of server
	kept    map[string]net.Listener      // by what they are for; their ports were chosen by the kernel
	handler atomic.Pointer[http.Handler] // of the Server; nil: the node is starting
	busy    []string                     // of lookups and registrations: see Options.LookupMayBeBusy
	ended   chan error                   // has the result of http.Server.Serve
}

// lookupPatience is how long an earlier process may take to free a lookup address that may be busy.
const lookupPatience = 2 * time.Second

// What is listened for, in sentences.
const (
	lookups       = "lookups"
	registrations = "registrations"
)

// ListenFailure is wrapped by errors of OpenFront and Listen about an address. What is one of clients, HTTP, HTTPS,
// lookups, registrations, native clients and other nodes.
type ListenFailure = listen.Failure

// OpenFront tries all listeners of o and the addresses in others, and serves HTTP. startup has the progress of the
// start. While an address is in use, OpenFront tries it again for at most wait: an earlier process may be ending. The
// caller passes the Front to Listen in Options.Front, or closes it.
func OpenFront(o Options, node string, startup *health.Startup, wait time.Duration, others ...string) (*Front, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	f := &Front{
		node: node, startup: startup, ended: make(chan error, 1), sparing: sparing.New(o.Logger),
		kept: make(map[string]net.Listener),
	}
	f.audit = audit.New(f.sparing, o.MaxAuditEntries)
	var err error
	if f.certs, err = newCertificates(&o, f.sparing); err != nil {
		return nil, err
	}
	mine := "HTTP"
	if f.secure = o.HTTPAddress == Off && o.HTTPSAddress != Off; f.secure {
		mine = "HTTPS"
	}
	type place struct{ what, address string }
	places := []place{
		{"clients", o.TCPAddress},
		{"HTTP", o.HTTPAddress},
		{"HTTPS", o.HTTPSAddress},
		{lookups, o.LookupAddress},
		{registrations, o.LookupTCPAddress},
		{"native clients", o.NativeAddress},
	}
	for _, address := range others {
		places = append(places, place{"other nodes", address})
	}
	// All stay open until the last one is: two of them may be the same.
	var tried []net.Listener
	defer func() {
		for _, ln := range tried {
			_ = ln.Close() // nothing was accepted
		}
	}()
	for _, p := range places {
		if p.address == Off {
			continue
		}
		patience, mayBeBusy := wait, o.LookupMayBeBusy && (p.what == lookups || p.what == registrations)
		if mayBeBusy {
			patience = min(wait, lookupPatience)
		}
		ln, err := listen.Patiently(p.address, patience)
		switch {
		case errors.Is(err, syscall.EADDRINUSE) && mayBeBusy:
			f.busy = append(f.busy, p.what)
			o.Logger.Warn("another process listens at the default address for "+p.what+", probably an nsqlookupd: this node "+
				"goes on without; name another address, or off, with --lookup-address", "address", p.address)
		case err != nil:
			f.Close()
			return nil, listen.Error(p.what, p.address, err)
		case p.what == mine:
			f.ln = ln
		case chosen(p.address):
			f.kept[p.what] = ln
		default:
			tried = append(tried, ln)
		}
	}
	if f.ln != nil {
		f.serve(&o)
	}
	return f, nil
}

func (f *Front) serve(o *Options) {
	f.bound = listen.Bound(f.ln, o.MaxConnections)
	f.ln = f.bound
	if f.secure {
		f.ln = handshakes.Listener(f.bound, f.certs.outer)
	}
	f.gate = o.gate(f.audit)
	f.server = web.NewServer(http.HandlerFunc(f.answer), f.gate, f.sparing)
	go func() {
		err := f.server.Serve(f.ln)
		if errors.Is(err, http.ErrServerClosed) {
			err = nil
		}
		f.ended <- err
	}()
}

// answer serves a request: with the Server's handler, once there is one.
func (f *Front) answer(w http.ResponseWriter, r *http.Request) {
	if h := f.handler.Load(); h != nil {
		(*h).ServeHTTP(w, r)
		return
	}
	v := health.Judge(&health.Facts{Node: f.node, Stage: f.startup.Stage()})
	switch {
	case api.IsProbe(r.URL.Path):
		api.ServeProbe(w, r, &v)
	case r.URL.Path == api.HealthPath:
		api.ServeVerdict(w, &v)
	default:
		web.WriteError(w, web.Fail(http.StatusServiceUnavailable, v.Why))
	}
}

// Close ends a Front that no Server has taken over. Requests that are being answered are cut off.
func (f *Front) Close() {
	defer f.sparing.Close()
	for _, ln := range f.kept {
		_ = ln.Close() // nothing was accepted
	}
	switch {
	case f.server != nil:
		_ = f.server.Close() // closes the listener, too
		<-f.ended
	case f.ln != nil:
		_ = f.ln.Close()
	}
}

// chosen says whether the kernel chooses the port of an address.
func chosen(address string) bool {
	_, port, err := net.SplitHostPort(address)
	return err == nil && port == "0"
}

// Ports puts into o: off for lookup addresses that are busy, the ports that the kernel has chosen, and the default of
// NativeAddress. So the addresses can be announced before the Server listens there.
func (f *Front) Ports(o *Options) {
	o.setNativeDefault()
	if slices.Contains(f.busy, lookups) {
		o.LookupAddress, o.LookupTCPAddress = Off, Off // who registered would be in no lookup
	} else if len(f.busy) > 0 {
		o.LookupTCPAddress = Off
	}
	own := map[string]net.Listener{"HTTP": f.ln}
	if f.secure {
		own = map[string]net.Listener{"HTTPS": f.ln}
	}
	for what, address := range map[string]*string{
		"clients": &o.TCPAddress, "HTTP": &o.HTTPAddress, "HTTPS": &o.HTTPSAddress, "lookups": &o.LookupAddress,
		"native clients": &o.NativeAddress,
	} {
		ln := cmp.Or(own[what], f.kept[what])
		if host, _, _ := net.SplitHostPort(*address); ln != nil && chosen(*address) {
			*address = net.JoinHostPort(host, strconv.Itoa(listen.Port(ln.Addr())))
		}
	}
}

// open returns the listener that f has kept for a service, or a new one. f may be nil.
func (f *Front) open(what, address string) (net.Listener, error) {
	if f != nil && f.kept[what] != nil {
		ln := f.kept[what]
		delete(f.kept, what) // the Server closes it
		return ln, nil
	}
	return listen.TCP(what, address)
}
