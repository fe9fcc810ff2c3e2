package kvfaults

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"penstock/internal/cluster/kv"
	"penstock/internal/cluster/kv/memory"
)

// Map is a map in memory whose clients have names, by which a test cuts them off. It is safe for concurrent use.
type Map struct {
	*memory.Map

	mu      sync.Mutex // held during the calls of clients, too: after Cut, nothing of a client is under way
	cut     map[string]bool
	lose    map[string]losses
	closed  bool
	changed chan struct{} // closed and replaced whenever a watch that is held back may have to go on
}

// losses are the answers that a client is still to lose.
type losses struct {
	prefix string
	count  int
}

// New makes a map.
func New(o memory.Options) *Map {
	return &Map{
		Map: memory.New(o), cut: map[string]bool{}, lose: map[string]losses{}, changed: make(chan struct{}),
	}
}

// Store returns a client of the map. Clients with the same name are cut off together.
func (m *Map) Store(name string) *Store { return &Store{kv: m.Map.Store(), m: m, name: name} }

// Cut cuts off the clients with this name until Heal: their calls fail with kv.ErrUnavailable, and the events of their
// watches are held back. Their leases go on running out.
func (m *Map) Cut(name string) { m.set(func() { m.cut[name] = true }) }

// Heal ends Cut: watches continue where they were.
func (m *Map) Heal(name string) { m.set(func() { m.cut[name] = false }) }

// LoseAnswers makes the next count transactions of the clients with this name that write a key with this prefix fail
// with kv.ErrUnavailable after they were applied. Others are left alone: the clients have work of their own to do, at
// any time.
func (m *Map) LoseAnswers(name, prefix string, count int) {
	m.set(func() { m.lose[name] = losses{prefix, count} })
}

// Close is memory.Map.Close.
func (m *Map) Close() {
	m.Map.Close()
	m.set(func() { m.closed = true })
}

func (m *Map) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
	close(m.changed)
	m.changed = make(chan struct{})
}

// loses says whether a client loses the answer to a transaction. mu is held.
func (m *Map) loses(name string, ops []kv.Op) bool {
	l := m.lose[name]
	if l.count == 0 || !slices.ContainsFunc(ops, func(o kv.Op) bool { return strings.HasPrefix(o.Key, l.prefix) }) {
		return false
	}
	l.count--
	m.lose[name] = l
	return true
}

// Store is one client. It implements kv.Store.
type Store struct {
	kv     *memory.Store
	m      *Map
	name   string
	closed bool // guarded by the map's lock
}

var _ kv.Store = (*Store)(nil)

// isCut says whether the client is cut off. The map's lock is held.
func (s *Store) isCut() bool { return s.m.cut[s.name] && !s.m.closed && !s.closed }

// call makes a call for the client, unless the client is cut off.
func (s *Store) call(ctx context.Context, do func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if s.isCut() {
		return kv.ErrUnavailable
	}
	return do()
}

// List implements kv.Store.
func (s *Store) List(ctx context.Context, prefix string) (entries []kv.Entry, revision int64, err error) {
	err = s.call(ctx, func() (err error) {
		entries, revision, err = s.kv.List(ctx, prefix)
		return err
	})
	return entries, revision, err
}

// Txn implements kv.Store.
func (s *Store) Txn(ctx context.Context, conds []kv.Cond, ops []kv.Op) (ok bool, revision int64, err error) {
	err = s.call(ctx, func() error {
		var err error
		if ok, revision, err = s.kv.Txn(ctx, conds, ops); s.m.loses(s.name, ops) {
			ok, revision, err = false, 0, kv.ErrUnavailable
		}
		return err
	})
	return ok, revision, err
}

// Grant implements kv.Store.
func (s *Store) Grant(ctx context.Context, ttl time.Duration) (id kv.LeaseID, err error) {
	err = s.call(ctx, func() (err error) {
		id, err = s.kv.Grant(ctx, ttl)
		return err
	})
	return id, err
}

// KeepAlive implements kv.Store.
func (s *Store) KeepAlive(ctx context.Context, id kv.LeaseID) (ttl time.Duration, err error) {
	err = s.call(ctx, func() (err error) {
		ttl, err = s.kv.KeepAlive(ctx, id)
		return err
	})
	return ttl, err
}

// Revoke implements kv.Store.
func (s *Store) Revoke(ctx context.Context, id kv.LeaseID) error {
	return s.call(ctx, func() error { return s.kv.Revoke(ctx, id) })
}

// Watch implements kv.Store. After Heal, one call of changed has everything that was held back.
func (s *Store) Watch(ctx context.Context, prefix string, after int64, changed func([]kv.Event, int64)) error {
	for {
		s.awaitHealed(ctx)
		reached, end := context.WithCancel(ctx)
		err := s.kv.Watch(reached, prefix, after, func(events []kv.Event, revision int64) {
			s.m.mu.Lock()
			held := s.isCut()
			s.m.mu.Unlock()
			if held { // the next watch brings these events again
				end()
				return
			}
			changed(events, revision)
			after = revision
		})
		end()
		if err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// awaitHealed returns when the client is not cut off, or ctx ends.
func (s *Store) awaitHealed(ctx context.Context) {
	for {
		s.m.mu.Lock()
		held, again := s.isCut(), s.m.changed
		s.m.mu.Unlock()
		if !held {
			return
		}
		select {
		case <-again:
		case <-ctx.Done():
			return
		}
	}
}

// Close is memory.Store.Close.
func (s *Store) Close() error {
	err := s.kv.Close()
	s.m.set(func() { s.closed = true })
	return err
}
