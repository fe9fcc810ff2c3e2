package api

import (
	"cmp"
	"net/http"
	"sync"
	"sync/atomic"

	"penstock/internal/server/metrics"
	"penstock/internal/server/web"
)

// requestCounts are the answers since the server's start, for /metrics. Any goroutine may count and read.
type requestCounts struct {
	authFailures atomic.Uint64
	requests     sync.Map // metrics.Request to *atomic.Uint64; one for each route and status that occurred
}

// answered counts the answer to an HTTP request.
func (c *requestCounts) answered(route string, status int) {
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
func (s *Service) counted(routes http.Handler) http.Handler {
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

// Meter has the numbers of a Service for /metrics.
type Meter struct {
	AuthFailures uint64
	Requests     map[metrics.Request]uint64
	Turns        web.TurnCounts // of answers that cost much
}

// Meter returns the numbers of now.
func (s *Service) Meter() Meter {
	m := Meter{AuthFailures: s.counts.authFailures.Load(), Requests: map[metrics.Request]uint64{}}
	for _, t := range []*web.Turns{s.turns.strangers, s.turns.known, s.turns.traces} {
		c := t.Counts()
		m.Turns.UnreadBytes += c.UnreadBytes
		m.Turns.Late += c.Late
		m.Turns.Unread += c.Unread
	}
	s.counts.requests.Range(func(key, n any) bool {
		m.Requests[key.(metrics.Request)] = n.(*atomic.Uint64).Load()
		return true
	})
	return m
}
