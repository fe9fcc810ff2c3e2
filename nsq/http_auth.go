package nsq

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// access is what a request needs while AUTH is on. What only tells (/ping, /info, /stats, lookups) is open, as
// the tools around NSQ send no secrets there.
type access uint8

const (
	accessOpen    access = iota
	accessPublish        // on the topic
	accessAdmin          // on the topic, and on the channel if one is named
	accessNode           // on everything
)

// tokenOf is the secret of a request; empty: none.
func tokenOf(r *http.Request) string {
	scheme, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(secret)
}

// permit decides on a request. A name that is missing is the endpoint's error to report, to those who are known.
func (s *Server) permit(need access, r *http.Request, q url.Values) error {
	if s.auth == nil || need == accessOpen {
		return nil
	}
	secret := tokenOf(r)
	if secret == "" {
		return &httpError{401, "AUTH_FIRST"}
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	who, err := s.auth.findCached(r.Context(), &credential{secret: secret, remoteIP: host, tls: r.TLS != nil, commonName: commonName(r.TLS)})
	switch {
	case errors.Is(err, errBadSecret):
		return &httpError{401, "AUTH_FAILED"}
	case err != nil:
		s.opts.Logger.Warn("refusing a request: nobody could say what its client may do", "client", r.RemoteAddr, "path", r.URL.Path, "error", err)
		return &httpError{503, "AUTH_FAILED"}
	}
	topic, channel := q.Get("topic"), q.Get("channel")
	allowed := false
	switch {
	case need == accessNode:
		allowed = who.allowsNode()
	case topic == "":
		allowed = len(who.grants) > 0
	case need == accessPublish:
		allowed = who.allows(mayPublish, topic, "")
	default:
		allowed = who.allows(mayAdmin, topic, channel)
	}
	if !allowed {
		return &httpError{403, "UNAUTHORIZED"}
	}
	return nil
}

// permitter is Server.permit, for what has no server.
type permitter func(need access, r *http.Request, q url.Values) error

// guard lets h serve only whom permit lets do everything.
func guard(permit permitter, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := permit(accessNode, r, nil); err != nil {
			writeError(w, err)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// refusePlain answers requests without TLS where TLS is required: NSQ's clients try again on the port it names.
func (s *Server) refusePlain(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set(contentTypeHeader, contentTypeV1)
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(403)
	_, _ = w.Write([]byte(`{"message": "TLS_REQUIRED", "https_port": ` + strconv.Itoa(port(s.HTTPSAddr())) + `}`))
}

// listenHTTPS opens the listener, unless it is off. Handshakes on it have httpHeaderTimeout, as net/http does it.
func (s *Server) listenHTTPS(h http.Handler) error {
	if s.opts.HTTPSAddress == Off {
		return nil
	}
	ln, err := net.Listen("tcp", s.opts.HTTPSAddress)
	if err != nil {
		return listenError("HTTPS", s.opts.HTTPSAddress, err)
	}
	s.httpsLn = tls.NewListener(&boundedListener{Listener: ln, most: int64(s.opts.MaxConnections)}, s.certs.outer)
	s.https = s.newWebServer(h)
	return nil
}

// HTTPSAddr is where HTTPS is served; nil when it is off.
func (s *Server) HTTPSAddr() net.Addr {
	if s.httpsLn == nil {
		return nil
	}
	return s.httpsLn.Addr()
}
