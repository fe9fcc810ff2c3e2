package engine

import (
	"testing"
	"time"

	"penstock/segment/aio/faultaio"
)

// What came while the process ran is as old as that, whatever times its leader gave it: the times count for what was
// there at the start and for nothing else.
func TestAgedTo(t *testing.T) {
	e := openSmall(t, faultaio.New(faultaio.Options{Seed: 1}))
	topic, err := e.Topic(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	put := func() {
		if _, err := topic.Publish(t.Context(), []byte("m")); err != nil {
			t.Fatal(err)
		}
	}
	pt := topic.partitions()[0]
	put()
	old, _, _ := pt.log.End()
	put() // as if a leader whose clock is behind had sent it just now
	middle := e.clock.NowNs()
	time.Sleep(20 * time.Millisecond)
	put()
	pt.ages.Found(old, middle, e.clock.Mono()-time.Hour)
	limit := time.Duration(e.clock.NowNs() - middle - int64(10*time.Millisecond))
	if to := e.store.flusher.agedTo(pt, limit); to != old {
		t.Errorf("what lies below %d is too old, and what came since the start lies behind %d", to, old)
	}
}
