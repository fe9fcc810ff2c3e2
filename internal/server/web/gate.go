package web

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"

	"penstock/internal/server/audit"
	"penstock/internal/sparing"
)

// MaxAllowedHosts bounds the number of names in the setting http-allowed-hosts.
const MaxAllowedHosts = 256

// AnyHost as an allowed host lets requests with every Host header through.
const AnyHost = "*"

// Gate stands before the routes of every HTTP listener: NewServer does not make a server without one. It protects a
// node from web pages that are open in the browser of somebody who can reach the node, such as a developer whose node
// runs on the same machine. It refuses
//
//   - requests that change something and come from a page of another site, by the headers Sec-Fetch-Site and Origin,
//     which every browser sends and a page cannot forge;
//   - requests of browsers whose Host header names neither this machine nor an allowed host, except for probes and
//     metrics. A page of evil.example whose name suddenly resolves to 127.0.0.1 (DNS rebinding) counts as the same site
//     in the browser, but the browser still sends "Host: evil.example".
//
// Programs send none of the headers by which browser knows a browser, and reach the node by any name.
//
// A proxy may replace the Host header by the node's address. Then the page's Origin is no address of the node in its
// eyes, so the allowed hosts are good as origins, too.
//
// It also counts and logs the panics of the handlers behind it. Any goroutine may use it.
type Gate struct {
	// Limits of the servers that have this Gate. They must not be changed once a server was made.
	Limits Limits

	panics panics
	own    []string // names of this node
	names  atomic.Pointer[allowed]
	cross  *http.CrossOriginProtection
	log    *audit.Log // is told of refusals; nil: nobody is
}

// allowed are names in lower case, without port and final dot.
type allowed struct {
	hosts map[string]bool // nil: every host is allowed
	sites map[string]bool // those of the setting http-allowed-hosts
}

// NewGate returns a Gate that lets requests through whose Host is an IP address, localhost, one of this node's own
// names, or one of the allowed hosts, which are also origins of pages that may change something. Names have no port.
// AnyHost among the allowed ones allows every host, but makes no origin. Empty names are ignored. log is told of
// refusals, unless it is nil.
func NewGate(log *audit.Log, own, allowed []string) *Gate {
	g := &Gate{own: own, cross: http.NewCrossOriginProtection(), log: log}
	g.Allow(allowed)
	return g
}

// Allow changes which hosts are allowed: see NewGate.
func (g *Gate) Allow(names []string) {
	a := &allowed{hosts: map[string]bool{"localhost": true}, sites: map[string]bool{}}
	any := false
	for _, name := range names {
		if any = any || name == AnyHost; name != AnyHost && name != "" {
			a.sites[plainHost(name)] = true
			a.hosts[plainHost(name)] = true
		}
	}
	for _, name := range g.own {
		if name != "" {
			a.hosts[plainHost(name)] = true
		}
	}
	if any {
		a.hosts = nil
	}
	g.names.Store(a)
}

// CheckAllowedHosts returns an error if the list is too long, or has an entry that is neither a host's name nor
// AnyHost.
func CheckAllowedHosts(names []string) error {
	if len(names) > MaxAllowedHosts {
		return fmt.Errorf("nsq: %d allowed hosts are more than %d", len(names), MaxAllowedHosts)
	}
	for _, name := range names {
		if name != AnyHost && (name == "" || strings.ContainsAny(name, "*/:@ ")) {
			return fmt.Errorf("nsq: the allowed host %q is not a name without a port, such as broker.example.com, nor %s",
				name, AnyHost)
		}
	}
	return nil
}

// plainHost returns a host's name in the form of allowed.
func plainHost(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// hostOf returns the host in a Host header, without its port and the brackets of an IPv6 address.
func hostOf(header string) string {
	if host, _, err := net.SplitHostPort(header); err == nil {
		return host
	}
	return strings.TrimSuffix(strings.TrimPrefix(header, "["), "]")
}

// allows reports whether a request with this Host header may pass. HTTP/1.0 knows no Host header; browsers always send
// one.
func (g *Gate) allows(header string) bool {
	hosts := g.names.Load().hosts
	if hosts == nil || header == "" {
		return true
	}
	host := hostOf(header)
	if _, err := netip.ParseAddr(host); err == nil {
		return true // a page cannot make a browser take an address for a name of its own
	}
	return hosts[plainHost(host)]
}

// public are the paths that may be asked for under every name: probes and scrapers use names that nobody lists.
var public = map[string]bool{
	"/ping": true, "/livez": true, "/readyz": true, "/startupz": true, "/metrics": true, "/metrics/per-object": true,
}

// Public reports whether a path may be asked for under every name of the node.
func Public(path string) bool { return public[path] }

// browser reports whether a header shows that a browser has sent the request. A browser at an address without TLS sends
// no Sec-Fetch-Site, and to its own site no Origin; but it always says which languages it wants, and no page can stop
// it.
func browser(h http.Header) bool {
	for _, name := range []string{
		"Origin", "Cookie", "Referer", "Accept-Language", "Sec-Fetch-Site", "Sec-Fetch-Mode",
		"Sec-Fetch-Dest",
	} {
		if _, ok := h[name]; ok {
			return true
		}
	}
	return strings.HasPrefix(h.Get("User-Agent"), "Mozilla/")
}

// fromAllowed reports whether the page that sent the request is of an allowed host. If the browser says that the page
// is of another site than the one that it asks, that counts.
func (g *Gate) fromAllowed(h http.Header) bool {
	if site := h.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" {
		return false
	}
	u, err := url.Parse(h.Get("Origin"))
	return err == nil && u.Host != "" && g.names.Load().sites[plainHost(u.Hostname())]
}

// Check returns the reason to refuse the request; nil: it may pass.
func (g *Gate) Check(r *http.Request) *Error {
	if !g.allows(r.Host) && browser(r.Header) && !Public(r.URL.Path) {
		return Fail(http.StatusMisdirectedRequest, fmt.Sprintf("refused because the request is for the host %.100q (header "+
			"Host), which is no name of this node, and a browser sent it: use the node's IP address, or add the name to the "+
			"setting http_allowed_hosts", hostOf(r.Host)))
	}
	if g.cross.Check(r) != nil && !g.fromAllowed(r.Header) {
		return Fail(http.StatusForbidden, fmt.Sprintf("refused because a web page of another site sent it: the header "+
			"Origin is %.100q and the header Host is %.100q; nothing was changed. Behind a proxy, have it pass on the "+
			"browser's Host, or add the name in Origin to the setting http_allowed_hosts", r.Header.Get("Origin"), r.Host))
	}
	return nil
}

// handler returns h behind the gate.
func (g *Gate) handler(h http.Handler, log *sparing.Log) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := g.Check(r); err != nil {
			refused(g.log, "", r, nil, err)
			WriteError(w, err)
			return
		}
		g.panics.serve(h, w, r, log)
	})
}
