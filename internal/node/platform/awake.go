package platform

import "sync/atomic"

// bootClock counts the time since begin, in ns, including the time in which the whole machine was suspended (to memory
// or disk). Go's monotonic clock does not count that time, but the store and the other nodes do. If a lease were
// measured by the monotonic clock, the node would believe in it after the machine woke up, for as long as the
// suspension had lasted.
//
// Reading CLOCK_BOOTTIME costs a system call, and now is called for each message that is delivered or finished. So now
// reads only the cheap clocks. The difference between the wall clock and the monotonic clock stays the same unless the
// machine was suspended or the wall clock was set, and only if it changed does now read the boot clock. runTicker also
// reads the boot clock at each tick, in case the wall clock was set back by as much as the machine slept.
//
// Methods may be called from any goroutine. For one caller, now never goes back.
type bootClock struct {
	cheap func() (mono, wall int64) // ns since any origin; both from one reading
	boot  func() int64

	began  int64        // boot at the time of begin
	ahead  atomic.Int64 // how far boot is ahead of mono; it only grows
	seenAt atomic.Int64 // wall minus mono at the last reading of boot
}

// maxSleepNs is the longest suspension that now may fail to notice. It is far below the margin of a lease.
const maxSleepNs = 20e6

// maxReadings bounds how often measure reads the clocks to get readings close together.
const maxReadings = 4

func (c *bootClock) begin() *bootClock {
	mono, wall := c.cheap()
	c.began = c.boot()
	c.ahead.Store(-mono)
	c.seenAt.Store(wall - mono)
	return c
}

// now returns the time since begin.
func (c *bootClock) now() int64 {
	mono, wall := c.cheap()
	if d := wall - mono - c.seenAt.Load(); d > maxSleepNs || d < -maxSleepNs {
		c.measure()
	}
	return mono + c.ahead.Load()
}

// measure reads the boot clock. A measurement may be late, because its goroutine did not run for a while. A late
// measurement makes a lease shorter, never longer.
func (c *bootClock) measure() {
	for range maxReadings {
		before, _ := c.cheap()
		boot := c.boot() - c.began
		mono, wall := c.cheap()
		if mono-before > maxSleepNs {
			continue // too far apart to compare
		}
		c.seenAt.Store(wall - mono)
		for {
			old := c.ahead.Load()
			if boot-mono <= old+maxSleepNs || c.ahead.CompareAndSwap(old, boot-mono) {
				return
			}
		}
	}
}
