package replicate

import "penstock/segment"

// A log may be damaged in a way that its engine can neither repair in place nor cut: a segment file is gone or its head
// does not read, or a cut needs bytes that are damaged and that the leader no longer has. The engine then says
// EvUnusable, and the copy begins anew from its leader:
//
//	leader                                  follower
//	                                        1 EvUnusable: not electable, Resync
//	2 Probe
//	                                        3 Report: where its log ends, damaged
//	4 Match: it is not comparing
//	                                        5 nothing is cut; Resync
//	6 Probe
//	                                        7 Report: an empty log, damaged
//	8 proposes to remove it from the ISR
//	9 Reset, once it is outside, or if the
//	  ISR cannot shrink
//	                                        10 ActReset: the log begins where the leader's does, and
//	                                           counts as shortened until it is whole
//
// Step 3 comes first because a leader that compares (compare.go) has to know how far this log reached: an empty report
// would look as if the log had nothing more. A leader that cannot read its own log does not take step 9: this copy may
// have what the leader lacks.
//
// Until step 4 this log may be the only one that holds a committed batch: its leader may still be comparing, and then
// it does not answer, or there may be no leader. So the engine keeps the whole log until then (Unneeded). Batches that
// a leader lacks when it no longer compares were never committed, in this epoch or any later one.

// A device that fails to read for a moment differs from bytes that read and are wrong: its bytes are still there. A
// member of the ISR whose log is given up for such a device waits before step 5 and asks again. While that member
// counts, it is not known that enough other copies are whole, and a batch that rots unseen elsewhere may be whole here.
// It goes on once it is outside the ISR, or once its whole log lies below the beginning of the leader's. So a device
// that never reads again keeps this copy waiting until another copy has joined. If the device reads first, the engine
// makes a new machine of the same log. The engine does the same for a log that still reads but whose files accept no
// more writes.

// Waits says that the log is given up, but that nothing of it is lost if its device reads it again.
func (f *Follower) Waits() bool { return f.waits }

// Unneeded says that the log is given up, and that a leader knows where it ends and needs nothing of it.
func (f *Follower) Unneeded() bool { return f.anew && f.spared }

// unusable takes EvUnusable. It raises the generation, so that an answer to an earlier report, which counted on the old
// log, is ignored.
func (f *Follower) unusable(now int64, again bool, acts *Actions) {
	if f.waits = f.waits && again; f.err != nil || f.anew {
		return
	}
	f.anew, f.bare, f.spared = true, false, false
	f.waits = again
	f.log.Generation++
	f.log.Shortened = true
	f.damage.cut(0)
	f.state, f.askedAt = idle, noTime
	f.tick(now, acts)
}

// beginAnew takes MsgMatch or MsgReset for a log that is given up.
func (f *Follower) beginAnew(now int64, m *Message, acts *Actions) {
	if f.waits && !f.outside && (m.Kind == MsgMatch || m.Log.Next < f.log.End.Next) {
		f.state, f.askedAt = idle, now // it asks again, in RetryNs
		return
	}
	f.waits = false
	switch {
	case m.Kind == MsgReset:
		f.reset(m, acts)
	case !f.bare:
		f.bare, f.spared, f.state, f.askedAt = true, true, idle, now
		f.send(MsgResync, acts)
	case m.Position == 0: // a leader of an older version whose log begins at the beginning
		f.reset(&Message{}, acts)
	}
}

// isBare says whether the message is a report for a log that was given up.
func (m *Message) isBare() bool {
	return m.Damaged && m.Start == 0 && m.Log.Next == 0 && len(m.Epochs) == 0
}

// bareReport turns a report into that of an empty log.
func (m *Message) bareReport() {
	m.Start, m.Log, m.Epochs, m.Committed, m.Until = 0, segment.State{}, nil, 0, 0
}

// damaged says whether a part of the log does not read back.
func (f *Follower) damaged() bool { return f.anew || f.damage.any() }
