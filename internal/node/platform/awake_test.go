package platform

import (
	"testing"
	"time"
)

// clocks are the clocks of a machine that can be suspended.
type clocks struct{ mono, wall, boot int64 }

func (c *clocks) pass(d time.Duration) { c.mono += int64(d); c.wall += int64(d); c.boot += int64(d) }

// sleep suspends the whole machine: its monotonic clock stands still.
func (c *clocks) sleep(d time.Duration) { c.wall += int64(d); c.boot += int64(d) }

func (c *clocks) clock(readings *int) *bootClock {
	b := &bootClock{
		cheap: func() (int64, int64) { return c.mono, c.wall },
		boot:  func() int64 { *readings++; return c.boot },
	}
	return b.begin()
}

func TestBootClock(t *testing.T) {
	var readings int
	c := &clocks{mono: 5, wall: 1e18, boot: 7e12}
	b := c.clock(&readings)
	want := time.Duration(0)
	check := func(what string) {
		t.Helper()
		if got := time.Duration(b.now()); got != want {
			t.Errorf("%s: it is %v, want %v", what, got, want)
		}
	}
	check("at the beginning")
	c.pass(time.Second)
	want += time.Second
	check("a second later")
	if readings != 1 {
		t.Errorf("the boot clock was read %d times without a cause", readings)
	}
	c.sleep(time.Hour)
	want += time.Hour
	check("after an hour's sleep")
	for _, step := range []time.Duration{-10 * time.Hour, 20 * time.Hour} {
		c.wall += int64(step)
		c.pass(time.Minute)
		want += time.Minute
		check("after a step of the wall clock")
	}
	c.sleep(time.Minute)
	c.wall -= int64(time.Minute) // set back by the length of the sleep: the next tick finds it
	b.measure()
	want += time.Minute
	check("after a sleep that the wall clock does not show")
	if readings > 6 {
		t.Errorf("the boot clock was read %d times", readings)
	}
}

// This test uses the real clocks: the machine is not suspended here, so the two clocks agree.
func TestBootClockReal(t *testing.T) {
	b := NewMachine().awake
	begin, from := time.Now(), b.now()
	for range 1000 {
		b.measure()
	}
	time.Sleep(50 * time.Millisecond)
	if got, real := time.Duration(b.now()-from), time.Since(begin); got < 50*time.Millisecond || got > real+time.Second {
		t.Errorf("%v by the boot clock, %v by Go's", got, real)
	}
}

func TestBootClockAllocates(t *testing.T) {
	b := NewMachine().awake
	if n := testing.AllocsPerRun(1000, func() { b.now() }); n != 0 {
		t.Errorf("%v allocations to read the clock", n)
	}
}

func BenchmarkBootClock(b *testing.B) {
	c := NewMachine().awake
	for b.Loop() {
		c.now()
	}
}
