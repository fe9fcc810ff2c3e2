package server

import (
	"net"
	"net/http"
	"strconv"

	"penstock/internal/server/api"
	"penstock/internal/server/handshakes"
	"penstock/internal/server/listen"
	"penstock/internal/server/web"
)

// openHTTP opens the listeners of HTTP and HTTPS that are not off, or takes over that of the Front.
func (s *Server) openHTTP() error {
	f := s.opts.Front
	switch {
	case f != nil && f.secure:
		s.httpsBound, s.httpsLn = f.bound, f.ln
	case s.opts.HTTPSAddress != Off:
		ln, err := f.open("HTTPS", s.opts.HTTPSAddress)
		if err != nil {
			return err
		}
		s.httpsBound = listen.Bound(ln, s.opts.MaxConnections)
		s.httpsLn = handshakes.Listener(s.httpsBound, s.certs.outer)
	}
	switch {
	case f != nil && !f.secure:
		s.httpLn = f.ln
	case s.opts.HTTPAddress != Off:
		ln, err := f.open("HTTP", s.opts.HTTPAddress)
		if err != nil {
			return err
		}
		s.httpLn = listen.Bound(ln, s.opts.MaxConnections)
	}
	return nil
}

// handleHTTP makes the servers of the listeners, and gives them the API. net/http limits TLS handshakes of HTTPS to
// web.HeaderTimeout.
func (s *Server) handleHTTP() {
	f, plain := s.opts.Front, s.api.Handler()
	if s.opts.TLS.Required == requiredAlways {
		plain = s.allowProbes(s.refusePlain)
	}
	switch {
	case f != nil && f.secure:
		s.front, s.https = s.api.Handler(), f.server
	case s.httpsLn != nil:
		s.https = web.NewServer(s.api.Handler(), s.gate, s.sparing)
	}
	switch {
	case f != nil && !f.secure:
		s.front, s.http = plain, f.server
	case s.httpLn != nil:
		s.http = web.NewServer(plain, s.gate, s.sparing)
	}
}

// allowProbes serves the probes, and everything else with next.
func (s *Server) allowProbes(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if api.IsProbe(r.URL.Path) {
			s.api.Probe(w, r)
			return
		}
		next(w, r)
	}
}

// refusePlain refuses a request without TLS if TLS is required. NSQ's clients retry on the port that the answer names.
func (s *Server) refusePlain(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set(web.ContentTypeHeader, web.ContentTypeV1)
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(403)
	_, _ = w.Write([]byte(`{"message": "TLS_REQUIRED", "https_port": ` + strconv.Itoa(listen.Port(s.HTTPSAddr())) + `}`))
}

// HTTPSAddr returns the address at which HTTPS is served, or nil if it is off.
func (s *Server) HTTPSAddr() net.Addr { return listen.Addr(s.httpsLn) }
