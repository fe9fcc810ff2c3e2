package memory

import (
	"context"
	"time"

	"penstock/internal/cluster/kv"
)

// Store is one client. It implements kv.Store.
type Store struct {
	m      *Map
	closed bool // guarded by the map's lock
}

var _ kv.Store = (*Store)(nil)

// enter locks the map for a call, or returns why the call fails.
func (s *Store) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.m.mu.Lock()
	if s.closed || s.m.closed {
		s.m.mu.Unlock()
		return kv.ErrClosed
	}
	return nil
}

// List implements kv.Store. Values are shared with the map and must not be changed.
func (s *Store) List(ctx context.Context, prefix string) ([]kv.Entry, int64, error) {
	if err := s.enter(ctx); err != nil {
		return nil, 0, err
	}
	defer s.m.mu.Unlock()
	return s.m.list(prefix), s.m.revision, nil
}

func (s *Store) Txn(ctx context.Context, conds []kv.Cond, ops []kv.Op) (bool, int64, error) {
	if err := s.enter(ctx); err != nil {
		return false, 0, err
	}
	defer s.m.mu.Unlock()
	return s.m.txn(conds, ops)
}

// Watch implements kv.Store. One call of changed has all revisions that there are.
func (s *Store) Watch(ctx context.Context, prefix string, after int64, changed func([]kv.Event, int64)) error {
	return s.m.watch(ctx, s, prefix, after, changed)
}

func (s *Store) Grant(ctx context.Context, ttl time.Duration) (kv.LeaseID, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.m.mu.Unlock()
	return s.m.grant(ttl), nil
}

func (s *Store) KeepAlive(ctx context.Context, id kv.LeaseID) (time.Duration, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.m.mu.Unlock()
	l := s.m.leases[id]
	if l == nil {
		return 0, kv.ErrLeaseGone
	}
	l.until = s.m.now().Add(l.ttl)
	return l.ttl, nil
}

func (s *Store) Revoke(ctx context.Context, id kv.LeaseID) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.m.mu.Unlock()
	if s.m.leases[id] == nil {
		return kv.ErrLeaseGone
	}
	s.m.dropLease(id)
	return nil
}

// Close ends this client's calls and watches. The map and the leases stay.
func (s *Store) Close() error {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.closed = true
	s.m.wake()
	return nil
}
