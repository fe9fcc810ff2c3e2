package clog

// StepOnSpot lets a caller that will only wait for its own records do the log's work: when the log is idle and nothing is in
// flight, it gathers one group and makes it durable with a single write on the calling goroutine. It returns false, having done nothing, when the
// log is busy, needs a new file or buffer, or failed: then Wake must be called as usual.
//
// It saves the way to the log's thread and back, which for a lone caller costs half as much as the write. Any goroutine may
// call it; the Source's methods then run there, still one at a time.
//
//	the log's goroutine                   a caller
//	-------------------                   --------
//	A1 nothing to do, nothing in flight   B1 publishes its record
//	A2 unlocks turn                       B2 tries to lock turn
//	A3 sleeps until Wake                  B3 locked: gathers, writes, Durable; unlocks
//	A4 locks turn, looks at everything       not locked: Wake
//
// If B2 comes before A2, B wakes the log, which therefore does not sleep in A3. A third caller that comes during B3 does not get the
// lock and wakes the log, which waits for the lock in A4 and then sees its record.
func (l *Log) StepOnSpot() bool {
	if !l.turnLock.TryLock() {
		return false
	}
	defer l.turnLock.Unlock()
	if !l.asleep || l.err != nil || l.current == nil || l.prep.failure() != nil || l.stopping.Load() ||
		len(l.inFlight) > 0 || l.room() < max(l.wantRoom, l.minRoom()) || l.renews() {
		return false
	}
	l.onSpot = true
	more, err := l.turn()
	l.onSpot = false
	l.publish()
	if err != nil {
		l.Wake() // Run returns it
	}
	return more
}
