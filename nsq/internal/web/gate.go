package web

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"penstock/nsq/internal/audit"
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
//   - requests whose Host header names neither this machine nor an allowed host. A page of evil.example whose name
//     suddenly resolves to 127.0.0.1 (DNS rebinding) counts as the same site in the browser, but the browser still
//     sends "Host: evil.example".
//
// Programs send neither Origin nor Sec-Fetch-Site, and the Host by which they were told to reach the node.
//
// It also counts and logs the panics of the handlers behind it. The rest of a Gate is immutable. Any goroutine may use
// it.
type Gate struct {
	panics panics
	hosts  map[string]bool // in lower case, without port and final dot; nil: every host is allowed
	cross  *http.CrossOriginProtection
	log    *audit.Log // is told of refusals; nil: nobody is
}

// NewGate returns a Gate that lets requests through whose Host is an IP address, localhost, or one of the names. Names
// have no port. AnyHost among them allows every host. Empty names are ignored. log is told of refusals, unless it is
// nil.
func NewGate(log *audit.Log, names ...string) *Gate {
	g := &Gate{hosts: map[string]bool{"localhost": true}, cross: http.NewCrossOriginProtection(), log: log}
	for _, name := range names {
		if name == AnyHost {
			g.hosts = nil
			break
		}
		if name != "" {
			g.hosts[plainHost(name)] = true
		}
	}
	return g
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

// plainHost returns a host's name in the form of Gate.hosts.
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
	if g.hosts == nil || header == "" {
		return true
	}
	host := hostOf(header)
	if _, err := netip.ParseAddr(host); err == nil {
		return true // a page cannot make a browser take an address for a name of its own
	}
	return g.hosts[plainHost(host)]
}

// Check returns the reason to refuse the request; nil: it may pass.
func (g *Gate) Check(r *http.Request) *Error {
	if !g.allows(r.Host) {
		return Fail(http.StatusMisdirectedRequest, fmt.Sprintf("refused because the request is for the host %.100q, which "+
			"is no name of this node: use the node's IP address, or add the name to http_allowed_hosts", hostOf(r.Host)))
	}
	if g.cross.Check(r) != nil {
		return Fail(http.StatusForbidden, "refused because a web page of another site sent it; nothing was changed")
	}
	return nil
}

// handler returns h behind the gate.
func (g *Gate) handler(h http.Handler, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := g.Check(r); err != nil {
			refused(g.log, "", r, nil, err)
			WriteError(w, err)
			return
		}
		g.panics.serve(h, w, r, log)
	})
}
