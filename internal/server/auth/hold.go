package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	// While the servers are silent, they are asked again this often, and not for each of the clients that go on.
	holdRetry = time.Second
	// holdPatience is how long a client that may go on waits for the servers.
	holdPatience = time.Second
)

// errSilent marks the errors of a server that could not be reached, did not answer in time, or answered 5xx.
var errSilent = errors.New("it does not answer")

// asking is one question to the servers. All clients with the same credential wait for the same one.
type asking struct {
	done chan struct{} // closed when p and err are set
	p    *Principal
	err  error
}

// silence is what an Authority knows of servers that do not answer. mu is a leaf, and guards the rest.
type silence struct {
	mu     sync.Mutex
	asks   map[[sha256.Size]byte]*asking
	since  time.Time // when the servers fell silent; zero: they answer
	last   time.Time // when they were found silent last
	heldBy map[[sha256.Size]byte]time.Time
	log    *slog.Logger
}

// holds is the rule for a client whose grant may have to be asked for again while the servers are silent: until when
// the grant that it had holds. ok is false if that time is over.
func holds(expired time.Time, hold time.Duration, now time.Time) (until time.Time, ok bool) {
	if end := expired.Add(hold); hold > 0 && now.Before(end) {
		return end, true
	}
	return time.Time{}, false
}

func (a *Authority) holdTime() time.Duration { return time.Duration(a.hold.Load()) }

// find asks the servers about a credential, or waits for somebody who does. If they are silent, the last grant holds
// for Options.HoldTime after it has expired.
func (a *Authority) find(ctx context.Context, c *Credential) (*Principal, error) {
	key, now := c.key(), time.Now()
	had, _ := a.cache.Get(key)
	var until time.Time
	held := false
	if had != nil {
		until, held = holds(had.granted, a.holdTime(), now)
	}
	q, quiet := a.question(key, c, held, now)
	if quiet {
		return a.held(key, had, until, now), nil
	}
	patience := (<-chan time.Time)(nil)
	if held {
		timer := time.NewTimer(holdPatience)
		defer timer.Stop()
		patience = timer.C
	}
	select {
	case <-q.done:
	case <-patience:
		return a.held(key, had, until, time.Now()), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if held && errors.Is(q.err, errSilent) && !errors.Is(q.err, ErrUnknownSecret) {
		return a.held(key, had, until, time.Now()), nil
	}
	return q.p, q.err
}

// question returns the question about a credential that is under way, or begins one. quiet: the servers were found
// silent just now, and the client may go on without an answer.
func (a *Authority) question(key [sha256.Size]byte, c *Credential, held bool, now time.Time) (q *asking, quiet bool) {
	s := &a.silence
	s.mu.Lock()
	defer s.mu.Unlock()
	if q = s.asks[key]; q != nil {
		return q, false
	}
	if held && !s.since.IsZero() && now.Sub(s.last) < holdRetry {
		return nil, true
	}
	if held && !s.since.IsZero() {
		s.last = now // the others need not ask, too
	}
	q = &asking{done: make(chan struct{})}
	s.asks[key] = q
	asked := *c
	go a.ask(key, &asked, q)
	return q, false
}

// ask carries a question out. It takes at most Options.RequestTimeout for each server, whoever still waits.
func (a *Authority) ask(key [sha256.Size]byte, c *Credential, q *asking) {
	q.p, q.err = a.servers.Load().ask(context.Background(), c)
	switch {
	case q.err == nil:
		q.p.granted = q.p.expires
		a.cache.Add(key, q.p)
	case errors.Is(q.err, ErrUnknownSecret):
		a.cache.Remove(key)
	}
	s := &a.silence
	s.mu.Lock()
	delete(s.asks, key)
	now := time.Now()
	if silent := errors.Is(q.err, errSilent) && !errors.Is(q.err, ErrUnknownSecret); !silent {
		delete(s.heldBy, key)
		if !s.since.IsZero() {
			s.log.Info("the auth servers answer again", "silent_for", now.Sub(s.since).Round(time.Second))
			s.since = time.Time{}
			clear(s.heldBy)
		}
	} else {
		if s.last = now; s.since.IsZero() {
			s.since = now
			s.log.Warn("the auth servers do not answer: clients whose grant expires go on with it for auth-hold-time, and new "+
				"clients are refused, until they do", "auth_hold_time", a.holdTime(), "error", q.err)
		}
	}
	s.mu.Unlock()
	close(q.done)
}

// held returns the grant that a client had, in force until the servers should be asked again.
func (a *Authority) held(key [sha256.Size]byte, had *Principal, until, now time.Time) *Principal {
	next := now.Add(holdRetry)
	if next.After(until) {
		next = until
	}
	p := *had
	p.expires = next
	s := &a.silence
	s.mu.Lock()
	s.heldBy[key] = until
	s.mu.Unlock()
	a.cache.Add(key, &p)
	return &p
}

// Silence says for how long the auth servers have not answered, 0 if they do or none is configured, and how many
// clients go on with a grant that has expired meanwhile. Those of the same secret, address and certificate count once.
func (a *Authority) Silence(now time.Time) (silent time.Duration, held int) {
	if a == nil || a.servers.Load() == nil {
		return 0, 0
	}
	s := &a.silence
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since.IsZero() {
		return 0, 0
	}
	for key, until := range s.heldBy {
		if now.After(until) {
			delete(s.heldBy, key)
		}
	}
	return max(now.Sub(s.since), 1), len(s.heldBy)
}

// Note says for how long the auth servers have not answered, and in one sentence what that means for clients; 0 and "":
// they do, or none is configured.
func (a *Authority) Note() (time.Duration, string) {
	silent, held := a.Silence(time.Now())
	if silent == 0 {
		return 0, ""
	}
	return silent, fmt.Sprintf("the auth servers have not answered for %v: %d clients go on with expired grants, each "+
		"for %v at most, and new ones are refused; start them again, or look at the node's log for the reason",
		silent.Round(time.Second), held, a.holdTime())
}
