package node

import (
	"fmt"
	"time"
)

const (
	// A goroutine that is woken lateLeast after its time counts as one that was not scheduled.
	lateLeast = 50 * time.Millisecond
	// There is a line about it at most once in schedulingEvery, if the goroutine was late by lateOnce once, or by lateSum
	// in all since the last line.
	schedulingEvery = 10 * time.Second
	lateOnce        = 500 * time.Millisecond
	lateSum         = time.Second
)

// scheduling judges how late a goroutine that sleeps for fixed times is woken, which says whether this process gets a
// processor when it wants one. It has no clock. Only watch uses it.
type scheduling struct {
	sum, longest time.Duration // since the last line
	from         time.Time     // of sum; zero: there is none
	told         time.Time     // the last line
	late         time.Time     // the last time that counted
}

// woke notes that the goroutine was woken at now, late by the given time. It returns what counts of that, and a
// sentence if one is due.
func (s *scheduling) woke(late time.Duration, now time.Time) (counts time.Duration, line string) {
	if late < lateLeast {
		return 0, ""
	}
	if s.from.IsZero() || now.Sub(s.from) > schedulingEvery {
		s.from, s.sum, s.longest = now, 0, 0
	}
	s.late, s.sum, s.longest = now, s.sum+late, max(s.longest, late)
	due := s.longest >= lateOnce || s.sum >= lateSum
	if due && (s.told.IsZero() || now.Sub(s.told) >= schedulingEvery) {
		line = fmt.Sprintf("this process was not scheduled for %d ms, and for %d ms in all within %v: it gets too little of "+
			"a processor, or it was stopped. What is slow meanwhile is not the disk: give the machine or the container more",
			s.longest.Milliseconds(), s.sum.Milliseconds(), schedulingEvery)
		s.told, s.from = now, time.Time{}
	}
	return late, line
}

// short says whether the process lacked a processor within the last schedulingEvery.
func (s *scheduling) short(now time.Time) bool {
	return !s.late.IsZero() && now.Sub(s.late) < schedulingEvery
}

// where says where to look when something was slow.
func (s *scheduling) where(now time.Time, otherwise string) string {
	if s.short(now) {
		return "This process gets too little of a processor (penstock_unscheduled_seconds_total)"
	}
	return otherwise
}

// lookAtScheduling is called when the goroutine has slept for watchInterval since slept.
func (w *watch) lookAtScheduling(slept time.Time) {
	now := w.e.host.Instant()
	counts, line := w.scheduled.woke(now.Sub(slept)-watchInterval, now)
	w.e.counters.UnscheduledNanos.Add(uint64(counts))
	if line != "" {
		w.e.log.Warn(line)
	}
}
