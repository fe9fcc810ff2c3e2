package engine

import (
	"time"

	"penstock/segment"
)

const (
	// firstRetryPause is after how long a single node tries again what its device could not read, if that is less than the scrub's interval; the pause doubles with each
	// try that leaves something.
	firstRetryPause = 30 * time.Second
	maxRetryPause   = time.Hour
)

// retryReads tries again what the device of a single node could not read. Nothing else would, before a restart: the range is isolated, and nobody has another copy. In a
// cluster it is repaired from one. It runs until the engine closes.
func (e *Engine) retryReads() {
	c := segment.NewChecker()
	defer c.Close()
	first := min(firstRetryPause, e.opts.ScrubInterval)
	for wait := first; e.pause(wait, e.stop); {
		left := false
		for _, pt := range e.partitionList() {
			if pt.log == nil || pt.t.quarantined {
				continue
			}
			for _, r := range pt.log.MayReadAgain() {
				back, open := e.retryRead(pt, c, r)
				if !open {
					return
				}
				left = left || !back
			}
		}
		if wait = min(2*wait, maxRetryPause); !left {
			wait = first
		}
	}
}

// retryRead tries one range. It says whether all of it is served again, and false for open when the engine closes.
func (e *Engine) retryRead(pt *partition, c *segment.Checker, r segment.Range) (back, open bool) {
	from := r.From
	for r.From < r.To {
		until, err := pt.log.ReadAgain(c, r)
		if err != nil {
			break
		}
		wait := time.Duration(until-r.From) * time.Second / maxScrubRate
		r.From = until
		if !e.pause(wait, e.stop) {
			return false, false
		}
	}
	if r.From > from {
		pt.readAgain()
	}
	if r.From < r.To {
		return false, true
	}
	if e.scrubbed.readAgain.Add(1) <= maxToldDamage {
		e.log.Info("messages that the device could not read read back again: they are served", "topic", pt.t.name, "partition", pt.number, "from", from, "to", r.To)
	}
	return true, true
}
