package engine

import (
	"errors"
	"time"

	"penstock/internal/lock"
	"penstock/segment"
)

// ages says what of a partition's log is older than a limit, for retention by age. It is each copy's own knowledge:
// what this process has seen come is as old as the monotonic time since then, whatever any leader's clock said. So
// neither a clock that steps, nor a leader whose clock is wrong, makes a message older than it is.
//
// What was there when the process began has only the times that leaders gave it. Its age is counted from the newest
// of them, plus the monotonic time since the start: the time that the node was down does not count, until the wall
// clock can be believed (clock.proven). Where it is wrong it is so on the side of keeping.
//
// The zero value knows nothing: everything is new when it is seen first. The recovery and the committer (after a cut)
// write the first three fields, the flusher the others.
type ages struct {
	mu     lock.Mutex[lock.Ages]
	old    segment.Offset // what lies below was there when the process began
	newest int64          // append time of the newest of it, or less; ns since 1970
	began  time.Duration  // mono at that moment

	marks []ageMark // by both fields, at most maxAgeMarks and one
}

// ageMark says that the log ended at end, at least, when the monotonic clock was at.
type ageMark struct {
	end segment.Offset
	at  time.Duration
}

// maxAgeMarks is how finely the age of what came is known: to this part of the limit, or to the interval of retention
// if that is longer.
const maxAgeMarks = 64

// recovered is called once, before the flusher runs.
func (a *ages) recovered(end segment.Offset, newest int64, now time.Duration) {
	a.old, a.newest, a.began = end, newest, now
}

// cut is called when the log goes back to end: what comes there is new.
func (a *ages) cut(end segment.Offset) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.old = min(a.old, end)
}

// observe notes that the log is committed up to end, and forgets what says nothing more about limit.
func (a *ages) observe(end segment.Offset, now, limit time.Duration) {
	for n := len(a.marks); n > 0 && a.marks[n-1].end > end; n-- { // somebody forced a leader that had less
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

// seenBefore is the offset below which everything came at least limit ago.
func (a *ages) seenBefore(now, limit time.Duration) (to segment.Offset) {
	for _, m := range a.marks {
		if now-m.at < limit {
			break
		}
		to = m.end
	}
	return to
}

// oldTime is the append time below which what lies below end was appended at least limit ago, as far as that is known.
func (a *ages) oldTime(c *clock, limit time.Duration) (ns int64, end segment.Offset) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, ok := c.proven()
	if !ok {
		// A leader may have written times that lie ahead: they do not make what came before older.
		now = min(c.nowNs(), a.newest+int64(c.mono()-a.began))
	}
	return now - int64(limit), a.old
}

// observe notes what came, of a partition whose messages may become too old: also while none of its segments could go.
func (f *flusher) observe(pt *partition) {
	if limit := pt.t.limits.Load().retentionAge; limit > 0 {
		pt.ages.observe(pt.committedEnd(), f.e.clock.mono(), limit)
	}
}

// agedTo is the offset below which everything is older than limit.
func (f *flusher) agedTo(pt *partition, limit time.Duration) segment.Offset {
	c := f.e.clock
	to := pt.ages.seenBefore(c.mono(), limit)
	ns, old := pt.ages.oldTime(c, limit)
	if to >= old {
		return to
	}
	at, _, err := pt.log.SeekTime(ns)
	if errors.Is(err, segment.ErrAtEnd) {
		at, err = old, nil
	}
	if err == nil {
		to = max(to, min(at, old))
	}
	return to
}
