package retain

import (
	"time"

	"penstock/engine/base"
	"penstock/internal/lock"
	"penstock/segment"
)

// Ages knows which part of a partition's log is older than a limit, for retention by age. Each copy has its own. Data
// that this process saw arrive is as old as the monotonic time since then, whatever a leader's clock said. So neither a
// clock that steps, nor a leader with a wrong clock, makes a message older than it is.
//
// Data from before the process began has only the times that leaders gave it. Its age counts from the newest of those,
// plus the monotonic time since the start. Time in which the node was down does not count until the wall clock can be
// trusted (base.Clock.Proven). So an error always keeps data longer.
//
// The zero value knows nothing: all data counts as new when it is first seen. A crash loses the marks, and the data
// becomes data from before the start. mu guards old, newest and began, which recovery and the committer (after a cut)
// write. Only the flusher uses marks.
type Ages struct {
	mu     lock.Mutex[lock.Ages]
	old    segment.Offset // the log below it is from before the process began
	newest int64          // no later than the newest append time below old; ns since 1970
	began  time.Duration  // mono at that moment

	marks []ageMark // ascending in both fields, at most maxAgeMarks+1
}

// ageMark says that the log reached at least end when the monotonic clock was at.
type ageMark struct {
	end segment.Offset
	at  time.Duration
}

// maxAgeMarks sets the resolution of Ages: the limit divided by it, or the interval of retention if that is longer.
const maxAgeMarks = 64

// Found sets what recovery found. It is called once, before the flusher runs.
func (a *Ages) Found(end segment.Offset, newest int64, now time.Duration) {
	a.old, a.newest, a.began = end, newest, now
}

// Cut is called when the log is cut back to end: data appended there is new.
func (a *Ages) Cut(end segment.Offset) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.old = min(a.old, end)
}

// Observe records that the log is committed up to end, and drops marks that no longer matter for limit.
func (a *Ages) Observe(end segment.Offset, now, limit time.Duration) {
	for n := len(a.marks); n > 0 && a.marks[n-1].end > end; n-- { // an operator forced a leader with a shorter log
		a.marks = a.marks[:n-1]
	}
	if n := len(a.marks); n == 0 || a.marks[n-1].end < end && now-a.marks[n-1].at >= limit/maxAgeMarks {
		a.marks = append(a.marks, ageMark{end, now})
	}
	old := 0
	for old+1 < len(a.marks) && now-a.marks[old+1].at >= limit {
		old++
	}
	if old = max(old, len(a.marks)-maxAgeMarks-1); old > 0 {
		a.marks = append(a.marks[:0], a.marks[old:]...)
	}
}

// SeenBefore returns the offset below which all data arrived at least limit ago.
func (a *Ages) SeenBefore(now, limit time.Duration) (to segment.Offset) {
	for _, m := range a.marks {
		if now-m.at < limit {
			break
		}
		to = m.end
	}
	return to
}

// OldTime returns an append time and an offset: data below end with an earlier append time is at least limit old, as
// far as that is known.
func (a *Ages) OldTime(c *base.Clock, limit time.Duration) (ns int64, end segment.Offset) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, ok := c.Proven()
	if !ok {
		// A leader may have written append times that lie in the future. They must not make earlier data older.
		now = min(c.NowNs(), a.newest+int64(c.Mono()-a.began))
	}
	return now - int64(limit), a.old
}
