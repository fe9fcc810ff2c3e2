package stats

import (
	"testing"
	"time"
)

// A measurement counts for the length of the window and no longer. /stats reports latencies with an error of at most 1
// %.
func TestSketch(t *testing.T) {
	made, err := Latencies([]float64{1, 0.5}, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	s := made().(*sketch)
	at := func(after time.Duration) time.Time { return s.rotated.Add(after) }
	start := s.rotated
	now := func(after time.Duration) time.Time { return start.Add(after) }
	if l := latencyOf(at(0), s); l.Count != 0 || len(l.Percentiles) != 2 || l.Percentiles[0] != (Percentile{Quantile: 1}) {
		t.Errorf("with nothing measured: %+v", l)
	}
	for i := range 1000 {
		s.record(int64(i+1)*int64(time.Millisecond), now(time.Second))
	}
	near := func(got, want float64) bool { return got > want*0.99 && got < want*1.01 }
	check := func(after time.Duration, count int, top, middle time.Duration) {
		t.Helper()
		l := latencyOf(now(after), s)
		if l.Count != count || !near(l.Percentiles[0].Value+1, float64(top)+1) ||
			!near(l.Percentiles[1].Value+1, float64(middle)+1) {
			t.Errorf("after %v: %+v, want %d, %v, %v", after, l, count, top, middle)
		}
	}
	check(2*time.Second, 1000, time.Second, 500*time.Millisecond)
	for range 1000 {
		s.record(int64(10*time.Second), now(6*time.Second))
	}
	check(7*time.Second, 2000, 10*time.Second, time.Second)
	check(11*time.Second, 1000, 10*time.Second, 10*time.Second)
	s.record(-5, now(12*time.Second))
	s.record(1<<62, now(12*time.Second))
	if l := latencyOf(now(16*time.Second), s); l.Count != 2 || l.Percentiles[0].Value < float64(49*24*time.Hour) ||
		l.Percentiles[1].Value > 2000 {
		t.Errorf("at the ends of the range: %+v", l)
	}
	check(time.Minute, 0, 0, 0)
	if s.current != nil || s.before != nil {
		t.Error("it keeps its memory although nothing is in the window")
	}
	for _, bad := range [][]float64{{0}, {1.1}, {0.5, -1}} {
		if _, err := Latencies(bad, time.Minute); err == nil {
			t.Errorf("%v is taken", bad)
		}
	}
	if _, err := Latencies([]float64{1}, 0); err == nil {
		t.Error("no window is taken")
	}
	if made, err := Latencies(nil, 0); made != nil || err != nil {
		t.Errorf("without percentiles: %v", err)
	}
}
