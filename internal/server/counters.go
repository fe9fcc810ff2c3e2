package server

import (
	"cmp"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"penstock/internal/server/listen"
	"penstock/internal/server/metrics"
	"penstock/internal/server/web"
)

// counters are totals since the server's start, for /metrics. Any goroutine may count and read.
type counters struct {
	authFailures atomic.Uint64

	staleCredentials atomic.Bool // see Server.CredentialsStale

	requests sync.Map // metrics.Request to *atomic.Uint64; one for each route and status that occurred
}

// answered counts the answer to an HTTP request.
func (c *counters) answered(route string, status int) {
	if status == http.StatusUnauthorized || status == http.StatusForbidden {
		c.authFailures.Add(1)
	}
	key := metrics.Request{Route: route, Code: status}
	n, ok := c.requests.Load(key)
	if !ok {
		n, _ = c.requests.LoadOrStore(key, new(atomic.Uint64))
	}
	n.(*atomic.Uint64).Add(1)
}

// counted serves HTTP with routes, and counts the answers by the pattern of the route: paths of clients are no labels.
func (s *Server) counted(routes http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := answerWriters.Get().(*answerWriter)
		a.ResponseWriter, a.status = w, http.StatusOK
		defer func() {
			a.ResponseWriter = nil
			answerWriters.Put(a)
		}()
		routes.ServeHTTP(a, r)
		s.counts.answered(cmp.Or(r.Pattern, "/"), a.status) // no pattern: there is no such route
	})
}

var answerWriters = sync.Pool{New: func() any { return new(answerWriter) }}

// answerWriter notes the status of an answer.
type answerWriter struct {
	http.ResponseWriter
	status int
}

func (a *answerWriter) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (a *answerWriter) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// meter returns the counters for /metrics.
func (s *Server) meter() metrics.ServerMeter {
	nsq := s.nsq.Meter()
	m := metrics.ServerMeter{
		AuthFailures: s.counts.authFailures.Load() + nsq.AuthFailures, HTTPPanics: s.gate.Panics(),
		AuditNotWritten: s.audit.NotWritten(), KnownConnections: s.known.Used(), LogLinesLeftOut: s.sparing.LeftOut(),
		Refused: s.publishes.Refused(), Requests: map[metrics.Request]uint64{},
		Connections: map[string]int{
			"nsq": nsq.Connections, "http": listen.Open(s.httpLn),
			"https": listen.Open(s.httpsBound),
		},
		Strangers: nsq.Strangers, StrangersRefused: nsq.StrangersRefused,
		LargeInputBytes: s.received.Used(), LargeInputWaits: nsq.LargeInputWaits,
		ModeratedReads: nsq.ModeratedReads, PolledPublishers: nsq.PolledPublishers,
	}
	for _, t := range []*web.Turns{s.turns.strangers, s.turns.known, s.turns.traces} {
		c := t.Counts()
		m.UnreadAnswerBytes += c.UnreadBytes
		m.AnswersLate += c.Late
		m.AnswersUnread += c.Unread
	}
	m.CredentialsStale = s.counts.staleCredentials.Load()
	silent, held := s.auth.Silence(time.Now())
	if s.certs != nil {
		m.Handshakes = s.certs.gate.Counts()
	}
	m.AuthSilentSeconds, m.AuthHeld = silent.Seconds(), held
	m.Publishes = map[string]*metrics.Durations{
		"nsq": &s.publishes.NSQ, "http": &s.publishes.HTTP, "native": &s.publishes.Native,
	}
	m.Connections["lookup"], m.Connections["lookup_tcp"] = s.lookups.Connections()
	if s.native != nil {
		m.Native = s.native.Meter()
	}
	m.Connections["native"] = m.Native.Connections
	m.AuthFailures += m.Native.AuthFailures
	s.counts.requests.Range(func(key, n any) bool {
		m.Requests[key.(metrics.Request)] = n.(*atomic.Uint64).Load()
		return true
	})
	return m
}
