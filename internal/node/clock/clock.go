// Package clock has the time of a node: the engine's clock (Clock), which gives messages their times and ends delays,
// and the lease (Lease), which says until when a node of a cluster may serve. All packages of the node use it. It reads
// the clocks that it is given, and imports only package lock.
package clock

import (
	"math"
	"sync/atomic"
	"time"

	"penstock/internal/lock"
)

// Clock is the engine's time. It reads the wall clock once, when the engine opens, and from then on counts only by the
// monotonic clock. So a wall clock that steps by hours moves no timeout, delay, deadline or append time of a running
// process. A node adopts a corrected wall clock only when it restarts. Until then its messages carry times of the old
// clock, and the log says so.
//
// Delays (DPUB, REQ) are stored as times of this clock. After a restart or on another node they are as accurate as the
// wall clocks were when both processes started. If the clock of the writer was ahead, the delays are corrected; see
// internal/node/dueclock/dueclock.go. The nodes of a cluster compare their clocks, and one that is wrong leads
// nothing that another can lead; see internal/node/cluster_clocks.go.
//
// Removing data by age cannot be undone, so it needs more certainty: see retain.Ages and Proven.
//
// mu guards the fields below it. Compare writes them, on the goroutine of the engine's watch. Proven reads them, on the
// goroutine of the segments' flusher. A crash leaves nothing of a clock: the next process reads the wall clock again.
type Clock struct {
	wall      func() time.Time     // the wall clock, which may step
	monotonic func() time.Duration // any origin, never steps
	base      int64                // ns since 1970 at monotonic's origin, by the wall clock in New

	steps  atomic.Uint64 // steps of the wall clock that Compare has found
	offset atomic.Int64  // ns by which the wall clock was ahead of this one at the last Compare

	mu            lock.Mutex[lock.Clock]
	seen          int64         // offset after the last step
	since         time.Duration // by monotonic: when the offset seen was first measured
	trusted       bool          // the wall clock was trusted once;
	trustedOffset int64         // the offset at that time, used for good
}

const (
	// maxReadGap is the largest accepted time between the two readings of the monotonic clock around one reading of the
	// wall clock. If the process lost its processor in between, that time would look like a step.
	maxReadGap = time.Millisecond
	// maxReadTries bounds the attempts. After that the best attempt counts, with an error of half its gap.
	maxReadTries = 100
	// clockStep is the smallest change that counts as a step of the wall clock. NTP steps a clock that is wrong by 128
	// ms or more. It corrects smaller errors by the rate of the clock, which the monotonic clock follows.
	clockStep = 500 * time.Millisecond
	// clockTrust is how long the wall clock must have agreed with the monotonic clock before it is used for the age of
	// data from an earlier process.
	clockTrust = 10 * time.Minute
)

// New returns a Clock that reads the wall clock now. mono is platform.Host.Mono.
func New(wall func() time.Time, mono func() time.Duration) *Clock {
	c := &Clock{wall: wall, monotonic: mono}
	c.base, _ = c.read()
	c.since = mono()
	return c
}

// read returns how many ns the wall clock is ahead of the monotonic clock, and how long the measurement took.
func (c *Clock) read() (offset int64, gap time.Duration) {
	gap = math.MaxInt64
	for range maxReadTries {
		before := c.monotonic()
		wall := c.wall().UnixNano()
		after := c.monotonic()
		if d := after - before; d < gap {
			gap, offset = d, wall-int64(before+d/2)
		}
		if gap <= maxReadGap {
			break
		}
	}
	return offset, gap
}

// NowNs returns the engine's time in ns since 1970.
func (c *Clock) NowNs() int64 { return c.base + int64(c.monotonic()) }

// Mono returns the time of the monotonic clock, from any origin.
func (c *Clock) Mono() time.Duration { return c.monotonic() }

// Steps returns how many steps of the wall clock Compare has found.
func (c *Clock) Steps() uint64 { return c.steps.Load() }

// Ahead returns how far the wall clock was ahead of this clock at the last Compare.
func (c *Clock) Ahead() time.Duration { return time.Duration(c.offset.Load()) }

// Compare compares the two clocks. It returns how far the wall clock has stepped since the last call, or 0.
// The engine's watch calls it every 250 ms.
func (c *Clock) Compare() (step time.Duration) {
	offset, gap := c.read()
	if gap > clockStep/4 {
		return 0 // too inaccurate; the next call may be less disturbed
	}
	offset -= c.base
	c.offset.Store(offset)
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.monotonic()
	if d := time.Duration(offset - c.seen); d > clockStep || d < -clockStep {
		c.seen, c.since, step = offset, now, d
		c.steps.Add(1)
	}
	// A clock that was put forward by some hours is trusted only after as many hours. Nothing can confirm the new time
	// except that the clock goes on without a step.
	if !c.trusted && now-c.since >= max(clockTrust, time.Duration(c.seen)) {
		c.trusted, c.trustedOffset = true, c.seen
	}
	return step
}

// Proven returns the time of day for removing data by age. The wall clock is trusted once it has not stepped for
// clockTrust, and for at least as long as it was put forward since the start. From then on the time counts by the
// monotonic clock, whatever the wall clock does. Before that, ok is false.
func (c *Clock) Proven() (ns int64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.NowNs() + c.trustedOffset, c.trusted
}

// CeilMs converts ns to ms and rounds up, so that nothing is due early.
func CeilMs(ns int64) int64 { return (ns + int64(time.Millisecond) - 1) / int64(time.Millisecond) }

// UnixNs returns the time in ns since 1970, or the least or largest int64 if it is before 1678 or after 2262, which
// time.Time.UnixNano does not say.
func UnixNs(t time.Time) int64 {
	switch {
	case t.Before(time.Unix(0, math.MinInt64)):
		return math.MinInt64
	case t.After(time.Unix(0, math.MaxInt64)):
		return math.MaxInt64
	}
	return t.UnixNano()
}
