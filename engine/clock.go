package engine

import (
	"math"
	"sync/atomic"
	"time"

	"penstock/internal/lock"
)

// clock is the engine's time. It reads the wall clock once, when the engine opens, and then counts by the monotonic
// clock only. So a wall clock that steps by hours moves no timeout, delay, deadline or append time of a running
// process. A node takes over a corrected wall clock only when it restarts; until then its messages carry times of the
// old one, and the log says so.
//
// Delays (DPUB, REQ) are stored as times of this clock. After a restart or on another node they are as accurate as the
// wall clocks at the starts of both processes. If the clock of the writer was ahead they are corrected, see
// due_clock.go.
//
// Removing data by age cannot be undone, so it needs more certainty: see ages and proven.
//
// mu guards the fields below it. compare writes them, on the goroutine of watch; proven reads them on the flusher's.
type clock struct {
	wall func() time.Time     // the wall clock, which may step
	mono func() time.Duration // the monotonic clock: any zero, never steps
	base int64                // ns since 1970 at mono's zero, by the wall clock as it was when the engine opened

	steps  atomic.Uint64 // steps of the wall clock that compare has seen
	offset atomic.Int64  // ns by which the wall clock was ahead of this one at the last compare

	mu            lock.Mutex[lock.Clock]
	seen          int64         // offset after the last step
	since         time.Duration // mono when seen was first measured
	trusted       bool          // the wall clock was trusted once,
	trustedOffset int64         // at this offset; it is never asked again
}

const (
	// maxReadGap is the largest accepted time between the two readings of the monotonic clock around one of the wall
	// clock. If the process lost the processor in between, that time would look like a step.
	maxReadGap = time.Millisecond
	// maxReadTries bounds the attempts. After them the best one counts, with an error of half its gap.
	maxReadTries = 100
	// clockStep is the smallest change that counts as a step of the wall clock. NTP steps from 128 ms on. Smaller errors
	// it corrects by rate, which the monotonic clock follows.
	clockStep = 500 * time.Millisecond
	// clockTrust is how long the wall clock must have agreed with the monotonic one before it is used for the age of data
	// from an earlier process.
	clockTrust = 10 * time.Minute
)

func newClock(wall func() time.Time, mono func() time.Duration) *clock {
	c := &clock{wall: wall, mono: mono}
	c.base, _ = c.read()
	c.since = mono()
	return c
}

// read returns by how many ns the wall clock is ahead of the monotonic one, and the time that the measurement took.
func (c *clock) read() (offset int64, gap time.Duration) {
	gap = math.MaxInt64
	for range maxReadTries {
		before := c.mono()
		wall := c.wall().UnixNano()
		after := c.mono()
		if d := after - before; d < gap {
			gap, offset = d, wall-int64(before+d/2)
		}
		if gap <= maxReadGap {
			break
		}
	}
	return offset, gap
}

// nowNs returns the engine's time in ns since 1970.
func (c *clock) nowNs() int64 { return c.base + int64(c.mono()) }

// compare compares the two clocks. It returns by how much the wall clock stepped since the last call, or 0. The
// engine's watch calls it.
func (c *clock) compare() (step time.Duration) {
	offset, gap := c.read()
	if gap > clockStep/4 {
		return 0 // too inaccurate; the next call may be less disturbed
	}
	offset -= c.base
	c.offset.Store(offset)
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.mono()
	if d := time.Duration(offset - c.seen); d > clockStep || d < -clockStep {
		c.seen, c.since, step = offset, now, d
		c.steps.Add(1)
	}
	// A clock that was put forward by some hours is trusted only after as many hours: nothing can confirm the new time,
	// except that the clock goes on without a step.
	if !c.trusted && now-c.since >= max(clockTrust, time.Duration(c.seen)) {
		c.trusted, c.trustedOffset = true, c.seen
	}
	return step
}

// proven returns the time of day for removing data by age. The rule: a wall clock is trusted once it has not stepped
// for clockTrust, and for as long as it was put forward since the start. From then on the time counts by the monotonic
// clock, whatever the wall clock does. Before that, ok is false.
func (c *clock) proven() (ns int64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nowNs() + c.trustedOffset, c.trusted
}

// clockLogEvery is the least time between two lines about steps.
const clockLogEvery = time.Minute

// watchClock logs a step of the wall clock. told is when it logged last. watch calls it.
func (e *Engine) watchClock(told *time.Time) {
	step := e.clock.compare()
	if step == 0 || !told.IsZero() && e.host.Since(*told) < clockLogEvery {
		return
	}
	*told = e.host.Instant()
	ahead := time.Duration(e.clock.offset.Load())
	e.log.Warn("the wall clock of this node was set: timeouts, delays and retention go on by the time that has passed,"+
		" and nothing is removed because of it. New messages carry the time of the clock as it was at the start;"+
		" restart the node if the new time is the right one",
		"by", step.Round(time.Millisecond), "now_ahead_by", ahead.Round(time.Millisecond), "steps", e.clock.steps.Load())
}

// until returns the duration until a time of the engine's clock.
func (e *Engine) until(dueMs int64) time.Duration {
	return time.Duration(dueMs*int64(time.Millisecond) - e.clock.nowNs())
}
