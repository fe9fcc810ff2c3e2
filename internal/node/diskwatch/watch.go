package diskwatch

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"penstock/internal/lock"
	"penstock/internal/node/errs"
	"penstock/internal/node/machine"
	"penstock/internal/node/platform"
	"penstock/segment/aio"
)

// Interval is how often Step must be called.
const Interval = 250 * time.Millisecond

// groundSteps is how many steps pass between two looks at the ground: a second.
const groundSteps = 4

// probeFile is the file that probes write when the disk is idle. It is one block, created once and then overwritten.
// Nobody reads it.
const probeFile = "disk.probe"

// Config is what a Watch needs of its node. The engine fills it in when it opens.
type Config struct {
	Host  platform.Host
	Log   *slog.Logger
	Disk  aio.Disk
	Pulse *aio.Pulse      // counts the writes that have begun and ended
	Stop  <-chan struct{} // closed when the engine closes: probes stop waiting for a simulated disk

	// These are the engine's Options of the same names.
	DiskPatience, DiskFailedAfter, DiskProbeAfter time.Duration

	// Judged takes the result of each step. It must not wait; work that waits it starts on goroutines. Watch.mu is
	// held.
	Judged func(machine.DiskVerdict)

	// Ground looks once a second whether the files of the node are still there. It may hang as long as the disk does: it
	// has a goroutine of its own, or in a simulation that of Step, and is not called again before it has returned. nil:
	// nobody looks.
	Ground func()
}

// Watch tracks the state of this node's disk. The zero value is not started and reports a good disk. Any goroutine may
// call the methods, except Start and Step. Fields that are neither atomic nor guarded by mu belong to the one goroutine
// that calls Step.
type Watch struct {
	cfg        Config
	watch      *machine.DiskWatch
	began      time.Time
	blockBytes int
	released   chan struct{}                      // closed by Released
	next       atomic.Pointer[machine.DiskConfig] // of Change, which Step has not seen yet

	state     atomic.Uint32 // machine.DiskState
	waitedMs  atomic.Int64
	probing   atomic.Bool // a probe is running
	looking   atomic.Bool // Config.Ground is running
	steps     int         // of Step
	movedNone atomic.Bool // the last hand-over moved nothing, and machine.DiskWatch has not been told
	probe     sync.WaitGroup

	mu    lock.Mutex[lock.DiskHealth] // guards ended; held while goroutines are started
	ended bool                        // the engine closes: no more goroutines may be started

	probes, hung, handOvers atomic.Uint64 // Member counts handOvers
}

// Stats are the current state, and counts since Start.
type Stats struct {
	State     machine.DiskState
	WaitedMs  int64  // how long writes have been waiting without any coming back
	Probes    uint64 // writes that only test whether the disk answers
	Hangs     uint64 // how often nothing came back for Config.DiskPatience
	HandOvers uint64 // leaderships given away because of a hang
}

// State returns the current state of the disk.
func (w *Watch) State() machine.DiskState { return machine.DiskState(w.state.Load()) }

// Hangs says whether the disk is hung or failed: writes have not returned for longer than anyone waits.
func (w *Watch) Hangs() bool { return w.State() >= machine.DiskHung }

// Failure is the disk's part of Engine.Health. It returns nil unless the disk has failed.
func (w *Watch) Failure() error {
	if w.State() != machine.DiskFailed {
		return nil
	}
	return fmt.Errorf("%w (nothing came back for %v)", errs.ErrDiskHung,
		time.Duration(w.waitedMs.Load())*time.Millisecond)
}

// Stats returns the state and the counters of the watch.
func (w *Watch) Stats() Stats {
	return Stats{w.State(), w.waitedMs.Load(), w.probes.Load(), w.hung.Load(), w.handOvers.Load()}
}

// Start starts the watch. In a simulation (platform.Host.InlineLog) the engine calls Step instead.
func (w *Watch) Start(cfg Config) {
	w.begin(cfg)
	if !cfg.Host.InlineLog() {
		// Close does not wait for this goroutine, because Close asks the watch whether waiting makes sense.
		cfg.Host.Spawn(func() {
			for cfg.Host.Pause(Interval, w.released) {
				w.Step()
			}
		})
	}
}

func (w *Watch) begin(cfg Config) {
	w.cfg, w.began, w.released = cfg, cfg.Host.Instant(), make(chan struct{})
	w.blockBytes = cfg.Disk.Info().BlockBytes
	w.watch = machine.NewDiskWatch(w.limits(cfg.DiskPatience, cfg.DiskFailedAfter), 0)
}

func (w *Watch) limits(patience, failedAfter time.Duration) machine.DiskConfig {
	if patience < 0 {
		patience = failedAfter
	}
	c := machine.DiskConfig{
		PatienceNs: int64(patience), FailedNs: int64(failedAfter), PollNs: int64(Interval), IdleNs: machine.DiskProbeIdleNs,
	}
	if w.cfg.DiskProbeAfter > 0 {
		c.IdleNs = int64(w.cfg.DiskProbeAfter)
	}
	return c
}

// Change changes Config.DiskPatience and DiskFailedAfter from the next step on. Any goroutine may call it.
func (w *Watch) Change(patience, failedAfter time.Duration) {
	c := w.limits(patience, failedAfter)
	w.next.Store(&c)
}

// Step looks which writes have returned since the last call, and acts on the new state.
func (w *Watch) Step() {
	begun, done := w.cfg.Pulse.Counts()
	before := w.State()
	if w.movedNone.Swap(false) {
		w.watch.Kept()
	}
	if c := w.next.Swap(nil); c != nil {
		w.watch.Change(*c)
	}
	if w.steps++; w.steps%groundSteps == 0 {
		w.lookAtGround()
	}
	v := w.watch.Step(int64(w.cfg.Host.Since(w.began)), begun, done)
	w.waitedMs.Store(v.WaitedNs / int64(time.Millisecond))
	w.state.Store(uint32(v.State))
	if v.Changed {
		w.logChange(before, v)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	w.cfg.Judged(v)
	if v.Probe && w.cfg.DiskProbeAfter > 0 && w.probing.CompareAndSwap(false, true) {
		w.cfg.Host.SpawnIn(&w.probe, func() {
			defer w.probing.Store(false)
			w.askDisk()
		})
	}
}

// lookAtGround calls Config.Ground. In a simulation the disk never hangs, and a goroutine more would be one more choice
// of its schedule.
func (w *Watch) lookAtGround() {
	if w.cfg.Ground == nil || !w.looking.CompareAndSwap(false, true) {
		return
	}
	look := func() {
		defer w.looking.Store(false)
		w.cfg.Ground()
	}
	if w.cfg.Host.InlineLog() {
		look()
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		w.looking.Store(false)
		return
	}
	w.cfg.Host.SpawnIn(&w.probe, look)
}

// End prevents further goroutines, so that Engine.Close can wait for those that were started.
func (w *Watch) End() {
	w.mu.Lock()
	w.ended = true
	w.mu.Unlock()
}

// AwaitProbe waits for a probe and for a look at the ground that are running. It returns false if it gave up because
// the disk hangs.
func (w *Watch) AwaitProbe() bool { return w.cfg.Host.Wait(&w.probe, w.Hangs) }

// Released ends the goroutine that Start started. The engine's files have been released by then, or are left as they
// are.
func (w *Watch) Released() { close(w.released) }

// logChange logs a change of the state in one line. The state changes at most once in a fifth of the patience, and
// becomes good only after two patiences.
func (w *Watch) logChange(before machine.DiskState, v machine.DiskVerdict) {
	log, waited := w.cfg.Log, time.Duration(v.WaitedNs).Round(time.Millisecond)
	switch {
	case v.State == machine.DiskHung && before < machine.DiskHung:
		w.hung.Add(1)
		log.Error("the disk hangs: nothing that was written came back. Nothing is lost; publishers wait or hear that the "+
			"outcome is unknown, and in a cluster leaderships go to replicas whose disks are good",
			"waited", waited)
	case v.State == machine.DiskFailed:
		log.Error("the disk counts as failed: it has not answered for disk-failed-after. What was answered OK is safe on "+
			"stable storage; look at the device, and end this process if it does not come back",
			"waited", waited)
	case v.State == machine.DiskSlow && before >= machine.DiskHung:
		log.Warn("the disk answers again; this node leads nothing that others can lead until it has done so for a while")
	case v.State == machine.DiskSlow:
		log.Warn("the disk is slow: for a while nothing came back while writes waited. Nothing is lost", "waited", waited)
	case v.State == machine.DiskGood:
		log.Info("the disk answers as it should again")
	}
}

// askDisk writes and flushes one block, on its own goroutine. It may never return.
func (w *Watch) askDisk() {
	w.cfg.Pulse.Begin()
	defer w.cfg.Pulse.End()
	w.probes.Add(1)
	w.cfg.Host.AwaitDisk(w.cfg.Stop)
	if err := w.writeProbe(); err != nil && !errors.Is(err, syscall.ENOSPC) {
		w.cfg.Log.Warn("the disk could not be asked whether it answers; it is asked again. Nothing else was touched",
			"file", probeFile, "error", err)
	}
}

func (w *Watch) writeProbe() (err error) {
	f, err := w.cfg.Disk.Open(probeFile)
	if errors.Is(err, fs.ErrNotExist) {
		f, err = w.cfg.Disk.Create(probeFile, int64(w.blockBytes))
	}
	if err != nil {
		return err
	}
	block, free := aio.AlignedBytes(w.blockBytes)
	defer free()
	err = f.WriteSyncAt(block, 0)
	return errors.Join(err, f.Close())
}
