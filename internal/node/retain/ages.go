package retain

import (
	"time"

	"penstock/internal/lock"
	"penstock/internal/node/clock"
	"penstock/segment"
)

// Seen knows which part of a partition's log is older than a limit, of the data that this process saw arrive. The age
// of such data is the monotonic time since then, whatever a leader's clock said. So neither a clock that steps nor a
// leader with a wrong clock can make a message appear older than it is. Each copy has its own Seen for each limit.
//
// The zero value knows nothing: all data counts as new when it is first seen. A crash loses the marks, and their data
// becomes data from before the start: see Ages. Only the flusher uses it.
type Seen struct {
	marks []ageMark // ascending in both fields, at most maxAgeMarks+1
}

// Ages knows the same of data from before the process began. There are only the times that leaders gave it. Its age
// counts from the newest of those times, plus the monotonic time since the start. Time in which the node was down does
// not count until the wall clock can be trusted (clock.Clock.Proven). So an error always keeps data longer.
//
// mu guards all fields. Recovery writes them before other goroutines run, and the committer writes old after a cut.
type Ages struct {
	mu     lock.Mutex[lock.Ages]
	old    segment.Offset // data below this offset is from before the process began
	newest int64          // newest append time below old, or later; ns since 1970
	began  time.Duration  // the monotonic time when newest was found
}

// ageMark says that the log had reached at least end when the monotonic clock was at.
type ageMark struct {
	end segment.Offset
	at  time.Duration
}

// maxAgeMarks sets the resolution of Seen, which is the limit divided by maxAgeMarks, or the interval of retention if
// that is longer.
const maxAgeMarks = 64

// Found records the end of the log and its newest append time, which recovery found. It is called once, before the
// flusher runs.
func (a *Ages) Found(end segment.Offset, newest int64, now time.Duration) {
	a.old, a.newest, a.began = end, newest, now
}

// Cut is called when the log is cut back to end. Data that is appended there later is new.
func (a *Ages) Cut(end segment.Offset) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.old = min(a.old, end)
}

// Observe records that the log is committed up to end, and drops marks that no longer matter for limit.
func (s *Seen) Observe(end segment.Offset, now, limit time.Duration) {
	for n := len(s.marks); n > 0 && s.marks[n-1].end > end; n-- { // an operator forced a leader with a shorter log
		s.marks = s.marks[:n-1]
	}
	if n := len(s.marks); n == 0 || s.marks[n-1].end < end && now-s.marks[n-1].at >= limit/maxAgeMarks {
		s.marks = append(s.marks, ageMark{end, now})
	}
	old := 0
	for old+1 < len(s.marks) && now-s.marks[old+1].at >= limit {
		old++
	}
	if old = max(old, len(s.marks)-maxAgeMarks-1); old > 0 {
		s.marks = append(s.marks[:0], s.marks[old:]...)
	}
}

// Before returns the offset below which all data arrived at least limit ago, according to the marks.
func (s *Seen) Before(now, limit time.Duration) (to segment.Offset) {
	for _, m := range s.marks {
		if now-m.at < limit {
			break
		}
		to = m.end
	}
	return to
}

// OldTime returns an append time and an offset. Data below the offset whose append time is earlier than ns is at least
// limit old.
func (a *Ages) OldTime(c *clock.Clock, limit time.Duration) (ns int64, end segment.Offset) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, ok := c.Proven()
	if !ok {
		// A leader may have written append times in the future. They must not make earlier data older.
		now = min(c.NowNs(), a.newest+int64(c.Mono()-a.began))
	}
	return now - int64(limit), a.old
}
