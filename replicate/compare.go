package replicate

// A log that recovery has shortened may lack what its replica had acknowledged: its last group was not whole after a
// crash, and that a crash tore it or that a bit of it changed later looks the same. Whoever leads with such a log
// compares it with the other members of the ISR before it appends or cuts anything:
//
//	leader, its log shortened              member of the ISR
//	1 Probe
//	                                       2 Report: its end
//	3 the end is later than its own: ActHandOver, and nothing else; that replica leads in a new epoch
//	  none is later: it goes on as any leader, the reports are asked for again and answered
//
// What one copy lost alone the others still have, for everything committed was on all of them. So one other member that
// has no more proves that nothing committed was lost; the leader still waits for the other members, CompareNs at most,
// and not for those whose process is gone. If no other member can be heard, it waits for as long as it takes: the
// others may have what this log lacks. An ISR of itself alone ends that, which takes an operator, or the news that
// their disks were replaced.
//
// A member that has more and is damaged cannot lead. What it cannot read below this log's end it fetches from here
// meanwhile, and then it can. If what it cannot read lies beyond, nobody here has it, and what follows that may still
// be whole: the leader waits, and says for whom (Blocked). That member may read its disk again after a restart, another
// one may come back, or an operator gives up what only it had. No rule does that by itself: it could cut the last copy
// of what was acknowledged.
//
// If every member was heard, and none has more, but none has all either that this log is known to have committed, then
// waiting would bring nothing back: after CompareNs the leader goes on and counts it as a loss (LeaderCounts.Losses).
//
// A leader whose log is whole compares nothing: what others have beyond it was never committed, because it is in the
// ISR and does not have it.

// comparison is what a leader with a shortened log knows of the other logs.
type comparison struct {
	open    bool // nothing is appended, committed or cut
	since   int64
	askedAt int64 // for another leader
	blocked NodeID
}

// Comparing says whether the leader waits for other members' logs, because its own was shortened by recovery.
func (l *Leader) Comparing() bool { return l.comparing.open }

// Blocked is the member whose damaged log keeps the comparison open: it may have what this log lacks, and cannot
// lead. 0: there is none.
func (l *Leader) Blocked() NodeID { return l.comparing.blocked }

// Shortened says whether the log may lack what this replica had acknowledged before it was recovered.
func (l *Leader) Shortened() bool { return l.log.Shortened }

// Shortened says whether the log may lack what this replica had acknowledged before it was recovered. It ends when the
// leader's log is known to be here.
func (f *Follower) Shortened() bool { return f.log.Shortened }

// longer says whether p's log, as it reported it, ends later than this one: with a newer epoch, or with more of the
// same. Each member of the ISR holds everything committed, so the latest end of them all is behind it.
func (l *Leader) longer(p *Progress) bool {
	return p.endEpoch > l.log.End.Epoch || p.endEpoch == l.log.End.Epoch && p.end > l.log.End.Next
}

// compare ends the comparison when enough is known, or asks for the leader that has more.
func (l *Leader) compare(now int64, acts *Actions) {
	c := &l.comparing
	if !c.open {
		return
	}
	v := l.weigh()
	late := now-c.since >= l.cfg.CompareNs
	c.blocked = 0
	switch {
	case v.best != nil && v.best.Down && v.proofs > 0 && late: // what it alone has beyond this log was never committed
	case v.best != nil:
		if now-c.askedAt >= l.cfg.RetryNs {
			c.askedAt = now
			a := acts.add(ActHandOver)
			a.Node, a.Position = v.best.Node, v.best.end
			a.State = State{Epoch: l.epoch, Version: l.isr.version, Leader: l.self.Node, Boot: l.boot}
		}
		return
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
	default: // all that there is was heard
		l.losses++
	}
	c.open = false
	for i := range l.peers {
		if p := &l.peers[i]; p.heard && p.State == Probe {
			l.askAgain(p, now, acts) // its report was not answered
		}
	}
}

// verdict is what the other members of the ISR say together.
type verdict struct {
	others int // whose disks are there
	// that have all that this log was known to have committed, and no more than it has: nothing committed is missing here
	proofs  int
	awaited int       // that may have more and can still say so
	away    int       // that may have more, and whose process is gone
	best    *Progress // that has the most of those that can lead
	blocked NodeID    // that may have more, and is damaged
}

func (l *Leader) weigh() (v verdict) {
	for _, m := range l.isr.members {
		if m == l.self {
			continue
		}
		p := l.peer(m.Node)
		if p != nil && p.heard && p.Store != m.Store {
			continue // that disk is gone, and what it held
		}
		v.others++
		switch {
		case p != nil && p.Down && !p.compared:
			v.away++
		case p == nil || !p.compared:
			v.awaited++
			if p != nil && p.Damaged { // it refuses to say
				v.blocked = p.Node
			}
		case !l.longer(p) && p.end >= l.log.Committed:
			v.proofs++
		case !l.longer(p): // it has lost more than this one
		case !p.Damaged:
			if v.best == nil || p.endEpoch > v.best.endEpoch || p.endEpoch == v.best.endEpoch && p.end > v.best.end {
				v.best = p
			}
		default: // until it has repaired itself from here
			v.awaited++
			v.blocked = p.Node
		}
	}
	return v
}

// whole says that everything that can be committed is in the log again: it may lead at once the next time.
func (l *Leader) whole() {
	if l.log.Committed > l.epochStart && l.epochStart != unknownPosition {
		l.log.Shortened = false
	}
}

// whole is Leader.whole: the log holds durably what the leader of this epoch says is committed, and by that it knows
// everything that was committed before it.
func (f *Follower) whole() {
	if !f.log.Shortened || f.said == 0 || f.log.Committed < f.said {
		return
	}
	entries := f.table.Entries()
	if n := len(entries); n > 0 && entries[n-1].Epoch == f.epoch && entries[n-1].Position < f.said {
		f.log.Shortened = false
	}
}
