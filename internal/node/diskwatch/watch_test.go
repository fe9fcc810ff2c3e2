package diskwatch

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"penstock/internal/node/errs"
	"penstock/internal/node/machine"
	"penstock/internal/node/platform"
	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
)

// testHost is a machine whose instants the test sets.
type testHost struct {
	platform.Host
	now time.Duration
}

func (h *testHost) Instant() time.Time              { return time.Unix(0, int64(h.now)) }
func (h *testHost) Since(t time.Time) time.Duration { return h.Instant().Sub(t) }

// watched is a Watch that the test steps.
type watched struct {
	*Watch
	host   *testHost
	disk   *faultaio.Disk
	pulse  aio.Pulse
	judged []machine.DiskVerdict
}

func newWatched(probeAfter time.Duration) *watched {
	w := &watched{Watch: new(Watch), host: &testHost{Host: platform.NewMachine()}, disk: faultaio.New(faultaio.Options{})}
	w.begin(Config{
		Host: w.host, Log: slog.New(slog.DiscardHandler), Disk: w.disk, Pulse: &w.pulse, DiskPatience: time.Second,
		DiskFailedAfter: 3 * time.Second, DiskProbeAfter: probeAfter,
		Judged: func(v machine.DiskVerdict) { w.judged = append(w.judged, v) },
	})
	return w
}

// pass steps the watch while d passes.
func (w *watched) pass(d time.Duration) {
	for end := w.host.now + d; w.host.now < end; {
		w.host.now += Interval
		w.Step()
	}
}

// When a write does not come back, the disk first hangs, which the cluster's node is told once, and then counts as
// failed. When the write comes back, the disk does not hang any more.
func TestWatchSeesAHang(t *testing.T) {
	w := newWatched(-1)
	if w.pass(time.Second); w.State() != machine.DiskGood || w.Failure() != nil {
		t.Fatal(w.State(), w.Failure())
	}
	w.pulse.Begin()
	if w.pass(time.Second); !w.Hangs() || w.Failure() != nil || w.Stats().Hangs != 1 {
		t.Errorf("%+v, %v", w.Stats(), w.Failure())
	}
	if w.pass(2 * time.Second); w.State() != machine.DiskFailed || !errors.Is(w.Failure(), errs.ErrDiskHung) {
		t.Errorf("%+v, %v", w.Stats(), w.Failure())
	}
	w.pulse.End()
	if w.pass(Interval); w.Hangs() || w.Failure() != nil || w.Stats().WaitedMs != 0 || w.Stats().Hangs != 1 {
		t.Errorf("%+v, %v", w.Stats(), w.Failure())
	}
	handOvers := 0
	for _, v := range w.judged {
		if v.HandOver {
			handOvers++
		}
	}
	if handOvers != 1 {
		t.Errorf("leaderships are handed over %d times", handOvers)
	}
	if w.Stats().Probes != 0 {
		t.Error("the disk is asked, and should not be")
	}
}

// A hand-over that moved nothing is retried sooner than one that moved something.
func TestWatchTriesAgainWhatMovedNothing(t *testing.T) {
	for _, movedNone := range []bool{false, true} {
		w := newWatched(-1)
		w.pulse.Begin()
		w.pass(time.Second)
		if movedNone {
			w.movedNone.Store(true)
		}
		before := len(w.judged)
		w.pass(machine.DiskKeptEveryNs + Interval)
		again := false
		for _, v := range w.judged[before:] {
			again = again || v.HandOver
		}
		if again != movedNone {
			t.Errorf("nothing was moved: %v, and it is tried again: %v", movedNone, again)
		}
	}
}

// An idle disk is probed with one write at a time. No probe is started once the engine closes.
func TestWatchAsksAnIdleDisk(t *testing.T) {
	w := newWatched(time.Second)
	count := uint64(0)
	for range 3 {
		w.pass(time.Second)
		if !w.AwaitProbe() {
			t.Fatal("the disk hangs")
		}
		if count++; w.Stats().Probes != count {
			t.Errorf("asked %d times, want %d", w.Stats().Probes, count)
		}
		w.pass(Interval) // the watch sees the write
		data, err := w.disk.ReadFile(probeFile, 1<<20)
		if err != nil || len(data) != w.disk.Info().BlockBytes {
			t.Errorf("the file has %d bytes, %v", len(data), err)
		}
	}
	w.End()
	before := len(w.judged)
	if w.pass(3 * time.Second); len(w.judged) != before || w.Stats().Probes != count {
		t.Errorf("something is started when the engine closes: %+v", w.Stats())
	}
}

// The ground is looked at once a second, on a goroutine of its own: one look that hangs holds up neither the watch nor
// anything else, and no second one begins meanwhile, or once the engine closes.
func TestWatchLooksAtTheGround(t *testing.T) {
	w := newWatched(-1)
	looks, begun, free := 0, make(chan struct{}, 10), make(chan struct{})
	w.cfg.Ground = func() {
		looks++
		begun <- struct{}{}
		<-free
	}
	w.pulse.Begin()
	w.pass(time.Second)
	<-begun
	if w.pass(2 * time.Second); w.State() != machine.DiskFailed {
		t.Errorf("the watch says %v while a look hangs", w.State())
	}
	w.pulse.End()
	w.pass(Interval)
	close(free)
	if !w.AwaitProbe() || looks != 1 {
		t.Errorf("%d looks at the same time", looks)
	}
	w.pass(time.Second)
	<-begun
	w.End()
	if w.pass(2 * time.Second); !w.AwaitProbe() || looks != 2 {
		t.Errorf("%d looks, want 2", looks)
	}
}
