package delivery

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestWheelExact(t *testing.T) {
	const start = 1_700_000_000_000
	for _, delay := range []int64{
		0, 1, 2, 63, 64, 65, 127, 128, 4095, 4096, 4097, 60_000, 262_144, 3_600_000, 86_400_000, 30 * 86_400_000,
		400 * 86_400_000,
	} {
		var w Wheel[int64]
		w.Advance(start, nil)
		timer := Timer[int64]{Value: delay}
		w.Schedule(&timer, start+delay)
		fired := 0
		fire := func(*Timer[int64]) { fired++ }
		// It must be enough to wake only when NextDue says so, and that must not take many wake-ups.
		for wakes := 1; fired == 0; wakes++ {
			at, ok := w.NextDue()
			if !ok || at > start+delay || wakes > wheelLevels+1 {
				t.Fatalf("delay %d: wake %d at %d (%v)", delay, wakes, at-start, ok)
			}
			if at > start {
				w.Advance(at-1, fire)
				if fired != 0 {
					t.Fatalf("delay %d: fired before its time", delay)
				}
			}
			w.Advance(at, fire)
		}
		if w.now != start+delay || w.Len() != 0 {
			t.Errorf("delay %d: fired at +%d, %d timers left", delay, w.now-start, w.Len())
		}
	}
}

// Compares random schedules, moves and cancels with a plain list: exactly the timers that are due fire, in the order of
// their times, and none early or late.
func TestWheelModel(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 2))
		var w Wheel[int]
		now := int64(rng.Uint64N(1 << 42))
		w.Advance(now, nil)
		timers := make([]Timer[int], 50)
		due := make([]int64, len(timers)) // -1: not scheduled
		for i := range timers {
			timers[i].Value, due[i] = i, -1
		}
		for range 500 {
			i := rng.IntN(len(timers))
			switch rng.IntN(4) {
			case 0, 1:
				due[i] = now + rng.Int64N(1<<rng.IntN(30)) - 3
				w.Schedule(&timers[i], due[i])
			case 2:
				w.Cancel(&timers[i])
				due[i] = -1
			case 3:
				now += rng.Int64N(1 << rng.IntN(24))
				fireAndCompare(t, &w, now, due)
			}
			next, ok := w.NextDue()
			for _, d := range due {
				if d >= 0 && (!ok || next > max(d, now)) {
					t.Fatalf("seed %d: NextDue %d (%v), a timer is due at %d, now %d", seed, next, ok, d, now)
				}
			}
		}
	}
}

func fireAndCompare(t *testing.T, w *Wheel[int], now int64, due []int64) {
	t.Helper()
	var want, got []int
	for i, d := range due {
		if 0 <= d && d <= now {
			want = append(want, i)
		}
	}
	before, last := w.now, int64(0)
	w.Advance(now, func(timer *Timer[int]) {
		at := due[timer.Value]
		if at > before && at < last { // overdue timers come first, in the order of scheduling
			t.Fatalf("timer %d, due at %d, fired after one due at %d", timer.Value, at, last)
		}
		last = max(last, at)
		got = append(got, timer.Value)
		if timer.Scheduled() {
			t.Fatal("a fired timer is still scheduled")
		}
	})
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Fatalf("at %d fired %v, want %v", now, got, want)
	}
	for _, i := range got {
		due[i] = -1
	}
	waiting := 0
	for _, d := range due {
		if d >= 0 {
			waiting++
		}
	}
	if w.Len() != waiting {
		t.Fatalf("%d timers wait, want %d", w.Len(), waiting)
	}
}

func TestWheelInsideFire(t *testing.T) {
	var w Wheel[string]
	var fired []string
	a, b, c := Timer[string]{Value: "a"}, Timer[string]{Value: "b"}, Timer[string]{Value: "c"}
	w.Schedule(&a, 10)
	w.Schedule(&b, 10)
	w.Schedule(&c, 20)
	w.Advance(30, func(timer *Timer[string]) {
		fired = append(fired, timer.Value)
		if timer == &a && len(fired) == 1 {
			w.Cancel(&b)       // same slot, not fired yet
			w.Schedule(&a, 5)  // in the past: fires in the next Advance
			w.Schedule(&c, 25) // moved within this Advance
		}
	})
	if !slices.Equal(fired, []string{"a", "c"}) {
		t.Fatalf("fired %v", fired)
	}
	if at, ok := w.NextDue(); !ok || at > 30 {
		t.Fatalf("NextDue %d, %v", at, ok)
	}
	w.Advance(29, func(timer *Timer[string]) { fired = append(fired, timer.Value) }) // time does not go back
	if !slices.Equal(fired, []string{"a", "c", "a"}) || w.now != 30 || w.Len() != 0 {
		t.Fatalf("fired %v, now %d, %d left", fired, w.now, w.Len())
	}
	if _, ok := w.NextDue(); ok {
		t.Fatal("an empty wheel is due")
	}
}

func TestWheelFarFuture(t *testing.T) {
	var w Wheel[int]
	timer := Timer[int]{}
	w.Schedule(&timer, 1<<62) // beyond the last time of the wheel
	if at, ok := w.NextDue(); !ok || at > maxWheelMs {
		t.Fatalf("NextDue %d, %v", at, ok)
	}
	w.Advance(1_700_000_000_000, func(*Timer[int]) { t.Fatal("fired") })
	if !timer.Scheduled() || timer.Due() != 1<<62 {
		t.Fatal("the timer was lost")
	}
}

func TestWheelAllocs(t *testing.T) {
	var w Wheel[int]
	timers := make([]Timer[int], 64)
	now := int64(1_700_000_000_000)
	w.Advance(now, nil)
	fire := func(timer *Timer[int]) {}
	step := func() {
		for i := range timers {
			w.Schedule(&timers[i], now+int64(i*i*100))
		}
		now += 4000
		w.Advance(now, fire)
	}
	for range 2000 {
		step()
	}
	if n := testing.AllocsPerRun(100, step); n != 0 {
		t.Errorf("%v allocations per round", n)
	}
}

func BenchmarkWheelScheduleCancel(b *testing.B) {
	var w Wheel[int]
	w.Advance(1_700_000_000_000, nil)
	timers := make([]Timer[int], 1024)
	b.ReportAllocs()
	for i := range b.N {
		timer := &timers[i%len(timers)]
		w.Schedule(timer, 1_700_000_060_000+int64(i&1023))
		w.Cancel(timer)
	}
}

// Scheduled says whether the timer is in a wheel.
func (t *Timer[T]) Scheduled() bool { return t.list != nil }
