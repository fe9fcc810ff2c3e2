package engine

import (
	"math/rand/v2"
	"testing"
	"time"

	"penstock/segment"
	"penstock/segment/aio/faultaio"
)

// handClock is a clock whose two sources a test moves.
type handClock struct {
	wall time.Time
	mono time.Duration
}

func newHandClock() (*handClock, *clock) {
	h := &handClock{wall: time.Unix(1_000_000, 0), mono: time.Hour}
	return h, newClock(func() time.Time { return h.wall }, func() time.Duration { return h.mono })
}

func (h *handClock) pass(d time.Duration) { h.wall, h.mono = h.wall.Add(d), h.mono+d }

// The engine's time is that of the start and what has passed since, however the wall clock steps; each step is seen
// once.
func TestClockIgnoresSteps(t *testing.T) {
	h, c := newHandClock()
	start := c.nowNs()
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
		if got := c.nowNs() - start; got != int64(passed) {
			t.Fatalf("%v passed, the clock says %v", passed, time.Duration(got))
		}
		if got := c.compare(); got != step && (step > clockStep || step < -clockStep) {
			t.Fatalf("a step of %v was seen as %v", step, got)
		}
	}
}

// A process that gets no processor between two readings sees no step.
func TestClockReadsApart(t *testing.T) {
	h := &handClock{wall: time.Unix(1_000_000, 0)}
	starve := 0
	c := newClock(func() time.Time {
		at := h.wall
		if starve > 0 {
			starve--
			h.pass(time.Minute)
		}
		return at
	}, func() time.Duration { return h.mono })
	for _, starve = range []int{1, 50, maxReadTries - 1, 2 * maxReadTries} {
		if step := c.compare(); step != 0 {
			t.Fatalf("a step of %v was seen, there was none", step)
		}
		starve = 0
	}
}

// The wall clock is believed when it went on evenly for clockTrust, and for as long as it was put forward; then never
// again.
func TestClockTrust(t *testing.T) {
	h, c := newHandClock()
	wait := func(d time.Duration) {
		for ; d > 0; d -= time.Minute {
			h.pass(min(d, time.Minute))
			c.compare()
		}
	}
	believed := func() bool { _, ok := c.proven(); return ok }
	wait(clockTrust - time.Minute)
	if believed() {
		t.Fatal("believed too early")
	}
	h.wall = h.wall.Add(2 * time.Hour)
	c.compare()
	wait(2*time.Hour - time.Minute)
	if believed() {
		t.Fatal("two hours forward are believed before two hours have passed")
	}
	wait(2 * time.Minute)
	if ns, ok := c.proven(); !ok || ns != h.wall.UnixNano() {
		t.Fatalf("the clock says %d (%v), want %d", ns, ok, h.wall.UnixNano())
	}
	right := h.wall
	h.wall = h.wall.Add(100 * time.Hour)
	wait(200 * time.Hour)
	if ns, _ := c.proven(); ns != right.Add(200*time.Hour).UnixNano() {
		t.Fatalf("the clock went to %v after a later step, want %v", time.Unix(0, ns), right.Add(200*time.Hour))
	}
	h, c = newHandClock()
	h.wall = h.wall.Add(-2 * time.Hour)
	c.compare()
	wait(clockTrust + time.Minute)
	if ns, ok := c.proven(); !ok || ns != h.wall.UnixNano() {
		t.Fatal("a clock that was put back is not believed")
	}
}

// What a copy has seen come is never called older than it is, and at most by a part of the limit, or a look, younger.
func TestAgesOfWhatCame(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 2))
		limit := time.Duration(1+r.IntN(1000)) * time.Second
		look := time.Duration(1+r.IntN(20)) * time.Second
		var a ages
		came := []time.Duration{0} // came[i] is when byte i came
		for now := time.Duration(0); now < 5*limit; now += look {
			for range r.IntN(4) {
				came = append(came, now)
			}
			a.observe(segment.Offset(len(came)), now, limit)
			if len(a.marks) > maxAgeMarks+1 {
				t.Fatalf("seed %d: %d marks", seed, len(a.marks))
			}
			to := int(a.seenBefore(now, limit))
			if to > 0 && now-came[to-1] < limit {
				t.Fatalf("seed %d: a byte that came %v ago is called older than %v", seed, now-came[to-1], limit)
			}
			slack := limit/maxAgeMarks + 2*look
			if to < len(came) && now-came[to] > limit+slack {
				t.Fatalf("seed %d: a byte that came %v ago is not called older than %v", seed, now-came[to], limit)
			}
		}
	}
}

// What was there at the start is as old as the newest of it says and what has passed since; the wall clock adds to
// that only when it is believed.
func TestAgesOfWhatWasThere(t *testing.T) {
	const limit = time.Hour
	h, c := newHandClock()
	day := 24 * time.Hour
	written := h.wall.Add(-day) // the newest of it: the node was down for a day, or its clock is wrong
	a := ages{}
	a.recovered(1000, written.UnixNano(), h.mono)
	before := func() time.Duration { ns, _ := a.oldTime(c, limit); return time.Unix(0, ns).Sub(written) }
	if got := before(); got != -limit {
		t.Fatalf("at the start what was written %v before the newest is too old, want %v", -got, limit)
	}
	h.pass(5 * time.Minute)
	c.compare()
	h.wall = h.wall.Add(day)
	c.compare()
	if got := before(); got != 5*time.Minute-limit {
		t.Fatalf("after five minutes and a step: %v", got)
	}
	h.wall = h.wall.Add(-day)
	c.compare()
	for range 20 {
		h.pass(time.Minute)
		c.compare()
	}
	if got := before(); got != day+25*time.Minute-limit {
		t.Fatalf("when the clock is believed: %v, want %v", got, day+25*time.Minute-limit)
	}
	ahead := h.wall.Add(day) // a leader whose clock was a day ahead wrote the newest
	a.recovered(1000, ahead.UnixNano(), h.mono)
	_, fresh := newHandClock()
	fresh.base += h.wall.UnixNano() - fresh.nowNs()
	a.began = fresh.mono()
	if ns, _ := a.oldTime(fresh, limit); ns != fresh.nowNs()-int64(limit) {
		t.Fatalf("times that lie ahead make what came before older: %v", time.Unix(0, ns).Sub(h.wall))
	}
	a.cut(10)
	if _, end := a.oldTime(fresh, limit); end != 10 {
		t.Fatalf("after a cut to 10 what lies below %d was there at the start", end)
	}
}

// A log that ends lower than was seen has to come again before it is old.
func TestAgesOfALogThatWasCut(t *testing.T) {
	const limit = time.Minute
	var a ages
	a.observe(1000, 0, limit)
	a.observe(400, 10*time.Second, limit)
	a.observe(2000, 50*time.Second, limit)
	if to := a.seenBefore(65*time.Second, limit); to > 400 {
		t.Errorf("what lies below %d is called a minute old, and the log ended at 400 ten seconds later", to)
	}
	if to := a.seenBefore(2*time.Minute, limit); to != 2000 {
		t.Errorf("after all that what lies below %d is a minute old", to)
	}
}

// What came while the process ran is as old as that, whatever times its leader gave it: the times count for what was
// there at the start and for nothing else.
func TestAgedTo(t *testing.T) {
	e := openSmall(t, faultaio.New(faultaio.Options{Seed: 1}))
	topic, err := e.Topic(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	put := func() {
		if _, err := topic.Publish(t.Context(), []byte("m")); err != nil {
			t.Fatal(err)
		}
	}
	pt := topic.partitions()[0]
	put()
	old, _, _ := pt.log.End()
	put() // as if a leader whose clock is behind had sent it just now
	middle := e.clock.nowNs()
	time.Sleep(20 * time.Millisecond)
	put()
	pt.ages.recovered(old, middle, e.clock.mono()-time.Hour)
	limit := time.Duration(e.clock.nowNs() - middle - int64(10*time.Millisecond))
	if to := e.flusher.agedTo(pt, limit); to != old {
		t.Errorf("what lies below %d is too old, and what came since the start lies behind %d", to, old)
	}
}
