package engine

import (
	"testing"
	"time"

	"penstock/engine/inbox"
	"penstock/segment/aio/faultaio"
)

// A put with a delay that comes while a group is gathered joins that group. Its delay counts from when it came, not
// from when the group was begun: nothing is due early.
func TestDelayCountsFromThePut(t *testing.T) {
	e := openSmall(t, faultaio.New(faultaio.Options{}))
	topic, err := e.Topic(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	pt := topic.partitions()[0]
	var came int64
	done := make(chan error, 2)
	pt.runOnCommitter(func() { // the committer gathers
		for begun := e.clock.NowNs(); came < begun+int64(10*time.Millisecond); came = e.clock.NowNs() {
		}
		p := &inbox.Put{Messages: [][]byte{[]byte("later")}, Defer: time.Hour, Done: func(p *inbox.Put) { done <- p.Err }}
		if err := topic.Submit(p); err != nil {
			done <- err
		}
	}, func(err error) { done <- err })
	for range 2 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	due := pt.fold.Deferred // the committer's, which has nothing to do any more
	if len(due) != 1 || due[0].DueMs < came/int64(time.Millisecond)+time.Hour.Milliseconds() {
		t.Errorf("a message that came at %d ms is due at %+v", came/int64(time.Millisecond), due)
	}
}
