package engine

import (
	"slices"
	"time"

	"penstock/segment"
)

const (
	maxRetryPause = time.Hour
)

// retryReads tries again to read what the device could not read. On a single node only a restart would do that: the
// range is isolated, and there is no other copy. In a cluster it tries the ranges that no other replica has repaired
// meanwhile, and the copies that wait for their device (replica_wait_device.go). It runs on a goroutine of its own
// until the engine closes.
func (e *Engine) retryReads() {
	c := segment.NewChecker()
	defer c.Close()
	first := firstRetryPause
	if e.opts.ScrubInterval > 0 {
		first = min(first, e.opts.ScrubInterval)
	}
	for wait := first; e.host.Pause(wait, e.stop); {
		left := false
		for _, pt := range e.partitionList() {
			if !pt.rep.hasLog() || pt.Log() == nil || pt.t.quarantined {
				continue
			}
			back, open := e.retryPartition(pt, c)
			if !open {
				return
			}
			left = left || !back
		}
		if wait = min(2*wait, maxRetryPause); !left {
			wait = first
		}
	}
}

// retryPartition tries the ranges of one partition. back says that all of it is served again; open is false when the
// engine closes.
func (e *Engine) retryPartition(pt *partition, c *segment.Checker) (back, open bool) {
	before := pt.Log().MayReadAgain()
	if pt.Log().OpenAgain() {
		pt.resumeReaders()
	}
	for _, r := range pt.Log().MayReadAgain() {
		if _, open = e.retryRead(pt, c, r); !open {
			return false, false
		}
	}
	left := pt.Log().MayReadAgain()
	if !slices.Equal(before, left) || pt.rep.isWaitingForDevice() {
		pt.rep.deviceReads()
	}
	return len(left) == 0 && !pt.rep.isWaitingForDevice(), true
}

// retryRead tries one range. back says that all of it is served again; open is false when the engine closes.
func (e *Engine) retryRead(pt *partition, c *segment.Checker, r segment.Range) (back, open bool) {
	from := r.From
	if from >= r.To {
		return false, true // the range of a segment whose header cannot be read
	}
	for r.From < r.To {
		until, err := pt.Log().ReadAgain(c, r)
		if err != nil {
			break
		}
		wait := time.Duration(until-r.From) * time.Second / maxScrubRate
		r.From = until
		if !e.host.Pause(wait, e.stop) {
			return false, false
		}
	}
	if r.From > from {
		pt.resumeReaders()
	}
	if r.From < r.To {
		return false, true
	}
	if e.scrubbed.readAgain.Add(1) <= maxDamageLines {
		e.log.Info("messages that the device could not read read back again: they are served",
			"topic", pt.t.name, "partition", pt.Number(), "from", from, "to", r.To)
	}
	return true, true
}
