package load

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latencies are recorded in units of 100 ns up to 60 s, with three significant digits, or two if there are many
// connections.
const (
	unit           = 100 * time.Nanosecond
	maxLatency     = int64(time.Minute / unit)
	precisionMany  = 2 // for more than manyMeterCount connections, to save memory
	precisionFew   = 3
	manyMeterCount = 64
)

// clock measures the time of one run, in nanoseconds since its start. Events before warmUp are not measured, and from
// stop on nothing new is sent.
type clock struct {
	base   time.Time
	warmUp int64
	stop   int64 // 0: never
}

func (c *clock) now() int64 { return int64(time.Since(c.base)) }

func (c *clock) over(now int64) bool { return c.stop != 0 && now >= c.stop }

// meter counts the messages of one goroutine. While that goroutine runs, others read only done.
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

// record counts n commands of batch messages each, which were sent at sent and answered at now.
func (m *meter) record(c *clock, now, sent int64, n, batch int) {
	m.done.Store(m.done.Load() + int64(n*batch)) // there is only one writer
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

// budget limits the number of messages of a run.
type budget struct {
	limited bool
	left    atomic.Int64
}

func newBudget(messages int64) *budget {
	b := &budget{limited: messages > 0}
	b.left.Store(messages)
	return b
}

// take returns how many of want messages may still be sent, and deducts them.
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

// faults keeps the first error of a run and counts all errors.
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
