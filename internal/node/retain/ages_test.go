package retain

import (
	"math/rand/v2"
	"testing"
	"time"

	"penstock/internal/node/clock"
	"penstock/segment"
)

// agesClock is a clock whose two sources the test moves.
type agesClock struct {
	wall time.Time
	mono time.Duration
}

func newAgesClock() (*agesClock, *clock.Clock) {
	h := &agesClock{wall: time.Unix(1_000_000, 0), mono: time.Hour}
	return h, clock.New(func() time.Time { return h.wall }, func() time.Duration { return h.mono })
}

func (h *agesClock) pass(d time.Duration) { h.wall, h.mono = h.wall.Add(d), h.mono+d }

// Seen never reports data that it saw arrive as older than it is. It may report the data as younger, but at most by a
// fraction of the limit or by the time between two looks.
func TestAgesOfWhatCame(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 2))
		limit := time.Duration(1+r.IntN(1000)) * time.Second
		look := time.Duration(1+r.IntN(20)) * time.Second
		var a Seen
		came := []time.Duration{0} // came[i] is when byte i arrived
		for now := time.Duration(0); now < 5*limit; now += look {
			for range r.IntN(4) {
				came = append(came, now)
			}
			a.Observe(segment.Offset(len(came)), now, limit)
			if len(a.marks) > maxAgeMarks+1 {
				t.Fatalf("seed %d: %d marks", seed, len(a.marks))
			}
			to := int(a.Before(now, limit))
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

// The age of data that was there at the start is the age of its newest append time plus the time that has passed since.
// The wall clock adds to it only once it is trusted.
func TestAgesOfWhatWasThere(t *testing.T) {
	const limit = time.Hour
	h, c := newAgesClock()
	day := 24 * time.Hour
	written := h.wall.Add(-day) // the newest append time: the node was down for a day, or its clock is wrong
	a := Ages{}
	a.Found(1000, written.UnixNano(), h.mono)
	before := func() time.Duration { ns, _ := a.OldTime(c, limit); return time.Unix(0, ns).Sub(written) }
	if got := before(); got != -limit {
		t.Fatalf("at the start what was written %v before the newest is too old, want %v", -got, limit)
	}
	h.pass(5 * time.Minute)
	c.Compare()
	h.wall = h.wall.Add(day)
	c.Compare()
	if got := before(); got != 5*time.Minute-limit {
		t.Fatalf("after five minutes and a step: %v", got)
	}
	h.wall = h.wall.Add(-day)
	c.Compare()
	for range 20 {
		h.pass(time.Minute)
		c.Compare()
	}
	if got := before(); got != day+25*time.Minute-limit {
		t.Fatalf("when the clock is believed: %v, want %v", got, day+25*time.Minute-limit)
	}
	ahead := h.wall.Add(day) // a leader whose clock was a day ahead wrote the newest data
	a.Found(1000, ahead.UnixNano(), h.mono)
	fresh := clock.New(func() time.Time { return h.wall }, func() time.Duration { return time.Hour })
	a.began = fresh.Mono()
	if ns, _ := a.OldTime(fresh, limit); ns != fresh.NowNs()-int64(limit) {
		t.Fatalf("times that lie ahead make what came before older: %v", time.Unix(0, ns).Sub(h.wall))
	}
	a.Cut(10)
	if _, end := a.OldTime(fresh, limit); end != 10 {
		t.Fatalf("after a cut to 10 what lies below %d was there at the start", end)
	}
}

// If a log ends lower than before, its new data must grow old again.
func TestAgesOfALogThatWasCut(t *testing.T) {
	const limit = time.Minute
	var a Seen
	a.Observe(1000, 0, limit)
	a.Observe(400, 10*time.Second, limit)
	a.Observe(2000, 50*time.Second, limit)
	if to := a.Before(65*time.Second, limit); to > 400 {
		t.Errorf("what lies below %d is called a minute old, and the log ended at 400 ten seconds later", to)
	}
	if to := a.Before(2*time.Minute, limit); to != 2000 {
		t.Errorf("after all that what lies below %d is a minute old", to)
	}
}
