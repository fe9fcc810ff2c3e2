package kvtest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"penstock/internal/cluster/kv"
)

// Backend is the implementation under test.
type Backend struct {
	// Open returns clients of one map. Other tests may use the same map, so every test uses only keys of its own. A
	// backend with a single client returns it several times. The backend closes the clients at the end of the test.
	Open func(t *testing.T, clients int) []kv.Store
	// Compact makes it impossible to watch from below the newest revision.
	Compact func(t *testing.T)
	// LeaseTTL is a short TTL that the backend can keep; tests wait for it.
	LeaseTTL time.Duration
}

// Run runs the suite.
func Run(t *testing.T, b Backend) {
	for _, test := range []struct {
		name string
		run  func(*world)
	}{
		{"List", testList},
		{"TxnCompares", testTxnCompares},
		{"TxnIsAtomic", testTxnIsAtomic},
		{"TxnLimits", testTxnLimits},
		{"Race", testRace},
		{"WatchHistory", testWatchHistory},
		{"WatchFollows", testWatchFollows},
		{"WatchMissesNothing", testWatchMissesNothing},
		{"WatchBesideOthers", testWatchBesideOthers},
		{"WatchCompacted", testWatchCompacted},
		{"LeaseRunsOut", testLeaseRunsOut},
		{"LeaseKeptAlive", testLeaseKeptAlive},
		{"LeaseRevoked", testLeaseRevoked},
		{"LeaseOfKeyChanges", testLeaseOfKeyChanges},
		{"LeaseUnknown", testLeaseUnknown},
		{"ContextEnds", testContextEnds},
		{"Close", testClose},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			stores := b.Open(t, 2)
			test.run(&world{T: t, b: b, ctx: ctx, a: stores[0], z: stores[1], prefix: "/kvtest/" + uuid.NewString() + "/"})
		})
	}
}

// world belongs to one test: two clients, and a prefix of its own.
type world struct {
	*testing.T
	b      Backend
	ctx    context.Context
	a, z   kv.Store
	prefix string
}

func (w *world) key(k string) string { return w.prefix + k }

func (w *world) put(k, v string) kv.Op { return kv.Op{Key: w.key(k), Value: []byte(v)} }

func (w *world) del(k string) kv.Op { return kv.Op{Key: w.key(k), Delete: true} }

// write applies ops without conditions.
func (w *world) write(s kv.Store, ops ...kv.Op) int64 {
	w.Helper()
	ok, revision, err := s.Txn(w.ctx, nil, ops)
	if err != nil || !ok {
		w.Fatalf("a transaction that compares nothing: %v, %v", ok, err)
	}
	return revision
}

// list returns the entries of the test by their short keys.
func (w *world) list(s kv.Store) map[string]kv.Entry {
	w.Helper()
	entries, _, err := s.List(w.ctx, w.prefix)
	if err != nil {
		w.Fatal(err)
	}
	m := map[string]kv.Entry{}
	for _, e := range entries {
		m[e.Key[len(w.prefix):]] = e
	}
	return m
}

// watching collects the events of a watch.
type watching struct {
	w      *world
	at     atomic.Int64 // the revision up to which it is complete
	events chan kv.Event
	ended  chan error
	cancel context.CancelFunc
}

func (w *world) watch(s kv.Store, prefix string, after int64) *watching {
	ctx, cancel := context.WithCancel(w.ctx)
	x := &watching{w: w, events: make(chan kv.Event, 10000), ended: make(chan error, 1), cancel: cancel}
	done := make(chan struct{})
	go func() {
		defer close(done)
		last := after
		x.ended <- s.Watch(ctx, prefix, after, func(events []kv.Event, revision int64) {
			for _, e := range events {
				if e.ModRevision < last || e.ModRevision <= after {
					w.Errorf("an event of revision %d after one of %d, in a watch from %d on", e.ModRevision, last, after)
				}
				last = e.ModRevision
				x.events <- e
			}
			if revision < last {
				w.Errorf("the watch is at revision %d with an event of %d", revision, last)
			}
			x.at.Store(revision)
		})
	}()
	w.Cleanup(func() {
		cancel()
		<-done
	})
	return x
}

func (x *watching) next() kv.Event {
	x.w.Helper()
	select {
	case e := <-x.events:
		return e
	case err := <-x.ended:
		x.w.Fatalf("the watch ended: %v", err)
	case <-x.w.ctx.Done():
		x.w.Fatal("no event came")
	}
	return kv.Event{}
}

// want takes the next event, which must be a write of value to key, or the deletion of key.
func (x *watching) want(key, value string, deleted bool) kv.Event {
	x.w.Helper()
	e := x.next()
	if e.Key != x.w.key(key) || e.Deleted != deleted || !deleted && string(e.Value) != value {
		x.w.Fatalf("event %q = %q, deleted %v; want %q = %q, deleted %v",
			e.Key, e.Value, e.Deleted, x.w.key(key), value, deleted)
	}
	return e
}

// end waits for the end of the watch.
func (x *watching) end() error {
	x.w.Helper()
	select {
	case err := <-x.ended:
		return err
	case <-x.w.ctx.Done():
		x.w.Fatal("the watch does not end")
		return nil
	}
}

func (w *world) wantErr(err, want error) {
	w.Helper()
	if !errors.Is(err, want) {
		w.Fatalf("error %v, want %v", err, want)
	}
}
