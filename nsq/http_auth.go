package nsq

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"penstock/nsq/auth"
	"penstock/nsq/internal/listen"
	"penstock/nsq/internal/web"
)

// tokenOf returns the secret in a request, or "" if there is none.
func tokenOf(r *http.Request) string {
	scheme, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(secret)
}

// permit decides whether a request may be served. It is the web.Permit of all HTTP listeners, including nsqlookupd's.
// If the query lacks a topic, any client with at least one grant passes; the endpoint then reports the missing
// argument.
func (s *Server) permit(need web.Access, r *http.Request, q url.Values) error {
	if s.auth == nil || need == web.Open {
		return nil
	}
	secret := tokenOf(r)
	if secret == "" {
		return web.Fail(401, "AUTH_FIRST")
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	who, err := s.auth.FindCached(r.Context(), &auth.Credential{
		Secret: secret, RemoteIP: host, TLS: r.TLS != nil, CommonName: commonName(r.TLS),
	})
	switch {
	case errors.Is(err, auth.ErrUnknownSecret):
		return web.Fail(401, "AUTH_FAILED")
	case err != nil:
		s.opts.Logger.Warn("refusing a request: nobody could say what its client may do",
			"client", r.RemoteAddr, "path", r.URL.Path, "error", err)
		return web.Fail(503, "AUTH_FAILED")
	}
	topic, channel := q.Get("topic"), q.Get("channel")
	allowed := false
	switch {
	case need == web.Node:
		allowed = who.AllowsNode()
	case topic == "":
		allowed = who.GrantCount() > 0
	case need == web.Publish:
		allowed = who.Allows(auth.Publish, topic, "")
	default:
		allowed = who.Allows(auth.Admin, topic, channel)
	}
	if !allowed {
		return web.Fail(403, "UNAUTHORIZED")
	}
	return nil
}

// refusePlain refuses a request without TLS if TLS is required. NSQ's clients retry on the port that the answer names.
func (s *Server) refusePlain(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set(web.ContentTypeHeader, web.ContentTypeV1)
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(403)
	_, _ = w.Write([]byte(`{"message": "TLS_REQUIRED", "https_port": ` + strconv.Itoa(listen.Port(s.HTTPSAddr())) + `}`))
}

// listenHTTPS opens the HTTPS listener, unless it is off. net/http limits TLS handshakes on it to web.HeaderTimeout.
func (s *Server) listenHTTPS(h http.Handler) error {
	if s.opts.HTTPSAddress == Off {
		return nil
	}
	ln, err := net.Listen("tcp", s.opts.HTTPSAddress)
	if err != nil {
		return listen.Error("HTTPS", s.opts.HTTPSAddress, err)
	}
	s.httpsBound = listen.Bound(ln, s.opts.MaxConnections)
	s.httpsLn = tls.NewListener(s.httpsBound, s.certs.outer)
	s.https = web.NewServer(h, s.gate, s.opts.Logger)
	return nil
}

// HTTPSAddr returns the address at which HTTPS is served, or nil if it is off.
func (s *Server) HTTPSAddr() net.Addr {
	if s.httpsLn == nil {
		return nil
	}
	return s.httpsLn.Addr()
}
