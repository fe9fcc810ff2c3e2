package clock

import (
	"math/rand/v2"
	"testing"
	"time"
)

// handClock is a clock whose two sources the test moves.
type handClock struct {
	wall time.Time
	mono time.Duration
}

func newHandClock() (*handClock, *Clock) {
	h := &handClock{wall: time.Unix(1_000_000, 0), mono: time.Hour}
	return h, New(func() time.Time { return h.wall }, func() time.Duration { return h.mono })
}

func (h *handClock) pass(d time.Duration) { h.wall, h.mono = h.wall.Add(d), h.mono+d }

// The engine's time is the time of the start plus the time that has passed since, however the wall clock steps. Each
// step is counted once.
func TestClockIgnoresSteps(t *testing.T) {
	h, c := newHandClock()
	start := c.NowNs()
	if start != h.wall.UnixNano() {
		t.Fatalf("it begins at %d, the wall clock says %d", start, h.wall.UnixNano())
	}
	r := rand.New(rand.NewPCG(1, 1))
	var passed time.Duration
	for range 1000 {
		d := time.Duration(r.Int64N(int64(time.Second)))
		passed += d
		h.pass(d)
		step := time.Duration(0)
		if r.IntN(4) == 0 {
			step = time.Duration(r.Int64N(int64(8*time.Hour))) - 4*time.Hour
			h.wall = h.wall.Add(step)
		}
		if got := c.NowNs() - start; got != int64(passed) {
			t.Fatalf("%v passed, the clock says %v", passed, time.Duration(got))
		}
		if got := c.Compare(); got != step && (step > clockStep || step < -clockStep) {
			t.Fatalf("a step of %v was seen as %v", step, got)
		}
	}
}

// A process that loses its processor between two readings sees no step.
func TestClockReadsApart(t *testing.T) {
	h := &handClock{wall: time.Unix(1_000_000, 0)}
	starve := 0
	c := New(func() time.Time {
		at := h.wall
		if starve > 0 {
			starve--
			h.pass(time.Minute)
		}
		return at
	}, func() time.Duration { return h.mono })
	for _, starve = range []int{1, 50, maxReadTries - 1, 2 * maxReadTries} {
		if step := c.Compare(); step != 0 {
			t.Fatalf("a step of %v was seen, there was none", step)
		}
		starve = 0
	}
}

// The wall clock is trusted once it has gone on evenly for clockTrust, and for as long as it was put forward. After
// that it is not consulted again.
func TestClockTrust(t *testing.T) {
	h, c := newHandClock()
	wait := func(d time.Duration) {
		for ; d > 0; d -= time.Minute {
			h.pass(min(d, time.Minute))
			c.Compare()
		}
	}
	believed := func() bool { _, ok := c.Proven(); return ok }
	wait(clockTrust - time.Minute)
	if believed() {
		t.Fatal("believed too early")
	}
	h.wall = h.wall.Add(2 * time.Hour)
	c.Compare()
	wait(2*time.Hour - time.Minute)
	if believed() {
		t.Fatal("two hours forward are believed before two hours have passed")
	}
	wait(2 * time.Minute)
	if ns, ok := c.Proven(); !ok || ns != h.wall.UnixNano() {
		t.Fatalf("the clock says %d (%v), want %d", ns, ok, h.wall.UnixNano())
	}
	right := h.wall
	h.wall = h.wall.Add(100 * time.Hour)
	wait(200 * time.Hour)
	if ns, _ := c.Proven(); ns != right.Add(200*time.Hour).UnixNano() {
		t.Fatalf("the clock went to %v after a later step, want %v", time.Unix(0, ns), right.Add(200*time.Hour))
	}
	h, c = newHandClock()
	h.wall = h.wall.Add(-2 * time.Hour)
	c.Compare()
	wait(clockTrust + time.Minute)
	if ns, ok := c.Proven(); !ok || ns != h.wall.UnixNano() {
		t.Fatal("a clock that was put back is not believed")
	}
}
