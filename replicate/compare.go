package replicate

import "slices"

// A shortened log may lack batches that its replica had acknowledged. Its node knows that: recovery cut a group that
// was not whole, which a crash can do as well as a bit that changed later; or the commit log ends before its mark; or
// the directory is an older state, a copy or the original of one. Or the leader has heard that another member committed
// more (overtaken). A leader with such a log compares it with the logs of the other members of the ISR before it
// appends or cuts anything:
//
//	leader, its log shortened              member of the ISR
//	1 Probe
//	                                       2 Report: its end, what it knows to be committed, whether it is shortened
//	3 it has more (hasMore): ActHandOver, and nothing else; that replica leads in a new epoch
//	  none has more: it goes on like any leader; it probes again and answers the new reports
//
// If only one copy lost batches, the others still have them, because every member held everything that was committed.
// So one other member that is certain of its own end, and has no more than this log, proves that nothing committed was
// lost; then the leader goes on, whatever other members have more, unless a mark says that it is committed. A member
// that is certain and goes on elsewhere has what was committed: this log does not count against it, however new its
// epoch is. A shortened log proves nothing: it may have lost the same. The leader still waits for the remaining
// members, for CompareNs at most, and not for those whose process is gone. If nobody proves anything, the leader waits
// without limit for every member: the others may have what this log lacks. That wait ends if an operator chooses a
// leader (State.Forced), or if the members' disks turn out to have been replaced. When every member was heard and none
// is certain, the longest log leads: this one, or that of a short member or of a replica outside the ISR, which the
// leader first asks the store to admit. What such a log has more may never have been committed, and does no harm.
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
// A log that a process has read back from its disk (Log.Recovered) may lack the last seconds without a sign of it, for
// example because the device reported writes as durable that it then lost. Such a leader asks before it begins, too,
// but it waits only for members whose process lives, for CompareNs at most, and not for a proof. If a member comes
// later with more, the leader is overtaken, unless it has committed something meanwhile or another member proved that
// nothing is missing.
//
// Otherwise a leader takes its log for whole: the leader is in the ISR, so batches beyond its log were never committed,
// and followers cut them. Two rules guard that. A leader that hears that a member knows of more that was committed is
// overtaken. And a follower refuses a cut below what it knows to be committed, or of more than leaders may leave
// uncommitted (ErrContested).

// comparison is what a leader with a shortened log knows of the other logs.
type comparison struct {
	open      bool // the leader appends, commits and cuts nothing
	restored  bool // the log is from before the restore: all members have to be heard
	recovered bool // nothing says that the log lacks anything, but this process has only read it back from its disk
	forced    bool // an operator chose this leader
	since     int64
	askedAt   int64 // when another leader was asked for last
	blocked   NodeID
}

func newComparison(log *Log, st *State, now int64) comparison {
	c := comparison{restored: log.End.Epoch < st.Restored, since: now, askedAt: noTime}
	// A copy that is empty after the first epoch has not been filled yet, or has forgotten everything.
	c.recovered = !log.Shortened && !c.restored && (log.Recovered || log.End.Next == 0 && st.Epoch > 1)
	c.open = log.Shortened || c.restored || c.recovered
	return c
}

// Comparing says whether the leader still waits for other members' logs because its own may lack something.
func (l *Leader) Comparing() bool { return l.comparing.open }

// Blocked returns the member whose damaged log keeps the comparison open: it may have what this log lacks, and it
// cannot lead. It returns 0 if there is no such member.
func (l *Leader) Blocked() NodeID { return l.comparing.blocked }

// Shortened says whether the log may lack batches that this replica had acknowledged before its recovery.
func (l *Leader) Shortened() bool { return l.log.Shortened }

// Shortened says whether the log may lack batches that this replica had acknowledged before its recovery. That ends
// when this log is known to hold everything committed.
func (f *Follower) Shortened() bool { return f.log.Shortened }

// compare ends the comparison when enough is known, or asks for the member that has more as leader.
func (l *Leader) compare(now int64, acts *Actions) {
	c := &l.comparing
	if !c.open {
		return
	}
	v := l.weigh()
	c.blocked = 0
	switch late := now-c.since >= l.cfg.CompareNs; c.judge(&v, late) {
	case judgeWait:
		if late {
			c.blocked = v.blocked
		}
		return
	case judgeYield:
		if now-c.askedAt >= l.cfg.RetryNs {
			c.askedAt = now
			a := acts.add(ActHandOver)
			a.Node, a.Position = v.best.Node, v.best.report.end
			a.State = State{Epoch: l.epoch, Version: l.isr.version, Leader: l.self.Node, Boot: l.boot}
		}
		return
	case judgeAdmit:
		l.admitBest(v.barred, now, acts)
		return
	case judgeLoss:
		l.losses++
	}
	c.open = false
	for i := range l.peers {
		if p := &l.peers[i]; p.heard && p.State == Probe {
			l.askAgain(p, now, acts) // its report was not answered
		}
	}
}

// judgement is what a leader that compares does next.
type judgement uint8

const (
	judgeGoOn judgement = iota
	judgeWait
	judgeYield // hand over to verdict.best
	judgeAdmit // verdict.barred has most: it is to be electable
	judgeLoss  // go on, although something that was committed is gone
)

// judge is the rule of the comparison. late says that CompareNs are over.
func (c *comparison) judge(v *verdict, late bool) judgement {
	unheard := v.awaited+v.away > 0
	switch {
	case v.best != nil && !c.forced:
		over := v.proofs > 0 && v.sure || (v.proofs > 0 || c.recovered) && v.best.Down && late
		if over && !c.restored && !v.best.report.committedMore() {
			return judgeGoOn // its batches beyond this log were never committed
		}
		return judgeYield
	case c.forced:
		return judgeGoOn
	case c.recovered:
		if v.awaited > 0 && !late {
			return judgeWait
		}
		return judgeGoOn
	case c.restored && unheard:
		return judgeWait
	case c.restored:
		return judgeGoOn
	case v.proofs > 0:
		if v.awaited > 0 && !late {
			return judgeWait
		}
		return judgeGoOn
	case unheard, v.blocked != 0, v.unheardOutside && !late:
		return judgeWait
	case v.barred != nil:
		return judgeAdmit
	case v.others == 0, v.doubtful > 0: // all may have lost something, and this log is the longest
		return judgeGoOn
	case !late:
		return judgeWait
	}
	return judgeLoss
}

// verdict sums up the reports of the other members of the ISR.
type verdict struct {
	others int // members whose disks have not been replaced
	// members that are certain of the end of their log, and have no more than this log and all of what it was known to
	// have committed: nothing committed is missing here
	proofs   int
	sure     bool      // they said that they are certain; below feature level 4 reports do not
	doubtful int       // the same of members that are shortened or short: they may have lost what this log lacks
	awaited  int       // members that may have more and can still say so
	away     int       // members that may have more and whose process is gone
	best     *Progress // the member with the longest log of those that can lead
	blocked  NodeID    // a replica that may have more and cannot lead: damaged, or contradicting this log

	// barred is the replica with the longest log of those that the row bars from elections: short members, and replicas
	// outside the ISR. They count only if no member proves anything: one of them may have what all members have lost, and
	// what it has more than that was not committed, and does no harm.
	barred         *Progress
	unheardOutside bool // a replica outside the ISR lives and was not heard yet
}

func (v *verdict) bar(p *Progress) {
	if v.barred == nil || p.report.ahead(&v.barred.report) {
		v.barred = p
	}
}

func (l *Leader) weigh() (v verdict) {
	v.sure = l.cfg.ListShort
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
		case p == nil || !p.compared || p.report.unidentified:
			v.awaited++
			if p != nil && p.Damaged { // it refuses to report
				v.blocked = p.Node
			}
		case l.splitFrom(&p.report):
			v.awaited++
			v.blocked = p.Node
		case !l.hasMore(p):
			l.testify(p, slices.Contains(l.isr.short, m), &v)
		case !p.Damaged && slices.Contains(l.isr.short, m):
			v.bar(p)
		case !p.Damaged:
			if v.best == nil || p.report.ahead(&v.best.report) {
				v.best = p
			}
		default: // it has more, and must first repair itself from here
			v.awaited++
			v.blocked = p.Node
		}
	}
	l.askOutside(&v)
	return v
}

// askOutside adds what replicas outside the ISR have reported. One that has all of this log and more can be admitted:
// then it has all that any member has. One that goes on elsewhere cannot: then an operator has to choose, unless
// nothing can have been acknowledged of what it has more.
func (l *Leader) askOutside(v *verdict) {
	for i := range l.peers {
		p := &l.peers[i]
		switch r := &p.report; {
		case l.isr.node(p.Node) || !l.cfg.ListShort:
		case !p.compared || r.unidentified || r.durable < r.end: // it is asked again
			v.unheardOutside = v.unheardOutside || !p.Down && p.absent.count == 0
		case !l.hasMore(p) || r.shortened || p.Damaged:
		case r.related && r.common == l.begun.Next:
			v.bar(p)
		case r.hollow && !r.committedMore():
		case v.proofs == 0 && v.best == nil:
			v.blocked = p.Node
		}
	}
}

// testify counts a member whose log has no more than this one. Only a log that is certain of its own end testifies to
// absence: another one may have lost the same batches.
func (l *Leader) testify(p *Progress, short bool, v *verdict) {
	switch r := &p.report; {
	case r.end < l.log.Committed: // it has lost more than this log
	case r.shortened || short:
		v.doubtful++
	default:
		v.proofs++
	}
}

// ahead says which of two logs that have more than the leader's is to lead: what is known to be committed counts first.
func (r *report) ahead(o *report) bool {
	if r.committedMore() != o.committedMore() {
		return r.committedMore()
	}
	return r.endEpoch > o.endEpoch || r.endEpoch == o.endEpoch && r.end > o.end
}

// overtaken says whether p has what this log lacks and what may be committed, although this leader took its log for
// whole: this copy forgot. Then the leader counts as shortened from now on, appends nothing more, and hands over. If
// this leader has committed what p lacks as well, or if p cannot be elected, neither log may be cut: p is answered, and
// refuses (ErrContested). While the outcome of a proposal is not known, p is not answered.
func (l *Leader) overtaken(p *Progress, now int64) bool {
	r := &p.report
	if !r.committedMore() && !l.mayLack(p) || l.splitFrom(r) || !l.isr.member(p.member()) {
		return false
	}
	if l.isr.open {
		return true // the row may be without p soon, and then p cannot be elected: it is asked again
	}
	l.log.Shortened = true
	l.comparing = comparison{open: true, since: now, askedAt: noTime, forced: l.comparing.forced}
	return true
}

// mayLack says whether p comes with more after a recovered leader went on without it. No mark says that this was
// committed, but until this leader has committed something itself, no member has confirmed that it was not.
func (l *Leader) mayLack(p *Progress) bool {
	return l.log.Recovered && !l.comparing.forced && !p.Damaged && !slices.Contains(l.isr.short, p.member()) &&
		l.hasMore(p) && l.weigh().proofs == 0
}

// whole notes that the log again holds everything that can be committed: this replica may lead at once the next time.
func (l *Leader) whole() {
	if l.log.Committed > l.epochStart && l.epochStart != unknownPosition {
		l.log.Shortened, l.log.Recovered = false, false
	}
}

// whole does for a follower what Leader.whole does: the log durably holds everything that the leader of this epoch says
// is committed, and thereby everything that was committed before this epoch.
func (f *Follower) whole() {
	if !f.log.Shortened && !f.log.Recovered || f.said == 0 || f.log.Committed < f.said {
		return
	}
	entries := f.table.Entries()
	if n := len(entries); n > 0 && entries[n-1].Epoch == f.epoch && entries[n-1].Position < f.said {
		f.log.Shortened, f.log.Recovered = false, false
	}
}
