package api

import (
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"penstock/internal/node"
	"penstock/internal/server/audit"
	"penstock/internal/server/auth"
	"penstock/internal/server/web"
)

// Guard decides who sends a request over HTTP, to the API and to the lookup service, and what it may do: it knows
// tokens and the sessions of browsers. Any goroutine may use it. A restart ends all sessions.
type Guard struct {
	engine    *node.Engine
	auth      *auth.Authority // nil: every client may do everything
	audit     *audit.Log
	openPages atomic.Bool // see Options.OpenPages of package server
	logger    *slog.Logger
	sessions  sessions // of browsers
}

// NewGuard returns the guard of a node.
func NewGuard(e *node.Engine, a *auth.Authority, log *audit.Log, openPages bool, logger *slog.Logger) *Guard {
	g := &Guard{engine: e, auth: a, audit: log, logger: logger}
	g.OpenPages(openPages)
	return g
}

// OpenPages changes whether pages are open, for the requests from now on.
func (s *Guard) OpenPages(open bool) { s.openPages.Store(open) }

// tokenOf returns the secret in a request, or that of its session, or "" if there is none.
func (s *Guard) tokenOf(r *http.Request) string {
	scheme, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return s.sessions.secret(s.cookieOf(r), time.Now())
	}
	return strings.TrimSpace(secret)
}

// Policy returns what decides about requests on all HTTP listeners, including nsqlookupd's.
func (s *Guard) Policy() web.Policy { return web.Policy{Permit: s.permit, Audit: s.audit} }

// permit decides whether a request may be served; see web.Permit. If the query lacks a topic that the route needs, any
// client with at least one grant passes; the endpoint then reports the missing argument.
func (s *Guard) permit(need web.Access, r *http.Request, q url.Values) (string, error) {
	if s.auth == nil || need == web.Open || need == web.Known && s.openPages.Load() {
		return "", nil
	}
	token := s.tokenOf(r)
	if need == web.Known && token == "" {
		return "", web.FailWith(401, "AUTH_FIRST", "this page tells of topics, addresses and tokens, so it needs a token "+
			"(Authorization: Bearer TOKEN) of any right; the setting open-pages shows it to everybody")
	}
	who, err := s.principal(r, token)
	if err != nil {
		return "", err
	}
	if !allows(who, need, q) {
		return who.Name(), web.Fail(403, "UNAUTHORIZED")
	}
	return who.Name(), nil
}

// principal returns who has the secret; "" is nobody's.
func (s *Guard) principal(r *http.Request, secret string) (*auth.Principal, error) {
	if secret == "" {
		return nil, web.Fail(401, "AUTH_FIRST")
	}
	who, err := s.auth.FindCached(r.Context(), auth.CredentialOf(secret, r.RemoteAddr, r.TLS))
	switch {
	case errors.Is(err, auth.ErrUnknownSecret):
		return nil, web.Fail(401, "AUTH_FAILED")
	case err != nil:
		s.logger.Debug("refusing a request: nobody could say what its client may do",
			"client", r.RemoteAddr, "path", r.URL.Path, "error", err)
		return nil, web.Fail(503, "AUTH_FAILED")
	}
	return who, nil
}

// caller returns who sends a request; nil: clients have to prove nothing.
func (s *Guard) caller(r *http.Request) (*auth.Principal, error) {
	if s.auth == nil {
		return nil, nil
	}
	return s.principal(r, s.tokenOf(r))
}

// ownerOf returns the owner of the producers of a request's client; "": clients have to prove nothing.
func (s *Guard) ownerOf(r *http.Request) (string, error) {
	who, err := s.caller(r)
	if who == nil {
		return "", err
	}
	return node.ProducerOwner(who.Name()), nil
}

// MakerOf returns the token for which a topic counts that the request makes: see auth.Principal.Maker.
func (s *Guard) MakerOf(r *http.Request) (string, error) {
	who, err := s.caller(r)
	return who.Maker(), err
}

// allows says whether the principal has the permission that a route needs for a request with this query.
func allows(who *auth.Principal, need web.Access, q url.Values) bool {
	topic, channel := q.Get("topic"), q.Get("channel")
	switch {
	case need == web.Known:
		return who.GrantCount() > 0
	case need == web.Node:
		return auth.May(who, auth.Admin, auth.Node())
	case need == web.ViewNode, (need == web.ViewAny || need == web.ViewSome) && !q.Has("topic"):
		return auth.May(who, auth.View, auth.Node())
	case topic == "" && need != web.Feed && who != nil:
		return who.GrantCount() > 0
	}
	on := auth.WholeTopic(topic)
	if channel != "" {
		on = auth.Channel(topic, channel)
	}
	switch need {
	case web.Publish:
		return auth.May(who, auth.Publish, auth.Topic(topic))
	case web.Feed:
		return auth.May(who, auth.Publish, auth.Topic(topic)) || auth.May(who, auth.Admin, auth.WholeTopic(topic))
	case web.View, web.ViewAny:
		return auth.May(who, auth.View, on)
	case web.ViewSome:
		return auth.May(who, auth.View, auth.SomeChannel(topic))
	case web.ViewTopic:
		return auth.May(who, auth.View, auth.WholeTopic(topic))
	case web.Admin:
		return auth.May(who, auth.Admin, on)
	case web.AdminTopic:
		return auth.May(who, auth.Admin, auth.WholeTopic(topic))
	}
	return false // a level that nobody has thought of here allows nothing
}
