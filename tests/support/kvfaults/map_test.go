package kvfaults

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"penstock/internal/cluster/kv"
	"penstock/internal/cluster/kv/memory"
	"penstock/tests/support/kvtest"
)

func TestConformance(t *testing.T) {
	m := New(memory.Options{})
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
		m := New(memory.Options{})
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
	m := New(memory.Options{})
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

// A client that is cut off and closed, or whose map is, ends its watch.
func TestCutAndClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(memory.Options{})
		ended := make(chan error)
		for _, name := range []string{"a", "b"} {
			s := m.Store(name)
			m.Cut(name)
			go func() { ended <- s.Watch(t.Context(), "", 1, func([]kv.Event, int64) {}) }()
			synctest.Wait()
			if name == "a" {
				_ = s.Close()
			} else {
				m.Close()
			}
			if err := <-ended; !errors.Is(err, kv.ErrClosed) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}
