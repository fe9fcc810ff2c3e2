package replicate

import "slices"

// A replica whose disk forgets, for example because its machine was resumed from a snapshot, may go on as the same
// process, and nothing on its disk says that it acknowledged more. But its leader knows:
//
//	leader                                   replica that forgot
//	1 Match 100: the replica acknowledged 100
//	                                         2 Report or Gap: the log ends at 50
//	3 proposes an ISR without it; if the ISR
//	  cannot shrink, it proposes to list it
//	  as short
//	4 the store has accepted that: Match
//	                                         5 catches up
//	6 Match >= Committed: not short any more
//
// A short member stays in the ISR, so Committed waits for it, and it is not elected. Step 4 waits for the store because
// the leader may end at any moment. Then nobody else knows what the replica had acknowledged.

// toBeWritten says whether p's report may not be answered yet, because p forgot, and could still be elected.
func (l *Leader) toBeWritten(p *Progress) bool {
	return p.lost && l.cfg.ListShort && l.isr.member(p.member()) && !slices.Contains(l.isr.short, p.member())
}

// admitBest proposes that p is a member of the ISR and not short, and nothing else. A leader does so whose own log is
// shortened, if every member was heard, none is certain of its end, and p has all that they have, and more. Then p is
// to lead.
func (l *Leader) admitBest(p *Progress, now int64, acts *Actions) {
	s := &l.isr
	if s.open && now-s.sent < l.cfg.RetryNs {
		return
	}
	s.next, s.nextShort = append(s.next[:0], s.members...), s.nextShort[:0]
	if !s.member(p.member()) {
		s.next = append(s.next, p.member())
	}
	for _, m := range s.short {
		if m != p.member() {
			s.nextShort = append(s.nextShort, m)
		}
	}
	for _, m := range s.next {
		if !slices.Contains(s.proposed, m) {
			s.proposed = append(s.proposed, m)
		}
	}
	s.open = true
	l.sendProposal(now, acts)
}

// wantShort puts the members of isr that should be listed as short into s.wanted.
func (l *Leader) wantShort(isr []Member) {
	s := &l.isr
	s.wanted = s.wanted[:0]
	for _, m := range isr {
		if m == l.self {
			continue
		}
		p := l.peer(m.Node)
		lost := p != nil && p.lost && p.Store == m.Store && l.cfg.ListShort
		if lost || slices.Contains(s.short, m) && !(p != nil && l.recovered(p)) {
			s.wanted = append(s.wanted, m)
		}
	}
}

// recovered says whether a member that was listed as short holds again everything that is committed.
func (l *Leader) recovered(p *Progress) bool {
	return p.heard && !p.lost && !p.Damaged && p.State == Replicate && p.Match >= max(l.log.Committed, l.joinFloor)
}
