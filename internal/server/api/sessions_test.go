package api

import (
	"crypto/tls"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"penstock/internal/node"
)

func TestSessionsEnd(t *testing.T) {
	var s sessions
	now := time.Now()
	a, b := s.begin("one", "name", now), s.begin("two", "name", now)
	if s.secret(a, now) != "one" || s.secret(b, now) != "two" || s.secret("", now) != "" || s.secret("one", now) != "" {
		t.Error("a session is not found, or one that there is not")
	}
	s.end(a)
	if s.secret(a, now) != "" || s.secret(b, now.Add(maxSessionIdle/2)) != "two" {
		t.Error("another session has ended than that of the logout")
	}
	if s.secret(b, now.Add(maxSessionIdle+time.Second)) != "two" {
		t.Error("a session in use has ended")
	}
	for at := now; at.Before(now.Add(maxSessionTime)); at = at.Add(maxSessionIdle / 2) {
		s.secret(b, at)
	}
	if s.secret(b, now.Add(maxSessionTime)) != "" {
		t.Error("a session never ends while it is used")
	}
	c := s.begin("three", "name", now)
	if s.secret(c, now.Add(maxSessionIdle)) != "" {
		t.Error("a session that nobody uses stays")
	}
	first := s.begin("busy", "name", now)
	for i := range maxSecretSessions {
		s.begin("busy", "name", now.Add(time.Duration(i+1)*time.Millisecond))
	}
	if s.secret(first, now) != "" || s.secret(c, now) != "three" {
		t.Error("one secret's sessions push out those of another")
	}
	s.begin("late", "name", now.Add(2*maxSessionTime))
	if got := s.count(now.Add(2 * maxSessionTime)); len(got) != 1 || got["name"] != 1 || len(s.count(now)) != 1 {
		t.Errorf("the sessions are counted as %v", got)
	}
	if len(s.all) != 1 {
		t.Errorf("%d sessions are kept, of which one is in force", len(s.all))
	}
}

// Over TLS the cookie is one that browsers keep to this host and to TLS.
func TestSessionCookieOverTLS(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	e, err := node.Open(t.Context(), node.Options{DataPath: t.TempDir(), BufferBytes: 16 << 20, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	g := NewGuard(e, nil, nil, false, quiet)
	r := &http.Request{Header: http.Header{}}
	plain := g.cookieName(r)
	r.TLS = new(tls.ConnectionState)
	if got := g.cookieName(r); got != "__Host-"+plain {
		t.Errorf("%s over TLS, %s without", got, plain)
	}
}
