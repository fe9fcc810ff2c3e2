package replicate

// A log that recovery has shortened may lack what its replica had acknowledged: its last group was not whole after a crash, and that a crash tore it or that a bit
// of it changed later looks the same. Whoever leads with such a log compares it with the other members of the ISR before it appends or cuts anything:
//
//	leader, its log shortened              member of the ISR
//	1 Probe
//	                                       2 Report: its end
//	3 the end is later than its own: ActHandOver, and nothing else; that replica leads in a new epoch
//	  none is later: it goes on as any leader, the reports are asked for again and answered
//
// What one copy lost alone the others still have, for everything committed was on all of them. So one other member that has no more proves that nothing
// committed was lost; the leader still waits for the other members, CompareNs at most, and not for those whose process is gone. If no other member can be
// heard, it waits for as long as it takes: the others may have what this log lacks. An ISR of itself alone ends that, which takes an operator, or the news
// that their disks were replaced.
//
// A leader whose log is whole compares nothing: what others have beyond it was never committed, because it is in the ISR and does not have it.

// comparison is what a leader with a shortened log knows of the other logs.
type comparison struct {
	open    bool // nothing is appended, committed or cut
	since   int64
	askedAt int64 // for another leader
}

// Comparing says whether the leader waits for other members' logs, because its own was shortened by recovery.
func (l *Leader) Comparing() bool { return l.comparing.open }

// Shortened says whether the log may lack what this replica had acknowledged before it was recovered.
func (l *Leader) Shortened() bool { return l.log.Shortened }

// Shortened says whether the log may lack what this replica had acknowledged before it was recovered. It ends when the leader's log is known to be here.
func (f *Follower) Shortened() bool { return f.log.Shortened }

// longer says whether p's log, as it reported it, ends later than this one: with a newer epoch, or with more of the same. Each member of the ISR holds everything
// committed, so the latest end of them all is behind it.
func (l *Leader) longer(p *Progress) bool {
	return p.endEpoch > l.log.End.Epoch || p.endEpoch == l.log.End.Epoch && p.end > l.log.End.Next
}

// compare ends the comparison when enough is known, or asks for the leader that has more.
func (l *Leader) compare(now int64, acts *Actions) {
	c := &l.comparing
	if !c.open {
		return
	}
	var best *Progress
	others, heard, awaited := 0, 0, 0
	for _, m := range l.isr.members {
		if m == l.self {
			continue
		}
		p := l.peer(m.Node)
		if p != nil && p.heard && p.Store != m.Store {
			continue // that disk is gone, and what it held
		}
		others++
		switch {
		case p != nil && p.compared:
			switch {
			case !l.longer(p):
				heard++
			case p.Damaged: // it cannot lead before it has repaired itself from here
				awaited++
			case best == nil || p.endEpoch > best.endEpoch || p.endEpoch == best.endEpoch && p.end > best.end:
				best = p
			}
		case p == nil || !p.Down:
			awaited++
		}
	}
	late := now-c.since >= l.cfg.CompareNs
	switch {
	case best != nil && best.Down && heard > 0 && late: // what it alone has beyond this log was never committed
	case best != nil:
		if now-c.askedAt >= l.cfg.RetryNs {
			c.askedAt = now
			a := acts.add(ActHandOver)
			a.Node, a.Position = best.Node, best.end
			a.State = State{Epoch: l.epoch, Version: l.isr.version, Leader: l.self.Node, Boot: l.boot}
		}
		return
	case others == 0:
	case heard == 0, awaited > 0 && !late:
		return
	}
	c.open = false
	for i := range l.peers {
		if p := &l.peers[i]; p.heard && p.State == Probe {
			l.askAgain(p, now, acts) // its report was not answered
		}
	}
}

// whole says that everything that can be committed is in the log again: it may lead at once the next time.
func (l *Leader) whole() {
	if l.log.Committed > l.epochStart && l.epochStart != unknownPosition {
		l.log.Shortened = false
	}
}

// whole is Leader.whole: the log holds durably what the leader of this epoch says is committed, and by that it knows everything that was committed before it.
func (f *Follower) whole() {
	if !f.log.Shortened || f.said == 0 || f.log.Committed < f.said {
		return
	}
	entries := f.table.Entries()
	if n := len(entries); n > 0 && entries[n-1].Epoch == f.epoch && entries[n-1].Position < f.said {
		f.log.Shortened = false
	}
}
