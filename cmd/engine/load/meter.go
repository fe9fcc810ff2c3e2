package load

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latencies are recorded in units of 100 ns up to 60 s, with three significant digits.
const (
	unit           = 100 * time.Nanosecond
	maxLatency     = int64(time.Minute / unit)
	precisionMany  = 2 // for more than manyMeterCount connections: memory
	precisionFew   = 3
	manyMeterCount = 64
)

// clock is the time of one run in nanoseconds since its start. What happens before warmUp is
// not measured; nothing new is sent from stop on.
type clock struct {
	base   time.Time
	warmUp int64
	stop   int64 // 0: never
}

func (c *clock) now() int64 { return int64(time.Since(c.base)) }

func (c *clock) over(now int64) bool { return c.stop != 0 && now >= c.stop }

// meter counts for one goroutine; only done is read by others while it runs.
type meter struct {
	hist     *hdrhistogram.Histogram
	done     atomic.Int64 // messages, warm-up included
	measured int64        // messages after the warm-up
	last     int64        // time of the last measured message
	_        [64]byte
}

func newMeter(connections int) *meter {
	digits := precisionFew
	if connections > manyMeterCount {
		digits = precisionMany
	}
	return &meter{hist: hdrhistogram.New(1, maxLatency, digits)}
}

// record counts n commands of batch messages each that were answered at now and sent at sent.
func (m *meter) record(c *clock, now, sent int64, n, batch int) {
	m.done.Store(m.done.Load() + int64(n*batch)) // one writer
	if now < c.warmUp {
		return
	}
	m.measured += int64(n * batch)
	m.last = now
	m.observe(now-sent, n)
}

func (m *meter) observe(latency int64, n int) {
	v := min(max(latency/int64(unit), 1), maxLatency)
	if err := m.hist.RecordValues(v, int64(n)); err != nil {
		panic("BUG: a latency does not fit the histogram: " + err.Error())
	}
}

// budget hands out the messages of a run that has a fixed number of them.
type budget struct {
	limited bool
	left    atomic.Int64
}

func newBudget(messages int64) *budget {
	b := &budget{limited: messages > 0}
	b.left.Store(messages)
	return b
}

// take returns how many of want messages may be sent.
func (b *budget) take(want int) int {
	if !b.limited {
		return want
	}
	left := b.left.Add(int64(-want))
	if left >= 0 {
		return want
	}
	return max(want+int(left), 0)
}

// faults keeps the first error of a run and counts all.
type faults struct {
	mu    sync.Mutex
	count int64
	first error
}

func (f *faults) add(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count++
	if f.first == nil {
		f.first = err
	}
}

func (f *faults) state() (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count, f.first
}
