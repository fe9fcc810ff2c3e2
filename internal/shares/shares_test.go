package shares

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestShare(t *testing.T) {
	b := New(&Resource{Parts: 4}, 100, 10)
	for _, step := range []struct {
		who  string
		n    int64
		want error
	}{
		{"a", 20, nil},
		{"a", 6, ErrShare},
		{"a", 5, nil},
		{"b", 25, nil},
		{"c", 25, nil},
		{"d", 20, nil},
		{"e", 6, ErrFull},
		{"e", 5, nil},
	} {
		if err := b.TryTake(step.who, step.n); err != step.want {
			t.Errorf("%s takes %d: %v, want %v", step.who, step.n, err, step.want)
		}
	}
	b.Give("a", 25)
	if b.Used() != 75 || len(b.by) != 4 {
		t.Errorf("%d are used, by %v", b.Used(), b.by)
	}
	if b := New(&Resource{Parts: 4}, 100, 60); b.Share() != 60 {
		t.Errorf("a share of %d cannot take the largest", b.Share())
	}
}

// Whoever waits for its own share holds up nobody else. Whoever waits for the node goes first.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(&Resource{Parts: 4}, 100, 25)
		ctx, cancel := context.WithCancel(t.Context())
		done := map[string]chan error{}
		take := func(name, who string, n int64) {
			done[name] = make(chan error, 1)
			go func() { done[name] <- b.Take(ctx, who, n) }()
			synctest.Wait()
		}
		ended := func(name string) bool { return len(done[name]) == 1 }
		take("a1", "a", 25)
		take("a2", "a", 25) // waits for its own share
		take("b1", "b", 25)
		take("c1", "c", 25)
		take("d1", "d", 20)
		take("f0", "f", 5) // a2 does not hold it up, although little is left
		if !ended("f0") {
			t.Error("one that waits for its share holds up another")
		}
		b.Give("f", 5)
		take("e1", "e", 20) // waits for the node
		take("f1", "f", 5)  // would fit, and comes later
		for name, want := range map[string]bool{
			"a1": true, "a2": false, "b1": true, "c1": true, "d1": true, "e1": false, "f1": false,
		} {
			if ended(name) != want {
				t.Errorf("%s: %v", name, ended(name))
			}
		}
		if err := b.TryTake("g", 1); err != ErrFull {
			t.Errorf("somebody goes before those who wait: %v", err)
		}
		b.Give("d", 20)
		synctest.Wait()
		if !ended("e1") || !ended("f1") || ended("a2") {
			t.Errorf("after room came: %v %v %v", ended("e1"), ended("f1"), ended("a2"))
		}
		b.Give("a", 25)
		synctest.Wait()
		if !ended("a2") {
			t.Error("a share is free, and nobody gets it")
		}
		take("a3", "a", 5)
		cancel()
		synctest.Wait()
		if err := <-done["a3"]; err != ErrShare {
			t.Errorf("who gave up hears: %v", err)
		}
		if b.waiting.Len() != 0 {
			t.Errorf("%d wait", b.waiting.Len())
		}
	})
}

// Nothing gets lost, and no bound is passed, whoever comes and goes.
func TestTogether(t *testing.T) {
	b := New(&Resource{Parts: 4}, 1000, 50)
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			r, who := rand.New(rand.NewPCG(uint64(i), 1)), fmt.Sprint(i%5)
			for range 300 {
				n := 1 + r.Int64N(50)
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(200))*time.Microsecond)
				err := b.Take(ctx, who, n)
				cancel()
				if err != nil && b.TryTake(who, n) != nil {
					continue
				}
				b.mu.Lock()
				if b.used > 1000 || b.by[who] > 250 {
					t.Errorf("%d are used, %d by %s", b.used, b.by[who], who)
				}
				b.mu.Unlock()
				b.Give(who, n)
			}
		})
	}
	all.Wait()
	if b.used != 0 || len(b.by) != 0 || b.waiting.Len() != 0 {
		t.Errorf("%d are used, by %v", b.used, b.by)
	}
}
