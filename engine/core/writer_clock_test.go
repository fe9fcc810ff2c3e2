package core

import (
	"testing"

	"penstock/segment"
)

// The clock of the writer is ahead by what the batch says that was on its way for the shortest time. A new epoch is
// another writer's, and what a producer says of its own clock does not count.
func TestWriterClock(t *testing.T) {
	const second = int64(1e9)
	var w WriterClock
	for _, c := range []struct {
		epoch                  segment.Epoch
		created, appended, now int64
		ahead                  int64
	}{
		{1, 100, 100, 90, 10},
		{1, 101, 101, 95, 10},  // it came late
		{1, 102, 102, 91, 11},  // and this one early
		{1, 500, 103, 103, 11}, // a producer's clock
		{2, 104, 200, 104, 0},  // the clock of this writer is right; append times do not go back
		{3, 50, 200, 105, -55}, // an old batch, or a clock that is behind
	} {
		w.Saw(&segment.Header{Epoch: c.epoch, Created: c.created * second, Appended: c.appended * second}, c.now*second)
		if w.AheadNs != c.ahead*second {
			t.Errorf("%+v: it is ahead by %d s", c, w.AheadNs/second)
		}
	}
}
