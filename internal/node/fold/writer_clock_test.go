package fold

import (
	"math"
	"testing"

	"penstock/segment"
)

// The writer's clock is ahead by what the fastest batch shows. A new epoch belongs to another writer, and the
// producer's time does not count where the leader's is earlier.
func TestWriterClock(t *testing.T) {
	const second = int64(1e9)
	var w WriterClock
	for _, c := range []struct {
		epoch                  segment.Epoch
		created, appended, now int64
		ahead                  int64
	}{
		{1, 100, 100, 90, 10},
		{1, 101, 101, 95, 10},  // this batch was slow
		{1, 102, 102, 91, 11},  // and this one fast
		{1, 500, 103, 103, 11}, // a producer's clock
		{2, 104, 200, 104, 0},  // the clock of this writer is right; append times do not go back
		{3, 50, 200, 105, -55}, // an old batch, or a clock that is behind
	} {
		w.Saw(&segment.Header{Epoch: c.epoch, Created: c.created * second, Appended: c.appended * second}, c.now*second)
		if w.AheadNs != c.ahead*second {
			t.Errorf("%+v: it is ahead by %d s", c, w.AheadNs/second)
		}
	}
	// A producer may claim any time. If the difference wrapped, a leader would make all delays end at once.
	w.Saw(&segment.Header{Epoch: 4, Created: math.MinInt64, Appended: 200 * second}, 200*second)
	if w.AheadNs > 0 {
		t.Errorf("a producer's time long before 1970: it is ahead by %d s", w.AheadNs/second)
	}
}
