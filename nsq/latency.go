package nsq

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"penstock/engine"
	"penstock/internal/lock"
)

// Latencies returns the constructor of what measures a channel's processing latency, for engine.Options.Latencies. That
// is the time from publish to FIN, over a window that moves by halves, as nsqd measures it with
// --e2e-processing-latency-percentile. Each percentile is above 0 and at most 1. Without any it returns nil, and
// nothing is measured. A channel with traffic takes about 70 KiB.
func Latencies(percentiles []float64, window time.Duration) (func() engine.LatencyRecorder, error) {
	for _, p := range percentiles {
		if !(p > 0 && p <= 1) {
			return nil, fmt.Errorf("nsq: %v is not a percentile: it must be above 0 and at most 1", p)
		}
	}
	if len(percentiles) == 0 {
		return nil, nil
	}
	if window < time.Millisecond {
		return nil, fmt.Errorf("nsq: latencies over a window of %v mean nothing: it must be a millisecond or more", window)
	}
	return func() engine.LatencyRecorder {
		return &sketch{percentiles: percentiles, half: window / 2, rotated: time.Now()}
	}, nil
}

// A sketch counts µs, to 1 %. What took longer than the longest delay counts as that.
const (
	maxSketchMicros = int64(50 * 24 * time.Hour / time.Microsecond)
	sketchDigits    = 2
)

// sketch is one channel's latencies in the current half of the window and in the half before. The engine records into
// it under the channel's lock, and /stats reads it: mu guards the fields behind it, and nothing is taken inside it. A
// restart begins it anew.
type sketch struct {
	percentiles []float64
	half        time.Duration

	mu      lock.Mutex[lock.NSQSketch]
	current *hdrhistogram.Histogram // nil: nothing was measured
	before  *hdrhistogram.Histogram
	rotated time.Time // when the current half began
}

// Record implements engine.LatencyRecorder.
func (s *sketch) Record(ns int64) { s.record(ns, time.Now()) }

func (s *sketch) record(ns int64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rotate(now)
	if s.current == nil {
		s.current = newHistogram()
	}
	_ = s.current.RecordValue(max(1, min(ns/1000, maxSketchMicros))) // it fails beyond its range only
}

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, maxSketchMicros, sketchDigits)
}

// rotate forgets what is older than the window. mu is held.
func (s *sketch) rotate(now time.Time) {
	switch age := now.Sub(s.rotated); {
	case age < s.half:
	case age < 2*s.half:
		s.current, s.before = s.before, s.current
		if s.current != nil {
			s.current.Reset()
		}
		s.rotated = s.rotated.Add(s.half)
	default: // nothing in the whole window: the memory goes, too
		s.current, s.before, s.rotated = nil, nil, now
	}
}

// addTo adds what was measured in the window.
func (s *sketch) addTo(sum *hdrhistogram.Histogram, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rotate(now)
	for _, h := range []*hdrhistogram.Histogram{s.current, s.before} {
		if h != nil {
			sum.Merge(h)
		}
	}
}

// latencyOf are the percentiles of what these channels measured together. If none of them measures, it is what /stats
// shows for a channel that is not measured.
func latencyOf(now time.Time, of ...engine.LatencyRecorder) latency {
	var sum *hdrhistogram.Histogram
	var percentiles []float64
	for _, r := range of {
		if s, ok := r.(*sketch); ok {
			if sum == nil {
				sum, percentiles = newHistogram(), s.percentiles
			}
			s.addTo(sum, now)
		}
	}
	if sum == nil {
		return unmeasured()
	}
	out := latency{Count: int(min(sum.TotalCount(), math.MaxInt32)), measured: true}
	for _, p := range percentiles {
		out.Percentiles = append(out.Percentiles, percentile{p, float64(sum.ValueAtQuantile(p*100) * 1000)})
	}
	return out
}

// text is as nsqd writes it; "" if nothing is measured.
func (l *latency) text() string {
	if !l.measured {
		return ""
	}
	var parts []string
	for _, p := range l.Percentiles {
		v, unit := p.Value, "ns"
		switch {
		case v > 1e9:
			v, unit = v/1e9, "s"
		case v > 1e6:
			v, unit = v/1e6, "ms"
		case v > 1e3:
			v, unit = v/1e3, "us"
		}
		parts = append(parts, fmt.Sprintf("%.1f%s", v, unit))
	}
	return strings.Join(parts, ", ")
}
