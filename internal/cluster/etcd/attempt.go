package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"penstock/internal/cluster/kv"
)

const (
	retryPause  = 50 * time.Millisecond  // between attempts
	roundPause  = 100 * time.Millisecond // after all endpoints have refused the connection
	leaderDoubt = 100 * time.Millisecond // how long a transaction waits before it checks whether its leader still leads
)

// errLeaderLost ends the wait for a transaction whose leader no longer leads: etcd drops such a transaction without an
// answer.
var errLeaderLost = errors.New("etcd: the members have chosen another leader meanwhile")

// do makes a call until it is answered, at one endpoint after the other. attempt counts from 0. Unless repeat is set,
// the call is made again only if the member certainly did not take it.
func (s *store) do(
	ctx context.Context, what string, repeat bool, call func(ctx context.Context, attempt int) error,
) error {
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, s.o.RequestTimeout)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	outcome := "it was not carried out"
	for attempt := 0; ; attempt++ {
		used := s.inUse()
		err := s.attempt(ctx, attempt, call)
		switch {
		case err == nil:
			return nil
		case s.ctx.Err() != nil:
			return fmt.Errorf("%w: %s was given up", kv.ErrClosed, what)
		case errors.Is(caller.Err(), context.Canceled):
			return fmt.Errorf("etcd: the caller gave up %s: %w", what, context.Canceled)
		case !unanswered(err):
			return s.answered(what, err)
		}
		if !errors.Is(err, errLeaderLost) { // after errLeaderLost the member works: it has just told us so
			s.leave(used)
		}
		refused := errors.Is(err, rpctypes.ErrNoLeader) || errors.Is(err, rpctypes.ErrTooManyRequests)
		if !repeat && !refused {
			outcome = "it may have been applied: read before repeating it"
		}
		if !repeat && !refused || !pause(ctx, retryPause) {
			if caller.Err() != nil {
				err = fmt.Errorf("%w; %w", err, caller.Err())
			}
			return s.failed(what, err, outcome)
		}
	}
}

func (s *store) attempt(ctx context.Context, attempt int, call func(context.Context, int) error) error {
	// With this option a member without a leader refuses at once, instead of holding the call until it has one.
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), s.o.AttemptTimeout)
	defer cancel()
	return clientv3.ContextError(ctx, call(ctx, attempt))
}

// unanswered says whether err means that the member does not work, rather than that it refused the call.
func unanswered(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, errLeaderLost) {
		return true
	}
	code := status.Code(err)
	var answer rpctypes.EtcdError
	if errors.As(err, &answer) {
		code = answer.Code()
	}
	switch code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Internal:
		return true
	}
	return errors.Is(err, rpctypes.ErrTooManyRequests)
}

// answered turns a member's refusal into the error that package kv has for it.
func (s *store) answered(what string, err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return kv.ErrLeaseGone
	case errors.Is(err, rpctypes.ErrCompacted):
		return kv.ErrCompacted
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("%w: etcd at %s has used up its space and takes no changes: compact and defragment it, then "+
			"clear its alarm (%w)", kv.ErrUnavailable, s.where(), err)
	case errors.Is(err, rpctypes.ErrAuthFailed), errors.Is(err, rpctypes.ErrPermissionDenied),
		errors.Is(err, rpctypes.ErrUserEmpty):
		return fmt.Errorf("etcd: %s refuses %s: check user, password and the rights of the user (%w)",
			s.endpointInUse(), what, err)
	}
	return fmt.Errorf("etcd: %s refuses %s, nothing was changed: %w", s.endpointInUse(), what, err)
}

func (s *store) failed(what string, err error, outcome string) error {
	return fmt.Errorf("%w: %s got no answer from etcd at %s; %s; see whether a majority of its members runs (last "+
		"error: %w)", kv.ErrUnavailable, what, s.where(), outcome, err)
}

func (s *store) where() string { return strings.Join(s.all(), ", ") }

// all returns the endpoints, which the caller only reads.
func (s *store) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endpoints
}

func (s *store) inUse() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

func (s *store) endpointInUse() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endpoints[s.current]
}

// learn asks the endpoint in use for the addresses of the members.
func (s *store) learn() {
	ctx, cancel := context.WithTimeout(s.ctx, s.o.AttemptTimeout)
	defer cancel()
	answer, err := s.client.MemberList(ctx, clientv3.WithSerializable())
	if err != nil {
		return // calls find out by themselves whether the endpoint works
	}
	var announced []string
	for _, m := range answer.Members {
		announced = append(announced, m.ClientURLs...)
	}
	s.know(announced)
}

// know replaces the learned endpoints by what the members have announced. The one in use stays in use.
func (s *store) know(announced []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	inUse := s.endpoints[s.current]
	next := slices.Clone(s.given)
	for _, e := range append(announced, inUse) {
		if !slices.Contains(next, e) {
			next = append(next, e)
		}
	}
	s.endpoints, s.current = next, slices.Index(next, inUse)
}

// leave goes on to the next endpoint, unless another call has left this one already.
func (s *store) leave(used int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != used || len(s.endpoints) == 1 {
		return
	}
	s.current = (used + 1) % len(s.endpoints)
	s.client.SetEndpoints(s.endpoints[s.current])
}

// keepConnected runs on its own goroutine until Close. It leaves an endpoint as soon as its connection fails, so that
// calls and watches that wait for the connection get the next endpoint.
func (s *store) keepConnected() {
	conn := s.client.ActiveConnection()
	failures := 0
	for {
		used, state := s.inUse(), conn.GetState()
		switch state {
		case connectivity.Shutdown:
			return
		case connectivity.Ready:
			failures = 0
		case connectivity.Idle:
			conn.Connect()
		case connectivity.TransientFailure:
			failures++
			if failures%len(s.all()) == 0 && !pause(s.ctx, roundPause) {
				return
			}
			s.leave(used)
		}
		if !conn.WaitForStateChange(s.ctx, state) {
			return
		}
	}
}

// ping makes a linearizable read that returns no data.
func (s *store) ping(ctx context.Context) error {
	answer, err := s.client.Get(ctx, "\x00", clientv3.WithCountOnly())
	if err == nil {
		s.heardOf(answer.Header.RaftTerm)
	}
	return err
}

// leaderLost returns errLeaderLost as soon as the member has lost its leader or has another one. It returns nil if ctx
// ends first.
func (s *store) leaderLost(ctx context.Context) error {
	before := s.term.Load()
	for ctx.Err() == nil {
		err := s.ping(ctx)
		if errors.Is(err, rpctypes.ErrNoLeader) || errors.Is(err, rpctypes.ErrLeaderChanged) || s.term.Load() > before {
			return errLeaderLost
		}
		pause(ctx, leaderDoubt)
	}
	return nil
}

func (s *store) heardOf(term uint64) {
	for before := s.term.Load(); term > before && !s.term.CompareAndSwap(before, term); before = s.term.Load() {
	}
}

// pause waits for d. It returns false if ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
