package metrics

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// durationBuckets is the number of buckets of a histogram of durations. Bucket i counts durations of less than 1<<i µs
// that are not in an earlier bucket; the last one counts all others, those of 4.2 s and longer.
const durationBuckets = 24

// Durations is a histogram of durations. Its zero value is empty. Any goroutine may call its methods.
type Durations struct {
	nanos   atomic.Uint64
	buckets [durationBuckets]atomic.Uint64
}

// Observe counts one duration.
func (d *Durations) Observe(took time.Duration) {
	took = max(took, 0)
	d.nanos.Add(uint64(took))
	d.buckets[min(bits.Len64(uint64(took.Microseconds())), durationBuckets-1)].Add(1)
}

// Counts returns how many durations were counted in each bucket: bucket i has those of less than 1<<i µs that are in no
// earlier one, and the last one all others.
func (d *Durations) Counts() []uint64 {
	out := make([]uint64, durationBuckets)
	for i := range out {
		out[i] = d.buckets[i].Load()
	}
	return out
}

// durations are the counts of a histogram per bucket, with the sum of what was counted.
type durations struct {
	counts []uint64
	nanos  uint64
}

func (w writer) durations(f *family, d durations, labels ...string) {
	buckets, sum := make(map[float64]uint64, len(d.counts)), uint64(0)
	for i, n := range d.counts {
		if sum += n; i < len(d.counts)-1 {
			buckets[float64(uint64(1)<<i)/1e6] = sum
		}
	}
	w.out <- prometheus.MustNewConstHistogram(f.desc, sum, float64(d.nanos)/1e9, buckets, labels...)
}
