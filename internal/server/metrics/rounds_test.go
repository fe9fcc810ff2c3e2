package metrics

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Scrapes at the same time cost one round, and one that hangs keeps no scrape waiting for longer than it may.
func TestRounds(t *testing.T) { synctest.Test(t, testRounds) }

func testRounds(t *testing.T) {
	var reads atomic.Int64
	hang := make(chan struct{})
	r := rounds{read: func() *objects {
		reads.Add(1)
		<-hang
		return &objects{at: time.Now()}
	}}
	if o := r.latest(time.Millisecond); o != nil {
		t.Errorf("a round that hangs returned %+v", o)
	}
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			if r.latest(time.Minute) == nil {
				t.Error("no result of the round")
			}
		})
	}
	synctest.Wait() // the scrapes wait
	close(hang)
	all.Wait()
	if n := reads.Load(); n != 1 {
		t.Errorf("%d rounds for eleven scrapes at once", n)
	}
	before := r.latest(time.Minute)
	hang = make(chan struct{})
	if o := r.latest(time.Millisecond); o != before {
		t.Error("while a round hangs, scrapes do not get the one before")
	}
	close(hang)
}
