package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"penstock/engine/core"
	"penstock/engine/meta"
	"penstock/internal/lock"
	"penstock/segment/aio"
)

// diskHealth is how this node's disk answers: core.DiskWatch decides, watchDisk feeds it from the engine's pulse and does what it says. Nothing on this way
// waits for the disk, or takes a lock that somebody holds who does. Fields without atomics belong to the one goroutine that steps the watch.
type diskHealth struct {
	watch *core.DiskWatch
	began time.Time
	stop  chan struct{} // closed when the engine's files are released

	state          atomic.Uint32 // core.DiskState
	waitedMs       atomic.Int64
	probing        atomic.Bool // a probe is with the disk
	handOverFailed atomic.Bool // the last hand-over gave nothing away; the watch has not heard of it yet
	probe          sync.WaitGroup

	mu    lock.Mutex[lock.DiskHealth] // held while the watch starts something, and while ended is set
	ended bool                        // nothing may be started: the engine closes

	probes, hung, handOvers atomic.Uint64
}

// probeFile is what an idle disk is asked with: one block, made once and overwritten since. Nobody reads it.
const probeFile = "disk.probe"

func (d *diskHealth) now() core.DiskState { return core.DiskState(d.state.Load()) }

// hangs says that nothing comes back for longer than anybody waits.
func (d *diskHealth) hangs() bool { return d.now() >= core.DiskHung }

// failure is what Health says of the disk.
func (d *diskHealth) failure() error {
	if d.now() != core.DiskFailed {
		return nil
	}
	return fmt.Errorf("%w (nothing came back for %v)", ErrDiskHung, time.Duration(d.waitedMs.Load())*time.Millisecond)
}

func (d *diskHealth) describe(s *StorageStats) {
	s.DiskState, s.DiskWaitedMs = d.now().String(), d.waitedMs.Load()
	s.DiskProbes, s.DiskHangs, s.DiskHandOvers = d.probes.Load(), d.hung.Load(), d.handOvers.Load()
}

// startDiskWatch begins to watch.
func (e *Engine) startDiskWatch() {
	patience, failed := e.opts.DiskPatience, e.opts.DiskFailedAfter
	if patience < 0 {
		patience = failed
	}
	d := &e.disks
	d.began, d.stop = e.host.Instant(), make(chan struct{})
	cfg := core.DiskConfig{
		PatienceNs: int64(patience), FailedNs: int64(failed), PollNs: int64(watchInterval), IdleNs: core.DiskProbeIdleNs,
	}
	if e.opts.DiskProbeAfter > 0 {
		cfg.IdleNs = int64(e.opts.DiskProbeAfter)
	}
	d.watch = core.NewDiskWatch(cfg, 0)
	if !e.host.InlineLog() {
		// Not one of those whom Close waits for: Close asks it whether to wait.
		e.host.Spawn(func() {
			for e.host.Pause(watchInterval, d.stop) {
				e.stepDiskWatch()
			}
		})
	}
}

// stepDiskWatch looks at what came back since it did so last.
func (e *Engine) stepDiskWatch() {
	d := &e.disks
	begun, done := e.pulse.Counts()
	before := d.now()
	if d.handOverFailed.Swap(false) {
		d.watch.Kept()
	}
	v := d.watch.Step(int64(e.host.Since(d.began)), begun, done)
	d.waitedMs.Store(v.WaitedNs / int64(time.Millisecond))
	d.state.Store(uint32(v.State))
	if v.Changed {
		e.logDiskChange(before, v)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return
	}
	if v.Tell && e.cluster != nil {
		e.cluster.announceDisk(v.State)
	}
	if v.HandOver && e.cluster != nil && e.opts.DiskPatience > 0 {
		e.cluster.spawn(e.cluster.evacuate)
	}
	if v.Probe && e.opts.DiskProbeAfter > 0 && d.probing.CompareAndSwap(false, true) {
		e.host.SpawnIn(&d.probe, func() {
			defer d.probing.Store(false)
			e.probeDisk()
		})
	}
}

// end says that nothing more may be started: those who wait for what was started begin to.
func (d *diskHealth) end() {
	d.mu.Lock()
	d.ended = true
	d.mu.Unlock()
}

// logDiskChange is the one line about a change. A disk changes at most once in a fifth of the patience, and is good only after two.
func (e *Engine) logDiskChange(before core.DiskState, v core.DiskVerdict) {
	waited := time.Duration(v.WaitedNs).Round(time.Millisecond)
	switch {
	case v.State == core.DiskHung && before < core.DiskHung:
		e.disks.hung.Add(1)
		e.log.Error("the disk hangs: nothing that was written came back. Nothing is lost; publishers wait or hear that the "+
			"outcome is unknown, and in a cluster leaderships go to replicas whose disks are good",
			"waited", waited)
	case v.State == core.DiskFailed:
		e.log.Error("the disk counts as failed: it has not answered for disk-failed-after. What was answered OK is safe on "+
			"stable storage; look at the device, and end this process if it does not come back",
			"waited", waited)
	case v.State == core.DiskSlow && before >= core.DiskHung:
		e.log.Warn("the disk answers again; this node leads nothing that others can lead until it has done so for a while")
	case v.State == core.DiskSlow:
		e.log.Warn("the disk is slow: for a while nothing came back while writes waited. Nothing is lost", "waited", waited)
	case v.State == core.DiskGood:
		e.log.Info("the disk answers as it should again")
	}
}

// probeDisk writes one block and flushes it. It runs beside everything else and may never return.
func (e *Engine) probeDisk() {
	e.pulse.Begin()
	defer e.pulse.End()
	e.disks.probes.Add(1)
	e.host.AwaitDisk(e.stop)
	if err := e.writeProbe(); err != nil && !errors.Is(err, syscall.ENOSPC) {
		e.log.Warn("the disk could not be asked whether it answers; it is asked again. Nothing else was touched",
			"file", probeFile, "error", err)
	}
}

func (e *Engine) writeProbe() (err error) {
	f, err := e.disk.Open(probeFile)
	if errors.Is(err, fs.ErrNotExist) {
		f, err = e.disk.Create(probeFile, int64(e.info.BlockBytes))
	}
	if err != nil {
		return err
	}
	block, free := aio.AlignedBytes(e.info.BlockBytes)
	defer free()
	err = f.WriteSyncAt(block, 0)
	return errors.Join(err, f.Close())
}

// announceDisk lets the other nodes know, as soon as the store takes it. It does not wait.
func (cn *clusterNode) announceDisk(state core.DiskState) {
	cn.diskWanted.Store(uint32(state))
	if !cn.reportingDisk.CompareAndSwap(false, true) {
		return // who tells looks again
	}
	cn.spawn(func() {
		for cn.ctx.Err() == nil {
			want := core.DiskState(cn.diskWanted.Load())
			if err := cn.reportDisk(want); err == nil || errors.Is(err, meta.ErrNotFound) {
				cn.reportingDisk.Store(false)
				if core.DiskState(cn.diskWanted.Load()) == want || !cn.reportingDisk.CompareAndSwap(false, true) {
					return
				}
				continue
			}
			cn.pause(retryInterval)
		}
	})
}

func (cn *clusterNode) reportDisk(state core.DiskState) error {
	ctx, cancel := cn.e.host.WithTimeout(cn.ctx, storeTimeout)
	defer cancel()
	return cn.store.ReportDisk(ctx, metaDisk(state))
}

func metaDisk(s core.DiskState) meta.DiskState {
	switch s {
	case core.DiskGood:
		return meta.DiskGood
	case core.DiskHung:
		return meta.DiskHung
	case core.DiskFailed:
		return meta.DiskFailed
	}
	return meta.DiskSlow
}
