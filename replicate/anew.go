package replicate

import "penstock/segment"

// A log may be damaged in a way that its engine can neither repair in place nor cut: a segment file is gone or its head
// does not read, or what a cut needs lies in what is damaged and the leader has it no more. The engine says so with
// EvUnusable, and the copy begins anew from its leader:
//
//	leader                                  follower
//	                                        1 EvUnusable: not electable, Resync
//	2 Probe
//	                                        3 Report: where its log ends, damaged
//	4 Match: it compares nothing
//	                                        5 nothing is cut; Resync
//	6 Probe
//	                                        7 Report: an empty log, damaged
//	8 proposes to remove it from the ISR
//	9 Reset, once it is outside, or if the
//	  ISR cannot shrink
//	                                        10 ActReset: the log begins where the leader's does, and
//	                                           is shortened until it is whole
//
// Step 3 comes first because a leader that compares (compare.go) has to know how far this log went: an empty one would
// look as if it had no more. A leader that cannot read its own log does not take step 9: this copy may have what it
// lacks.
//
// Up to step 4 this log may be the only one that has something committed: its leader compares and does not answer, or
// there is no leader. So its engine keeps all of it until then (Unneeded). What a leader that does not compare lacks
// was never committed, and that stays so in every later epoch.

// A device that could not read for a moment is another thing than bytes that read and are wrong: they are still there.
// A member of the ISR that is given up for such a device waits in front of step 5, and asks again: as long as it
// counts, nobody knows of enough other copies that are whole, and what rots there unseen may be whole here. It goes on
// when it is outside, or when all that it has lies below the leader's beginning, so a device that never reads again
// keeps it waiting until another copy has joined. If the device reads first, its engine makes a new machine of the same
// log. The same is done with a log that reads, and whose files take nothing more.

// Waits says that the log is given up, and that nothing is lost of it if its device reads it again.
func (f *Follower) Waits() bool { return f.waits }

// Unneeded says that the log is given up, and that a leader has heard where it ends and needs nothing of it.
func (f *Follower) Unneeded() bool { return f.anew && f.spared }

// unusable takes EvUnusable. Answers to what was reported before are about a log that is not counted on any more.
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

// isBare says whether a report is that of a log that was given up.
func (m *Message) isBare() bool {
	return m.Damaged && m.Start == 0 && m.Log.Next == 0 && len(m.Epochs) == 0
}

// bareReport makes a report that of an empty log.
func (m *Message) bareReport() { m.Start, m.Log, m.Epochs = 0, segment.State{}, nil }

// damaged says whether something of the log does not read back.
func (f *Follower) damaged() bool { return f.anew || f.damage.any() }
