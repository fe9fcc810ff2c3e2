package replicate

// A log that recovery has shortened may lack batches that its replica had acknowledged: its last group was not whole
// after a crash, and a group torn by the crash looks the same as one in which a bit changed later. A leader with such a
// log compares it with the logs of the other members of the ISR before it appends or cuts anything:
//
//	leader, its log shortened              member of the ISR
//	1 Probe
//	                                       2 Report: its end
//	3 that end is later than its own: ActHandOver, and nothing else; that replica leads in a new epoch
//	  no end is later: it goes on like any leader; it probes again and answers the new reports
//
// If only one copy lost batches, the others still have them, because every member held everything that was committed.
// So one other member that has no more than this log proves that nothing committed was lost. The leader still waits for
// the remaining members, for CompareNs at most, and not for those whose process is gone. If no other member answers,
// the leader waits without limit: the others may have what this log lacks. That wait ends if an operator makes this
// replica the whole ISR, or if the members' disks turn out to have been replaced.
//
// A damaged member that has more cannot lead. Meanwhile it fetches from this leader the unreadable batches below the
// end of this log; then it can lead. If its unreadable batches lie beyond that end, nobody here has them, and the
// batches behind them may still be whole. Then the leader waits, and names that member (Blocked). The member may be
// able to read its disk after a restart, another member may come back, or an operator gives up the data that only that
// member had. No rule does this automatically: it could cut the last copy of acknowledged batches.
//
// It can happen that every member was heard, none has more than this log, and none has everything that this log is
// known to have committed. Waiting would then bring nothing back: after CompareNs the leader goes on and counts a loss
// (LeaderCounts.Losses).
//
// When a whole cluster was restored from backups of different moments (State.Restored), every member may lack what it
// had acknowledged, and which one has everything is not known. So a log that ends before Restored is compared although
// recovery has not shortened it, and the leader waits without limit for every member: none of them proves anything for
// the others. The latest end holds everything that was committed in any of the logs. An operator who knows that a
// member will not come makes one replica the whole ISR.
//
// Otherwise a leader whose log is whole compares nothing: the leader is in the ISR, so batches beyond its log were
// never committed.

// comparison is what a leader with a shortened log knows of the other logs.
type comparison struct {
	open     bool // the leader appends, commits and cuts nothing
	restored bool // the log is from before the restore: all members have to be heard
	since    int64
	askedAt  int64 // when another leader was asked for last
	blocked  NodeID
}

// Comparing says whether the leader still waits for other members' logs because recovery shortened its own, or because
// it is from a backup.
func (l *Leader) Comparing() bool { return l.comparing.open }

// Blocked returns the member whose damaged log keeps the comparison open: it may have what this log lacks, and it
// cannot lead. 0: there is no such member.
func (l *Leader) Blocked() NodeID { return l.comparing.blocked }

// Shortened says whether the log may lack batches that this replica had acknowledged before its recovery.
func (l *Leader) Shortened() bool { return l.log.Shortened }

// Shortened says whether the log may lack batches that this replica had acknowledged before its recovery. That ends
// when this log is known to hold everything committed.
func (f *Follower) Shortened() bool { return f.log.Shortened }

// longer says whether p's log, according to its report, ends later than this one: in a newer epoch, or further on in
// the same epoch. Each member of the ISR holds everything committed, so the latest end of all members is not before
// Committed.
func (l *Leader) longer(p *Progress) bool {
	return p.endEpoch > l.log.End.Epoch || p.endEpoch == l.log.End.Epoch && p.end > l.log.End.Next
}

// compare ends the comparison when enough is known, or asks for the member that has more as leader.
func (l *Leader) compare(now int64, acts *Actions) {
	c := &l.comparing
	if !c.open {
		return
	}
	v := l.weigh()
	late := now-c.since >= l.cfg.CompareNs
	c.blocked = 0
	switch {
	case !c.restored && v.best != nil && v.best.Down && v.proofs > 0 && late:
		// its batches beyond this log were never committed
	case v.best != nil:
		if now-c.askedAt >= l.cfg.RetryNs {
			c.askedAt = now
			a := acts.add(ActHandOver)
			a.Node, a.Position = v.best.Node, v.best.end
			a.State = State{Epoch: l.epoch, Version: l.isr.version, Leader: l.self.Node, Boot: l.boot}
		}
		return
	case c.restored && v.awaited+v.away > 0:
		if late {
			c.blocked = v.blocked
		}
		return
	case c.restored: // every member was heard
	case v.others == 0:
	case v.proofs > 0 && v.awaited > 0 && !late:
		return
	case v.proofs > 0:
	case v.awaited+v.away > 0:
		if late {
			c.blocked = v.blocked
		}
		return
	case !late:
		return
	default: // every member was heard
		l.losses++
	}
	c.open = false
	for i := range l.peers {
		if p := &l.peers[i]; p.heard && p.State == Probe {
			l.askAgain(p, now, acts) // its report was not answered
		}
	}
}

// verdict sums up the reports of the other members of the ISR.
type verdict struct {
	others int // members whose disks have not been replaced
	// members that have no more than this log, and all of what it was known to have committed: nothing committed is
	// missing here
	proofs  int
	awaited int       // members that may have more and can still say so
	away    int       // members that may have more and whose process is gone
	best    *Progress // the member with the longest log of those that can lead
	blocked NodeID    // a member that may have more and is damaged
}

func (l *Leader) weigh() (v verdict) {
	for _, m := range l.isr.members {
		if m == l.self {
			continue
		}
		p := l.peer(m.Node)
		if p != nil && p.heard && p.Store != m.Store {
			continue // that disk is gone, with everything that it held
		}
		v.others++
		switch {
		case p != nil && p.Down && !p.compared:
			v.away++
		case p == nil || !p.compared:
			v.awaited++
			if p != nil && p.Damaged { // it refuses to report
				v.blocked = p.Node
			}
		case !l.longer(p) && p.end >= l.log.Committed:
			v.proofs++
		case !l.longer(p): // it has lost more than this log
		case !p.Damaged:
			if v.best == nil || p.endEpoch > v.best.endEpoch || p.endEpoch == v.best.endEpoch && p.end > v.best.end {
				v.best = p
			}
		default: // it has more, and must first repair itself from here
			v.awaited++
			v.blocked = p.Node
		}
	}
	return v
}

// whole notes that the log again holds everything that can be committed: this replica may lead at once the next time.
func (l *Leader) whole() {
	if l.log.Committed > l.epochStart && l.epochStart != unknownPosition {
		l.log.Shortened = false
	}
}

// whole does for a follower what Leader.whole does: the log durably holds everything that the leader of this epoch says
// is committed, and thereby everything that was committed before this epoch.
func (f *Follower) whole() {
	if !f.log.Shortened || f.said == 0 || f.log.Committed < f.said {
		return
	}
	entries := f.table.Entries()
	if n := len(entries); n > 0 && entries[n-1].Epoch == f.epoch && entries[n-1].Position < f.said {
		f.log.Shortened = false
	}
}
