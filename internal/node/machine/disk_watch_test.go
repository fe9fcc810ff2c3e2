package machine

import (
	"testing"
	"time"
)

// watched drives a DiskWatch through simulated time.
type watched struct {
	t           *testing.T
	w           *DiskWatch
	now         int64
	begun, done uint64
	last        DiskVerdict
	handovers   int
	tells       []DiskState
	probes      int
}

const pollNs = int64(250 * time.Millisecond)

func newWatched(t *testing.T) *watched {
	cfg := DiskConfig{PatienceNs: 5e9, FailedNs: 30e9, PollNs: pollNs, IdleNs: DiskProbeIdleNs}
	return &watched{t: t, w: NewDiskWatch(cfg, 0)}
}

func (d *watched) poll() {
	d.now += pollNs
	d.last = d.w.Step(d.now, d.begun, d.done)
	if d.last.HandOver {
		d.handovers++
	}
	if d.last.Tell {
		d.tells = append(d.tells, d.last.State)
	}
	if d.last.Probe {
		d.probes++
		d.begun++
	}
}

// run polls for span. each sets what the disk does before each poll.
func (d *watched) run(span time.Duration, each func()) {
	for end := d.now + int64(span); d.now < end; {
		each()
		d.poll()
	}
}

// hang begins a write; no write comes back.
func (d *watched) hang() { d.begun++ }

// work begins a write; all writes come back.
func (d *watched) work() { d.begun++; d.done = d.begun }

// rest begins no write; probes come back.
func (d *watched) rest() { d.done = d.begun }

func (d *watched) is(want DiskState) {
	d.t.Helper()
	if d.last.State != want {
		d.t.Fatalf("at %v the disk is %v, want %v", time.Duration(d.now), d.last.State, want)
	}
}

func TestDiskWatchHang(t *testing.T) {
	d := newWatched(t)
	d.run(time.Minute, d.work)
	d.is(DiskGood)
	d.run(900*time.Millisecond, d.hang)
	d.is(DiskSlow) // the fourth poll is at a second
	d.run(3*time.Second, d.hang)
	d.is(DiskSlow)
	if d.handovers != 0 {
		t.Error("leaderships move although the patience is not over")
	}
	d.run(1250*time.Millisecond, d.hang)
	d.is(DiskHung)
	d.run(24*time.Second, d.hang)
	d.is(DiskHung)
	d.run(2*time.Second, d.hang)
	d.is(DiskFailed)
	if d.handovers != 1 {
		t.Errorf("%d hand-overs, want 1", d.handovers)
	}
	d.run(2*time.Minute, d.hang)
	if d.handovers != 1 {
		t.Errorf("%d hand-overs in less than three minutes", d.handovers)
	}
	d.run(40*time.Second, d.hang)
	if d.handovers != 2 { // leaderships that this node got since the first hand-over
		t.Errorf("%d hand-overs after three minutes, want 2", d.handovers)
	}
	d.run(29*time.Second, d.work)
	d.is(DiskSlow)
	d.run(3*time.Second, d.work)
	d.is(DiskGood)
	d.run(6*time.Second, d.hang)
	if d.is(DiskHung); d.handovers != 3 {
		t.Errorf("%d hand-overs: it was good in between, so this is another hang", d.handovers)
	}
}

// A write that comes back, however slowly, is progress: there is no hand-over.
func TestDiskWatchSlowIsNotHung(t *testing.T) {
	d := newWatched(t)
	for range 100 {
		d.run(4750*time.Millisecond, d.hang)
		d.done++
		d.poll()
	}
	if d.is(DiskSlow); d.handovers != 0 {
		t.Errorf("%d hand-overs", d.handovers)
	}
	if len(d.tells) != 1 {
		t.Errorf("others were told %v: nothing changed", d.tells)
	}
	d.done = d.begun // otherwise the probes would have to wait
	d.run(9*time.Second, d.work)
	d.is(DiskSlow)
	d.run(2*time.Second, d.work)
	d.is(DiskGood)
}

// A disk that hung, completed one write, and hangs again has one fault, not two.
func TestDiskWatchFlapping(t *testing.T) {
	d := newWatched(t)
	for range 8 {
		d.run(10*time.Second, d.hang)
		d.is(DiskHung)
		d.run(10*time.Second, d.work)
		d.is(DiskSlow)
	}
	if d.handovers != 1 {
		t.Errorf("%d hand-overs in 160 s without a good disk", d.handovers)
	}
	for i := MaxDiskTellCount; i < len(d.tells); i++ {
		if d.tells[i] == d.tells[i-1] {
			t.Errorf("told the same twice: %v", d.tells)
		}
	}
}

func TestDiskWatchTellsSeldom(t *testing.T) {
	// The patience is so short that the state changes with every step.
	w := NewDiskWatch(DiskConfig{PatienceNs: 4, FailedNs: 8, PollNs: 100, IdleNs: 1000}, 0)
	var times []int64
	begun, done := uint64(0), uint64(0)
	for now := int64(0); now < 10*DiskTellSpanNs; now += DiskTellSpanNs / 100 {
		if begun++; now/(DiskTellSpanNs/100)%2 == 0 {
			done = begun
		}
		if v := w.Step(now, begun, done); v.Tell {
			times = append(times, now)
		}
	}
	if len(times) < 20 {
		t.Fatalf("told only %d times", len(times))
	}
	for i := MaxDiskTellCount; i < len(times); i++ {
		if times[i]-times[i-MaxDiskTellCount] < DiskTellSpanNs {
			t.Fatalf("told at %v and %v", time.Duration(times[i-MaxDiskTellCount]), time.Duration(times[i]))
		}
	}
}

// A process that was stopped, or got no processor, cannot know that no write came back.
func TestDiskWatchStopped(t *testing.T) {
	d := newWatched(t)
	d.run(time.Second, d.work)
	d.hang()
	d.poll()
	for range 5 {
		d.now += int64(time.Minute)
		d.poll()
	}
	if d.last.State >= DiskHung || d.handovers != 0 {
		t.Errorf("five polls in five minutes, and the disk counts as %v", d.last.State)
	}
	d.now -= int64(time.Hour) // must not happen, and must not matter
	if d.poll(); d.last.State >= DiskHung {
		t.Error("a clock that went back made a disk hang")
	}
}

// An idle disk is probed, so that a hang is noticed before somebody writes.
func TestDiskWatchProbes(t *testing.T) {
	d := newWatched(t)
	d.run(time.Minute, d.rest)
	if d.is(DiskGood); d.probes < 5 || d.probes > 6 {
		t.Errorf("%d probes in an idle minute, want 5 or 6", d.probes)
	}
	d.probes = 0
	d.run(16*time.Second, func() {}) // the next probe does not come back
	if d.is(DiskHung); d.probes != 1 || d.handovers != 1 {
		t.Errorf("%d probes and %d hand-overs at a disk that hangs, want one each", d.probes, d.handovers)
	}
	d.done = d.begun
	d.run(40*time.Second, d.rest) // probes prove it good
	d.is(DiskGood)
	d.probes = 0
	d.run(time.Minute, d.work)
	if d.probes != 0 {
		t.Errorf("%d probes at a disk that is written to", d.probes)
	}
}

func TestDiskWatchAllocates(t *testing.T) {
	d := newWatched(t)
	if n := testing.AllocsPerRun(100, func() { d.w.Step(d.now, 1, 0) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Two disks hang, and the first node finds no other that could take its leaderships. It asks again as soon as there may
// be one. It does not wait for the minutes that must pass between two hand-overs that gave something away.
func TestDiskWatchKept(t *testing.T) {
	d := newWatched(t)
	d.run(6*time.Second, d.hang)
	if d.handovers != 1 {
		t.Fatalf("%d hand-overs were asked for when the disk hung", d.handovers)
	}
	d.w.Kept()
	d.run(25*time.Second, d.hang)
	if d.handovers != 1 {
		t.Errorf("%d hand-overs within %v of one that gave nothing away", d.handovers, time.Duration(DiskKeptEveryNs))
	}
	d.run(6*time.Second, d.hang)
	if d.handovers != 2 {
		t.Errorf("%d hand-overs, the first gave nothing away", d.handovers)
	}
	d.run(2*time.Minute, d.hang) // the second gave something away
	if d.handovers != 2 {
		t.Errorf("%d hand-overs within %v", d.handovers, time.Duration(DiskHandOverEveryNs))
	}
}

// New limits hold from the next step on, for a wait that has begun.
func TestDiskWatchChanges(t *testing.T) {
	d := newWatched(t)
	d.begun++
	d.run(3*time.Second, func() {})
	if d.last.State != DiskSlow {
		t.Fatalf("after 3 s of 5: %v", d.last.State)
	}
	cfg := d.w.cfg
	cfg.PatienceNs, cfg.FailedNs = 1e9, 2e9
	d.w.Change(cfg)
	if d.poll(); d.last.State != DiskFailed {
		t.Errorf("after 3 s of 1, and 2 until it has failed: %v", d.last.State)
	}
}
