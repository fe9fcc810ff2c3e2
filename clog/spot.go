package clog

// StepOnSpot does one round of the log's work on the calling goroutine, if the log sleeps with nothing in flight: it
// gathers one group and makes it durable with a single write. It is for a caller that would otherwise only wait for its
// own records. If the log is busy, needs a new file or buffer, or has failed, StepOnSpot does nothing and returns
// false: then the caller must use Wake.
//
// Doing the work here saves the switch to the log's goroutine and back. Any goroutine may call StepOnSpot; the Source's
// methods then run on that goroutine, still one at a time. It hangs as long as the disk does.
//
//	the log's goroutine                   a caller
//	-------------------                   --------
//	A1 nothing to do, nothing in flight   B1 publishes its record
//	A2 unlocks mu                         B2 tries to lock mu
//	A3 sleeps until Wake                  B3 locked: gathers, writes, Durable; unlocks
//	A4 locks mu, looks at everything         not locked: Wake
//
// If B2 comes before A2, B wakes the log, so the log does not sleep in A3. A third caller that comes during B3 does not
// get the lock. It wakes the log, which waits for the lock in A4 and then sees the third caller's record.
func (l *Log) StepOnSpot() bool {
	if !l.mu.TryLock() {
		return false
	}
	defer l.mu.Unlock()
	if !l.canStepOnSpot() {
		return false
	}
	l.onSpot = true
	more, err := l.submitNext()
	l.onSpot = false
	l.publish()
	if err != nil {
		l.Wake() // Run returns it
	}
	return more
}

// canStepOnSpot says that one write can make the next group durable while the log's goroutine sleeps: nothing is in
// flight, and the group needs no new file. The caller holds mu.
func (l *Log) canStepOnSpot() bool {
	return l.asleep && l.err == nil && l.current != nil && l.prep.failure() == nil && !l.stopping.Load() &&
		len(l.inFlight) == 0 && l.room() >= max(l.wantRoom, l.minRoom()) && !l.renews()
}
