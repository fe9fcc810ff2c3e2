package memory

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
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
			for i := range clients {
				s := m.Store(fmt.Sprint(i))
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

// A client that is cut off can do nothing and sees nothing, and sees everything when it is back.
func TestCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(Options{})
		defer m.Close()
		a, b := m.Store("a"), m.Store("b")
		var heard []string
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			if err := a.Watch(ctx, "", 1, func(events []kv.Event, _ int64) {
				for _, e := range events {
					heard = append(heard, e.Key)
				}
			}); err != nil {
				t.Error(err)
			}
		}()
		write(t, b, "1")
		synctest.Wait()
		m.Cut("a")
		write(t, b, "2")
		write(t, b, "3")
		synctest.Wait()
		if len(heard) != 1 {
			t.Errorf("it heard %v", heard)
		}
		if _, _, err := a.List(ctx, ""); !errors.Is(err, kv.ErrUnavailable) {
			t.Errorf("List: %v", err)
		}
		if _, err := a.Grant(ctx, time.Second); !errors.Is(err, kv.ErrUnavailable) {
			t.Errorf("Grant: %v", err)
		}
		m.Heal("a")
		synctest.Wait()
		if fmt.Sprint(heard) != "[1 2 3]" {
			t.Errorf("it heard %v", heard)
		}
	})
}

// A lost answer does not mean that the transaction was not applied.
func TestLoseAnswers(t *testing.T) {
	m := New(Options{})
	defer m.Close()
	s := m.Store("a")
	m.LoseAnswers("a", "k", 1)
	write(t, s, "another")
	if _, _, err := s.Txn(t.Context(), nil, []kv.Op{{Key: "k"}}); !errors.Is(err, kv.ErrUnavailable) {
		t.Fatal(err)
	}
	if entries, _ := m.Entries(); len(entries) != 2 {
		t.Fatal("it was not applied")
	}
	write(t, s, "l")
}

// With the caller's clock, leases end when the caller says so.
func TestClock(t *testing.T) {
	now := time.Unix(0, 0)
	m := New(Options{Now: func() time.Time { return now }})
	defer m.Close()
	s := m.Store("a")
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
	s := m.Store("a")
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
