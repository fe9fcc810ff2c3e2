package clog

// StepOnSpot does one round of the log's work on the calling goroutine, if the log is idle with nothing in flight: it
// gathers one group and makes it durable with a single write. It is for a caller that would only wait for its own
// records. It returns false, having done nothing, when the log is busy, needs a new file or buffer, or failed: then the
// caller must use Wake.
//
// It saves the switch to the log's thread and back, which costs a lone caller half as much as the write. Any goroutine
// may call it; the Source's methods then run there, still one at a time.
//
//	the log's goroutine                   a caller
//	-------------------                   --------
//	A1 nothing to do, nothing in flight   B1 publishes its record
//	A2 unlocks mu                         B2 tries to lock mu
//	A3 sleeps until Wake                  B3 locked: gathers, writes, Durable; unlocks
//	A4 locks mu, looks at everything         not locked: Wake
//
// If B2 comes before A2, B wakes the log, so the log does not sleep in A3. A third caller that comes during B3 does not
// get the lock and wakes the log, which waits for the lock in A4 and then sees its record.
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

// canStepOnSpot says that a caller may do the log's work: its goroutine sleeps, nothing is in flight, and a group needs
// no new file.
func (l *Log) canStepOnSpot() bool {
	return l.asleep && l.err == nil && l.current != nil && l.prep.failure() == nil && !l.stopping.Load() &&
		len(l.inFlight) == 0 && l.room() >= max(l.wantRoom, l.minRoom()) && !l.renews()
}

// GatherOnSpot gathers a group if the log is idle, and returns true if there was one. It does not write it: the caller
// must see to it that another goroutine calls WriteOnSpot, or call Wake. After false it must call Wake.
//
// It is for a source that sends records to other nodes in Gather: they are on their way while another goroutine begins
// to write. Nothing here touches the disk, and the lock is only tried for, because its holder may be in a write that
// hangs. A crash before the write leaves nothing of the group on this node; nobody was told OK for it.
func (l *Log) GatherOnSpot() bool {
	if !l.mu.TryLock() {
		return false
	}
	defer l.mu.Unlock()
	if !l.canStepOnSpot() {
		return false
	}
	g := l.idle[len(l.idle)-1]
	if !l.begin(g) {
		return false
	}
	l.noBuffer = false
	if l.source.Gather(g); l.err != nil || g.records == 0 {
		return false
	}
	l.idle = l.idle[:len(l.idle)-1]
	l.stalled.leave()
	l.enqueue(g)
	l.unwritten = g
	return true
}

// WriteOnSpot makes the group durable that GatherOnSpot gathered, on the calling goroutine, and calls Durable there. It
// may hang as long as the disk does. It returns false, having done nothing, if the log's goroutine is awake or has
// written the group already, or the log failed or is to stop: then the caller must use Wake.
//
// The log's own goroutine sleeps in the ring and is bound to a thread. To wake it costs a switch of threads, which a
// lone record waits for on every node; a goroutine of Go's scheduler begins at once.
func (l *Log) WriteOnSpot() bool {
	if !l.mu.TryLock() {
		return false
	}
	defer l.mu.Unlock()
	g := l.unwritten
	if g == nil || !l.asleep || l.err != nil || l.stopping.Load() {
		return false
	}
	l.unwritten = nil
	l.onSpot = true
	err := l.write(g)
	l.onSpot = false
	l.publish()
	if err != nil {
		l.Wake() // Run returns it
	}
	return true
}
