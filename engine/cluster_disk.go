package engine

import (
	"errors"

	"penstock/engine/core"
	"penstock/engine/meta"
)

// diskJudged is told what the watch over the disk found (diskwatch.Watch). It does not wait.
func (cn *clusterNode) diskJudged(v core.DiskVerdict) {
	if v.Tell {
		cn.announceDisk(v.State)
	}
	if v.HandOver && cn.e.opts.DiskPatience > 0 {
		cn.spawn(cn.evacuate)
	}
}

// announceDisk reports the state to the store, for the other nodes, as soon as the store accepts it. It does not wait.
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
