package engine

import (
	"math"
	"sync/atomic"
	"time"

	"penstock/internal/lock"
)

// clock is the engine's time. It reads the wall clock once, when the engine opens, and then counts by the monotonic
// clock alone: a wall clock that steps by hours moves no timeout, no delay, no deadline and no append time of a
// running process. A node takes over a corrected wall clock when it is restarted; until then its messages carry the
// old one's times, and one line in the log says so.
//
// Delays (DPUB, REQ) are stored as times of this clock. After a restart, or at another node, they are as right as the
// wall clock was when either process began; where the clock was ahead they are corrected, see due_clock.go.
//
// What is removed by its age is a question of its own, because removing cannot be undone: see ages, and proven.
type clock struct {
	wall func() time.Time     // steps as somebody sets it
	mono func() time.Duration // from any beginning, never steps
	base int64                // ns since 1970 at mono's zero, by the wall clock as it was when the engine opened

	steps  atomic.Uint64 // counted by look
	offset atomic.Int64  // ns by which the wall clock was ahead of this one at the last look

	mu            lock.Mutex[lock.Clock]
	seen          int64         // offset after the last step
	since         time.Duration // mono when seen was seen first
	trusted       bool          // the wall clock was believed once,
	trustedOffset int64         // at this offset; it is never asked again
}

const (
	// maxReadGap is how far apart the two readings of the monotonic clock around one of the wall clock may be.
	// Between them the process may have been off the processor, and the time of that would look like a step.
	maxReadGap = time.Millisecond
	// maxReadTries bounds the readings; after them the best one counts, with an error of half its gap.
	maxReadTries = 100
	// clockStep is what counts as a step of the wall clock. NTP steps from 128 ms on and corrects less by rate, which
	// the monotonic clock follows.
	clockStep = 500 * time.Millisecond
	// clockTrust is how long the wall clock must have agreed with the monotonic one before the age of what an earlier
	// process stored is counted by it.
	clockTrust = 10 * time.Minute
)

func newClock(wall func() time.Time, mono func() time.Duration) *clock {
	c := &clock{wall: wall, mono: mono}
	c.base, _ = c.read()
	c.since = mono()
	return c
}

// read returns how far the wall clock is ahead of the monotonic one, in ns, and within which error.
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

// nowNs is the engine's time in ns since 1970.
func (c *clock) nowNs() int64 { return c.base + int64(c.mono()) }

// compare compares the two clocks. It returns by how much the wall clock stepped since the last look, or 0. The engine's
// watch calls it.
func (c *clock) compare() (step time.Duration) {
	offset, gap := c.read()
	if gap > clockStep/4 {
		return 0 // the next look may get the processor for long enough
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
	// A clock that was put forward by hours is believed hours later: what it says of the past cannot be checked, only
	// that it goes on.
	if !c.trusted && now-c.since >= max(clockTrust, time.Duration(c.seen)) {
		c.trusted, c.trustedOffset = true, c.seen
	}
	return step
}

// proven is the time of day as far as data may be removed by it. The rule: a wall clock that has not stepped for
// clockTrust, and for as long as it was put forward since the start, is believed, once; from then on the time goes by
// the monotonic clock, whatever the wall clock does. Before, ok is false.
func (c *clock) proven() (ns int64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nowNs() + c.trustedOffset, c.trusted
}

// clockLogEvery bounds the lines about steps: a clock that steps all the time would fill the log.
const clockLogEvery = time.Minute

// watchClock is called by watch.
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

// until is how long it is to a time of the engine's clock.
func (e *Engine) until(dueMs int64) time.Duration {
	return time.Duration(dueMs*int64(time.Millisecond) - e.clock.nowNs())
}
