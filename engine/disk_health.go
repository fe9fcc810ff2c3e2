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

// diskHealth is the state of this node's disk. core.DiskWatch decides; stepDiskWatch feeds it from the engine's pulse
// and does what it decides. Nothing here waits for the disk, or takes a lock whose holder may wait for it. Fields that
// are neither atomic nor guarded by mu belong to the one goroutine that steps the watch.
type diskHealth struct {
	watch *core.DiskWatch
	began time.Time
	stop  chan struct{} // closed when the engine's files are released

	state          atomic.Uint32 // core.DiskState
	waitedMs       atomic.Int64
	probing        atomic.Bool // a probe is running
	handOverFailed atomic.Bool // the last hand-over moved nothing, and the watch has not been told
	probe          sync.WaitGroup

	mu    lock.Mutex[lock.DiskHealth] // guards ended; held while the watch starts goroutines
	ended bool                        // the engine closes: no more goroutines may be started

	probes, hung, handOvers atomic.Uint64
}

// probeFile is the file that probes of an idle disk write: one block, created once and then overwritten. Nobody reads
// it.
const probeFile = "disk.probe"

func (d *diskHealth) now() core.DiskState { return core.DiskState(d.state.Load()) }

// hangs says whether writes have not returned for longer than anybody waits.
func (d *diskHealth) hangs() bool { return d.now() >= core.DiskHung }

// failure is the disk's part of Health.
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

// startDiskWatch starts the disk watch.
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
		// Close does not wait for this goroutine: Close asks the watch whether waiting makes sense.
		e.host.Spawn(func() {
			for e.host.Pause(watchInterval, d.stop) {
				e.stepDiskWatch()
			}
		})
	}
}

// stepDiskWatch reads which writes have returned since the last call, and acts on the new state.
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
	e.members.diskJudged(v)
	if v.Probe && e.opts.DiskProbeAfter > 0 && d.probing.CompareAndSwap(false, true) {
		e.host.SpawnIn(&d.probe, func() {
			defer d.probing.Store(false)
			e.probeDisk()
		})
	}
}

// end stops further starts, so that Close can wait for the goroutines that were started.
func (d *diskHealth) end() {
	d.mu.Lock()
	d.ended = true
	d.mu.Unlock()
}

// logDiskChange logs a change of the state, one line each. The state changes at most once in a fifth of the patience,
// and becomes good only after two.
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

// probeDisk writes one block and flushes it, on a goroutine of its own. It may never return.
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

// announceDisk reports the state to the store, for the other nodes, as soon as the store accepts it. It does not wait.
func (cn *clusterNode) diskJudged(v core.DiskVerdict) {
	if v.Tell {
		cn.announceDisk(v.State)
	}
	if v.HandOver && cn.e.opts.DiskPatience > 0 {
		cn.spawn(cn.evacuate)
	}
}

func (cn *clusterNode) announceDisk(state core.DiskState) {
	cn.diskWanted.Store(uint32(state))
	if !cn.reportingDisk.CompareAndSwap(false, true) {
		return // the goroutine that reports will see the new state
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
