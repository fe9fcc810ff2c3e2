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
	if !l.idles() {
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

// idles says that a caller may do the log's work: its goroutine sleeps, nothing is in flight, and a group needs no new file.
func (l *Log) idles() bool {
	return l.asleep && l.err == nil && l.current != nil && l.prep.failure() == nil && !l.stopping.Load() &&
		len(l.inFlight) == 0 && l.room() >= max(l.wantRoom, l.minRoom()) && !l.renews()
}

// GatherOnSpot is StepOnSpot for a caller that may not wait for the disk: it gathers a group, if the log is idle, and leaves
// the write to the log's goroutine. The caller must call Wake afterwards, whether there was a group or not.
//
// A source that hands records on in Gather, to other nodes, saves them the way to the log's goroutine: they are under way
// while that wakes up and writes. Nothing in here touches the disk, and the lock is only tried for: its holder may be in a
// write that hangs. A crash before the write leaves nothing of the group here, as before any write: nobody was told OK.
func (l *Log) GatherOnSpot() {
	if !l.turnLock.TryLock() {
		return
	}
	defer l.turnLock.Unlock()
	if !l.idles() {
		return
	}
	g := l.idle[len(l.idle)-1]
	if !l.begin(g) {
		return
	}
	l.refused = false
	if l.source.Gather(g); l.err != nil || g.records == 0 {
		return
	}
	l.idle = l.idle[:len(l.idle)-1]
	l.stalled.leave()
	l.admit(g)
	l.unwritten = g
}
