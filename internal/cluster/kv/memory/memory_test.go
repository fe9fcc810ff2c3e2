package memory

import (
	"context"
	"errors"
	"testing"
	"time"

	"penstock/internal/cluster/kv"
	"penstock/tests/support/kvtest"
)

func TestConformance(t *testing.T) {
	m := New(Options{})
	t.Cleanup(m.Close)
	kvtest.Run(t, kvtest.Backend{
		Open: func(t *testing.T, clients int) []kv.Store {
			var stores []kv.Store
			for range clients {
				s := m.Store()
				t.Cleanup(func() { _ = s.Close() })
				stores = append(stores, s)
			}
			return stores
		},
		Compact:  func(*testing.T) { m.Compact() },
		LeaseTTL: 100 * time.Millisecond,
	})
}

func write(t *testing.T, s kv.Store, key string) int64 {
	t.Helper()
	ok, rev, err := s.Txn(t.Context(), nil, []kv.Op{{Key: key, Value: []byte("x")}})
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	return rev
}

// With the caller's clock, leases end when the caller says so.
func TestClock(t *testing.T) {
	now := time.Unix(0, 0)
	m := New(Options{Now: func() time.Time { return now }})
	defer m.Close()
	s := m.Store()
	short, err := s.Grant(t.Context(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if ok, _, err := s.Txn(t.Context(), nil, []kv.Op{{Key: "k", Lease: short}}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	for _, step := range []struct {
		wait   time.Duration
		extend bool
		keys   int
	}{{999 * time.Millisecond, true, 1}, {999 * time.Millisecond, false, 1}, {time.Millisecond, false, 0}} {
		now = now.Add(step.wait)
		if m.Expire(); step.extend {
			if _, err := s.KeepAlive(t.Context(), short); err != nil {
				t.Fatal(err)
			}
		}
		if entries, _ := m.Entries(); len(entries) != step.keys {
			t.Fatalf("at %v: %v", now, entries)
		}
	}
}

// The history is bounded: a watch that is too far behind is told so.
func TestHistoryIsBounded(t *testing.T) {
	m := New(Options{})
	defer m.Close()
	s := m.Store()
	first := write(t, s, "k")
	var newest int64
	for range MaxHistoryCount + 10 {
		newest = write(t, s, "k")
	}
	if len(m.history) > MaxHistoryCount {
		t.Errorf("%d events are kept", len(m.history))
	}
	if err := s.Watch(t.Context(), "", first, func([]kv.Event, int64) {}); !errors.Is(err, kv.ErrCompacted) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	count := 0
	if err := s.Watch(ctx, "", newest-100, func(events []kv.Event, _ int64) {
		count += len(events)
		cancel()
	}); err != nil || count != 100 {
		t.Errorf("%d events, %v", count, err)
	}
}
