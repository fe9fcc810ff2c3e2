package clog

// StepOnSpot does one round of the log's work on the calling goroutine, if the log is idle with nothing in flight: it
// gathers one group and makes it durable with a single write. It is for a caller that would otherwise only wait for its
// own records. If the log is busy, needs a new file or buffer, or has failed, StepOnSpot does nothing and returns
// false: then the caller must use Wake.
//
// Doing the work here saves the switch to the log's thread and back, which costs a lone caller half as much as the
// write. Any goroutine may call StepOnSpot; the Source's methods then run on that goroutine, still one at a time.
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
	return l.canStepOnSpot() && l.stepHere()
}

// StepBeside does one round of the log's work, like StepOnSpot. Only committer.stepBeside calls it, an ordinary
// goroutine that does nothing else while groups are small. It waits for Log.mu, and so hangs as long as the disk does.
//
// The driving goroutine of a ring is bound to a thread. Each time it lets others run, or is woken, the processor
// changes threads twice, which costs more than a fast device's write. An ordinary goroutine costs a fraction of that.
func (l *Log) StepBeside() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.canStepOnSpot() && l.stepHere()
}

// stepHere does one round on the calling goroutine, which holds mu, and says whether there was something to do.
func (l *Log) stepHere() bool {
	l.onSpot = true
	more, err := l.submitNext()
	l.onSpot = false
	l.publish()
	if err != nil {
		l.Wake() // Run returns it
	}
	return more
}

// CanLeave says that the driving goroutine calls, and that StepBeside could do what it is about to do once it sleeps.
// The Source calls it in Gather: if it leaves its records in place, it must see to it that StepBeside is called, and
// Wake if StepBeside returns false.
func (l *Log) CanLeave() bool { return !l.onSpot && l.canStep() }

// canStepOnSpot says that a caller may do the log's work while the driving goroutine sleeps. The caller holds mu.
func (l *Log) canStepOnSpot() bool { return l.asleep && l.canStep() }

// canStep says that one write can make the next group durable: nothing is in flight, and the group needs no new file.
// The caller holds mu.
func (l *Log) canStep() bool {
	return l.err == nil && l.current != nil && l.prep.failure() == nil && !l.stopping.Load() &&
		len(l.inFlight) == 0 && !l.roomWait.on && l.room() >= max(l.wantRoom, l.minRoom()) && !l.renews()
}

// GatherOnSpot gathers a group if the log is idle, and returns true if there was something to gather. It does not write
// the group: the caller must see to it that another goroutine calls WriteOnSpot, or call Wake. If GatherOnSpot returns
// false, the caller must call Wake.
//
// It is for a source that sends records to other nodes in Gather: the records are on their way while another goroutine
// begins to write. GatherOnSpot never touches the disk. It only tries to get the lock, because the holder may be in a
// write that hangs. A crash before the write leaves nothing of the group on this node; nobody was told OK for it.
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

// WriteOnSpot makes durable, on the calling goroutine, the group that GatherOnSpot gathered, and calls Durable there.
// It may hang as long as the disk does. If the log's goroutine is awake or has written the group already, or the log
// failed or is to stop, WriteOnSpot does nothing and returns false: then the caller must use Wake.
//
// The log's own goroutine sleeps in the ring and is bound to a thread. Waking it costs a thread switch, for which a
// lone record would wait on every node; an ordinary goroutine begins at once.
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
