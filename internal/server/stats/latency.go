package stats

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"penstock/internal/lock"
	"penstock/internal/node/message"
)

// Latencies returns a function that makes the recorder of a channel's processing latency, for node.Options.Latencies.
// The latency is the time from publish to FIN, over a window that moves by halves, as nsqd measures it with
// --e2e-processing-latency-percentile. Each percentile is above 0 and at most 1. Without percentiles Latencies returns
// nil, and nothing is measured. The recorder of a channel with traffic takes about 70 KiB.
func Latencies(percentiles []float64, window time.Duration) (func() message.LatencyRecorder, error) {
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
	return func() message.LatencyRecorder {
		return &sketch{percentiles: percentiles, half: window / 2, rotated: time.Now()}
	}, nil
}

// A sketch counts in µs with an error of at most 1 %. A latency above the longest delay counts as that delay.
const (
	maxSketchMicros = int64(50 * 24 * time.Hour / time.Microsecond)
	sketchDigits    = 2
)

// sketch holds one channel's latencies in the current half of the window and in the previous half. The engine records
// under the channel's lock, and /stats reads. mu guards the fields below it, and no other lock is taken while it is
// held. After a restart it is empty.
type sketch struct {
	percentiles []float64
	half        time.Duration

	mu      lock.Mutex[lock.NSQSketch]
	current *hdrhistogram.Histogram // nil: no measurements
	before  *hdrhistogram.Histogram
	rotated time.Time // when the current half began
}

func (s *sketch) Record(ns int64) { s.record(ns, time.Now()) }

func (s *sketch) record(ns int64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rotate(now)
	if s.current == nil {
		s.current = newHistogram()
	}
	_ = s.current.RecordValue(max(1, min(ns/1000, maxSketchMicros))) // it fails only for values out of range
}

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, maxSketchMicros, sketchDigits)
}

// rotate drops measurements older than the window. The caller holds s.mu.
func (s *sketch) rotate(now time.Time) {
	switch age := now.Sub(s.rotated); {
	case age < s.half:
	case age < 2*s.half:
		s.current, s.before = s.before, s.current
		if s.current != nil {
			s.current.Reset()
		}
		s.rotated = s.rotated.Add(s.half)
	default: // no measurements in the whole window: free the memory, too
		s.current, s.before, s.rotated = nil, nil, now
	}
}

// addTo adds the measurements in the window to sum.
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

// latencyOf returns the percentiles over all measurements of these channels. If none of the channels is measured, it
// returns the latency that /stats shows for such a channel.
func latencyOf(now time.Time, of ...message.LatencyRecorder) Latency {
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
		return Unmeasured()
	}
	out := Latency{Count: int(min(sum.TotalCount(), math.MaxInt32)), Measured: true}
	for _, p := range percentiles {
		out.Percentiles = append(out.Percentiles, Percentile{p, float64(sum.ValueAtQuantile(p*100) * 1000)})
	}
	return out
}

// text returns the latency in nsqd's format, or "" if it is not measured.
func (l *Latency) text() string {
	if !l.Measured {
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
