package partition

import (
	"testing"
	"time"

	"penstock/internal/node/inbox"
	"penstock/tests/support/faultaio"
)

// A put with a delay that arrives while a group is gathered joins that group. Its delay counts from its arrival, not
// from the beginning of the group: no message is due early.
func TestDelayCountsFromThePut(t *testing.T) {
	s := runStore(t, faultaio.New(faultaio.Options{}))
	pt, clock := s.part, s.clock
	limits := inbox.NewLimits(inbox.Sizes{
		MaxBatchBytes: 1 << 20, MaxMessageBytes: 1 << 20, MaxHeaderBytes: 1 << 10, MaxDefer: time.Hour,
	})
	var came int64
	done := make(chan error, 2)
	pt.OnCommitter(func() { // here the committer gathers a group
		for begun := clock.NowNs(); came < begun+int64(10*time.Millisecond); came = clock.NowNs() {
		}
		p := &inbox.Put{Messages: [][]byte{[]byte("later")}, Defer: time.Hour, Done: func(p *inbox.Put) { done <- p.Err }}
		err := limits.Measure(p)
		if err == nil {
			err = pt.Enqueue(t.Context(), p)
		}
		if err != nil {
			done <- err
		}
	}, func(err error) { done <- err })
	for range 2 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	due := pt.fold.Deferred // the committer owns the fold, but has no more work
	if len(due) != 1 || due[0].DueMs < came/int64(time.Millisecond)+time.Hour.Milliseconds() {
		t.Errorf("a message that came at %d ms is due at %+v", came/int64(time.Millisecond), due)
	}
}
