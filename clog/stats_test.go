package clog

import "testing"

// A quantile of the flush times is the upper end of the bucket that holds it.
func TestFlushMicros(t *testing.T) {
	var s Stats
	if at := s.FlushMicros(0.5); at != 0 {
		t.Errorf("without a flush the median is %d µs", at)
	}
	s.Flush[3], s.Flush[10] = 99, 1
	for q, want := range map[float64]int64{0.5: 8, 0.99: 8, 1: 1024} {
		if at := s.FlushMicros(q); at != want {
			t.Errorf("quantile %v is %d µs, not %d", q, at, want)
		}
	}
}
