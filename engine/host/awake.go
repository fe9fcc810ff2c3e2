package host

import "sync/atomic"

// bootClock is the time since it was made, in ns, with the time in which the whole machine stood still (suspend to
// memory or disk). Go's monotonic clock does not count that, while the store and the other nodes do: a lease measured
// by it would be believed for as long again after the machine woke up.
//
// CLOCK_BOOTTIME costs a system call and is asked for each message that is delivered or finished. So now asks the cheap
// clocks: the distance between the wall clock and the monotonic one is what it was before unless the machine stood
// still or somebody set the wall clock, and only then is the boot clock itself read. runTicker reads it at each tick
// too, for a wall clock that was set back by as much as the machine slept.
//
// Methods may be called from any goroutine. now never goes back for one caller.
type bootClock struct {
	cheap func() (mono, wall int64) // ns since any beginning; one reading
	boot  func() int64

	began  int64        // boot, then
	ahead  atomic.Int64 // of boot before mono; only rises
	seenAt atomic.Int64 // the distance of wall and mono at the last reading of boot
}

// maxSleepNs is how long a pause of the machine may be that now does not notice. It is far below the margin of a lease.
const maxSleepNs = 20e6

// maxReadings bounds how often measure reads the clocks until nothing came in between.
const maxReadings = 4

func (c *bootClock) begin() *bootClock {
	mono, wall := c.cheap()
	c.began = c.boot()
	c.ahead.Store(-mono)
	c.seenAt.Store(wall - mono)
	return c
}

// now is the time since begin.
func (c *bootClock) now() int64 {
	mono, wall := c.cheap()
	if d := wall - mono - c.seenAt.Load(); d > maxSleepNs || d < -maxSleepNs {
		c.measure()
	}
	return mono + c.ahead.Load()
}

// measure reads the boot clock. What is measured too late by a goroutine that was not scheduled in between makes a
// lease shorter, never longer.
func (c *bootClock) measure() {
	for range maxReadings {
		before, _ := c.cheap()
		boot := c.boot() - c.began
		mono, wall := c.cheap()
		if mono-before > maxSleepNs {
			continue // the difference says nothing
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
