package scrub

import (
	"slices"
	"time"

	"penstock/segment"
)

const (
	// firstRetryPause is how long RetryReads waits before it begins, unless the scrub's interval is shorter. The pause
	// doubles after each round that leaves something unreadable.
	firstRetryPause = 30 * time.Second
	maxRetryPause   = time.Hour
)

// RetryReads tries again to read what the device could not read, until the engine closes. On a single node nothing else
// but a restart would do that: the range is isolated, and there is no other copy. In a cluster RetryReads tries the
// ranges that no other replica has repaired meanwhile, and the copies that wait for their device.
func (s *Scrub) RetryReads() {
	c := segment.NewChecker()
	defer c.Close()
	first := firstRetryPause
	if s.n.Interval > 0 {
		first = min(first, s.n.Interval)
	}
	for wait := first; s.pause(wait); {
		left := false
		for _, cp := range s.n.Copies() {
			back, open := s.retryCopy(cp, c)
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

// retryCopy retries the ranges of one partition. back says that the whole partition is served again. open is false when
// the engine closes.
func (s *Scrub) retryCopy(cp Copy, c *segment.Checker) (back, open bool) {
	log := cp.Log()
	before := log.MayReadAgain()
	if log.OpenAgain() {
		cp.ResumeReaders()
	}
	for _, r := range log.MayReadAgain() {
		if _, open = s.retryRange(cp, c, r); !open {
			return false, false
		}
	}
	left := log.MayReadAgain()
	if !slices.Equal(before, left) || cp.WaitsForDevice() {
		cp.DeviceReads()
	}
	return len(left) == 0 && !cp.WaitsForDevice(), true
}

// retryRange retries one range. back says that the whole range is served again. open is false when the engine closes.
func (s *Scrub) retryRange(cp Copy, c *segment.Checker, r segment.Range) (back, open bool) {
	from := r.From
	if from >= r.To {
		return false, true // the range of a segment whose header cannot be read
	}
	for r.From < r.To {
		until, err := cp.Log().ReadAgain(c, r)
		if err != nil {
			break
		}
		n := int64(until - r.From)
		r.From = until
		if !s.pauseFor(n) {
			return false, false
		}
	}
	if r.From > from {
		cp.ResumeReaders()
	}
	if r.From < r.To {
		return false, true
	}
	if s.readAgain.Add(1) <= maxDamageLines {
		s.n.Log.Info("messages that the device could not read read back again: they are served",
			"topic", cp.Topic(), "partition", cp.Number(), "from", from, "to", r.To)
	}
	return true, true
}
