package remote

import (
	"bytes"
	"testing"
	"time"

	"penstock/internal/node/message"
)

// Messages that time out are paid back in the same order in every run, because a simulation repeats its frames.
func TestExpiredIsPaidBackInOneOrder(t *testing.T) {
	ops := func() []byte {
		l := &testLease{now: time.Hour}
		l.extend(time.Hour)
		r := &Consumer{rs: newTestConsumers(t, l), maxBytes: 1, unfinished: map[message.ID]unfinishedMessage{}}
		leg := &leg{r: r}
		for i := range 8 {
			r.unfinished[message.ID(i)] = unfinishedMessage{l: leg, bytes: 100 + i}
		}
		r.expireUnfinished()
		return leg.ops
	}
	first := ops()
	for range 50 {
		if !bytes.Equal(first, ops()) {
			t.Fatal("two runs pay back in different orders")
		}
	}
}
