// Package memory is a kv.Store inside the process: several clients of one map, with watches, leases and revisions like
// etcd's. A program that holds a whole cluster keeps its metadata in one, and tests and simulations of clusters run on
// it: tests/support/kvfaults cuts its clients off, tests/support/kvfile keeps it on disk.
package memory

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"penstock/internal/cluster/kv"
)

// Limits. MaxTxnCount is etcd's default, so a transaction that fits here also fits there.
const (
	MaxTxnCount     = 128   // ops of a transaction, and its conds
	MaxHistoryCount = 10000 // events that watches may still ask for; older ones are compacted
)

// Options of a map. The zero value is an empty map on the machine's clock.
type Options struct {
	// Now is the clock of the leases. If it is set, leases end only when Expire is called; otherwise they end by
	// themselves.
	Now func() time.Time
	// Entries, of Revision or older, are the initial content of the map. Borrowed for the call.
	Entries  []kv.Entry
	Revision int64
	// Journal is called before a revision is applied, in order of revision and with the map locked. If it fails, the
	// transaction is refused with its error. But the keys of a lease that runs out are deleted all the same.
	Journal func(revision int64, ops []kv.Op) error
}

// Map is the data that the clients share. It is safe for concurrent use.
type Map struct {
	opts Options

	mu        sync.Mutex
	entries   map[string]kv.Entry
	revision  int64
	compacted int64      // events up to this revision are not kept
	history   []kv.Event // in order of revision, all above compacted
	leases    map[kv.LeaseID]*lease
	lastLease kv.LeaseID
	closed    bool
	changed   chan struct{} // closed and replaced whenever a watch may have something to do
}

type lease struct {
	ttl   time.Duration
	until time.Time
	timer *time.Timer // nil if Options.Now is set
}

// New makes a map.
func New(o Options) *Map {
	m := &Map{
		opts: o, entries: map[string]kv.Entry{}, revision: max(1, o.Revision), leases: map[kv.LeaseID]*lease{},
		changed: make(chan struct{}),
	}
	m.compacted = m.revision
	for _, e := range o.Entries {
		m.entries[e.Key] = e
	}
	return m
}

// Store returns a client of the map.
func (m *Map) Store() *Store { return &Store{m: m} }

// Compact drops the history: watches that have not seen all of it end with kv.ErrCompacted.
func (m *Map) Compact() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.compacted, m.history = m.revision, nil
	m.wake()
}

// Expire ends the leases that have run out on Options.Now.
func (m *Map) Expire() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(m.leases)) {
		if !m.now().Before(m.leases[id].until) {
			m.dropLease(id)
		}
	}
}

// Entries returns all entries, in order of key, and the revision.
func (m *Map) Entries() ([]kv.Entry, int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.list(""), m.revision
}

// Close ends all watches; every call fails with kv.ErrClosed from now on. Leases no longer run out, and keys stay as
// they are.
func (m *Map) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for _, l := range m.leases {
		if l.timer != nil {
			l.timer.Stop()
		}
	}
	m.wake()
}

func (m *Map) now() time.Time {
	if m.opts.Now != nil {
		return m.opts.Now()
	}
	return time.Now()
}

func (m *Map) wake() {
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *Map) list(prefix string) []kv.Entry {
	var found []kv.Entry
	for key, e := range m.entries {
		if strings.HasPrefix(key, prefix) {
			found = append(found, e)
		}
	}
	slices.SortFunc(found, func(a, b kv.Entry) int { return strings.Compare(a.Key, b.Key) })
	return found
}

func (m *Map) txn(conds []kv.Cond, ops []kv.Op) (bool, int64, error) {
	if err := checkTxn(conds, ops); err != nil {
		return false, 0, err
	}
	for _, c := range conds {
		if m.entries[c.Key].ModRevision != c.ModRevision {
			return false, m.revision, nil
		}
	}
	for _, op := range ops {
		if op.Lease != 0 && m.leases[op.Lease] == nil {
			return false, 0, kv.ErrLeaseGone
		}
	}
	if err := m.apply(ops); err != nil {
		return false, 0, err
	}
	return true, m.revision, nil
}

func checkTxn(conds []kv.Cond, ops []kv.Op) error {
	if len(conds) > MaxTxnCount || len(ops) > MaxTxnCount {
		return fmt.Errorf("kv: a transaction of %d comparisons and %d writes: at most %d of each are allowed; nothing was "+
			"changed, divide it", len(conds), len(ops), MaxTxnCount)
	}
	seen := make(map[string]bool, len(ops))
	for _, op := range ops {
		if seen[op.Key] {
			return fmt.Errorf("kv: a transaction writes %q twice: nothing was changed", op.Key)
		}
		seen[op.Key] = true
	}
	return nil
}

// apply makes the next revision. As in etcd, there is none if nothing is written or deleted. The caller holds the lock.
func (m *Map) apply(ops []kv.Op) error {
	revision := m.revision + 1
	var events []kv.Event
	for _, op := range ops {
		_, exists := m.entries[op.Key]
		switch {
		case !op.Delete:
			events = append(events, kv.Event{Entry: kv.Entry{
				Key: op.Key, Value: slices.Clone(op.Value), ModRevision: revision, Lease: op.Lease,
			}})
		case exists:
			events = append(events, kv.Event{Entry: kv.Entry{Key: op.Key, ModRevision: revision}, Deleted: true})
		}
	}
	if len(events) == 0 {
		return nil
	}
	if m.opts.Journal != nil {
		if err := m.opts.Journal(revision, ops); err != nil {
			return err
		}
	}
	m.publish(revision, events)
	return nil
}

func (m *Map) publish(revision int64, events []kv.Event) {
	m.revision = revision
	for _, e := range events {
		if e.Deleted {
			delete(m.entries, e.Key)
		} else {
			m.entries[e.Key] = e.Entry
		}
	}
	m.history = append(m.history, events...)
	for len(m.history) > MaxHistoryCount {
		drop := len(m.history) - MaxHistoryCount*3/4
		m.compacted = m.history[drop-1].ModRevision
		for drop < len(m.history) && m.history[drop].ModRevision == m.compacted {
			drop++
		}
		m.history = slices.Clone(m.history[drop:])
	}
	m.wake()
}

func (m *Map) grant(ttl time.Duration) kv.LeaseID {
	m.lastLease++
	id := m.lastLease
	l := &lease{ttl: ttl, until: m.now().Add(ttl)}
	m.leases[id] = l
	if m.opts.Now == nil {
		l.timer = time.AfterFunc(ttl, func() { m.runOut(id) })
	}
	return id
}

// runOut ends a lease, unless it was extended.
func (m *Map) runOut(id kv.LeaseID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.leases[id]
	if l == nil || m.closed {
		return
	}
	if left := time.Until(l.until); left > 0 {
		l.timer.Reset(left)
		return
	}
	m.dropLease(id)
}

func (m *Map) dropLease(id kv.LeaseID) {
	if t := m.leases[id].timer; t != nil {
		t.Stop()
	}
	delete(m.leases, id)
	var events []kv.Event
	var ops []kv.Op
	for _, e := range m.list("") {
		if e.Lease == id {
			events = append(events, kv.Event{Entry: kv.Entry{Key: e.Key, ModRevision: m.revision + 1}, Deleted: true})
			ops = append(ops, kv.Op{Key: e.Key, Delete: true})
		}
	}
	if len(events) == 0 {
		return
	}
	if m.opts.Journal != nil {
		_ = m.opts.Journal(m.revision+1, ops) // leased keys do not outlive the process anyway
	}
	m.publish(m.revision+1, events)
}

// pending returns the events that a watch has not seen, and the revision up to which they are complete. The caller
// holds the lock.
func (m *Map) pending(prefix string, after int64) ([]kv.Event, int64, error) {
	if after < m.compacted {
		return nil, 0, kv.ErrCompacted
	}
	first, _ := slices.BinarySearchFunc(m.history, after+1, func(e kv.Event, r int64) int {
		return int(e.ModRevision - r)
	})
	var events []kv.Event
	for _, e := range m.history[first:] {
		if strings.HasPrefix(e.Key, prefix) {
			events = append(events, e)
		}
	}
	return events, max(after, m.revision), nil
}

func (m *Map) watch(ctx context.Context, s *Store, prefix string, after int64, changed func([]kv.Event, int64)) error {
	for {
		m.mu.Lock()
		if m.closed || s.closed {
			m.mu.Unlock()
			return kv.ErrClosed
		}
		events, revision, err := m.pending(prefix, after)
		again := m.changed
		m.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case revision > after:
			changed(events, revision)
			after = revision
		}
		select {
		case <-again:
		case <-ctx.Done():
			return nil
		}
	}
}
