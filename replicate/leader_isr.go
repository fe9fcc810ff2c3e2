package replicate

import (
	"slices"

	"penstock/segment"
)

// isrState is what the leader knows of the store's row, and what it has asked the store for.
type isrState struct {
	version  uint64
	minISR   int
	members  []Member // accepted by the store at version
	proposed []Member // everybody of any proposal on this version: each may be in the ISR by now (P6)

	open    bool
	next    []Member // the newest proposal
	sent    int64
	scratch []Member

	joins, changes limiter
	made, heldBack uint64 // see LeaderCounts
	held           bool   // what is wanted now was counted in heldBack
}

func (s *isrState) member(m Member) bool { return contains(s.members, m) }

// node says whether a disk of a node is in the ISR.
func (s *isrState) node(n NodeID) bool {
	return slices.ContainsFunc(s.members, func(m Member) bool { return m.Node == n })
}

// learn takes a state of the store, however old or repeated. Only a higher version tells something new; it also settles
// every proposal made on an older one, since compare-and-swap lets none of them through any more.
func (l *Leader) learn(st *State, now int64, acts *Actions) {
	switch {
	case st.Epoch > l.epoch:
		l.log.Epoch = st.Epoch
		l.stop(ErrFenced, acts)
	case st.Epoch == l.epoch && (st.Leader != l.self.Node || st.Boot != l.boot):
		l.stop(ErrFenced, acts)
	case st.Epoch < l.epoch || st.Version <= l.isr.version:
	case !contains(st.ISR, l.self):
		l.stop(ErrFenced, acts) // a leader outside the ISR would commit what it may not hold
	default:
		skipped := st.Version > l.isr.version+1
		l.adopt(st, now)
		if skipped {
			l.doubtOutsiders(now, acts)
		}
	}
}

// doubtOutsiders begins a new exchange with every replica outside the ISR. It is called when versions of the row were
// skipped: in one of them the node may have been no replica, and then its copy was removed and begun anew. Its acks of
// the copy before would let the empty one join the ISR. A member needs no doubt: only this leader's proposals add one.
func (l *Leader) doubtOutsiders(now int64, acts *Actions) {
	for i := range l.peers {
		if p := &l.peers[i]; p.heard && !l.isr.node(p.Node) {
			l.probe(p, now, acts)
		}
	}
}

// adopt takes over a newer version of the row.
func (l *Leader) adopt(st *State, now int64) {
	if len(st.Replicas) > MaxReplicaCount || len(st.ISR) > MaxReplicaCount {
		panic("BUG: the store let a partition have more than MaxReplicaCount replicas")
	}
	s := &l.isr
	s.version, s.minISR = st.Version, max(1, st.MinISR)
	s.members = append(s.members[:0], st.ISR...)
	s.proposed, s.open = s.proposed[:0], false
	for i := range l.peers {
		if p := &l.peers[i]; l.isr.member(p.member()) {
			p.joining = false // it counts by itself now
		}
	}
	old := l.peers
	same := len(old) > 0
	n := 0
	for _, node := range st.Replicas {
		if node != l.self.Node {
			same = same && n < len(old) && old[n].Node == node
			n++
		}
	}
	if same && n == len(old) {
		return
	}
	l.peers = make([]Progress, 0, n)
	for _, node := range st.Replicas {
		if node == l.self.Node {
			continue
		}
		i := slices.IndexFunc(old, func(p Progress) bool { return p.Node == node })
		if i >= 0 {
			l.peers = append(l.peers, old[i])
		} else {
			l.peers = append(l.peers, Progress{Node: node, caughtUpAt: now})
		}
	}
}

// propose asks the store for the ISR that should be: without those that are too far behind, with those that have
// caught up. One proposal is open at a time, until a newer version says what became of it.
func (l *Leader) propose(now int64, acts *Actions) {
	s := &l.isr
	var buf [MaxReplicaCount]Member
	joining := buf[:0]
	for i := range l.peers {
		if p := &l.peers[i]; l.mayJoin(p, now) {
			joining = append(joining, p.member())
		}
	}
	if len(joining) > 0 && !s.joins.allows(now) {
		joining = joining[:0]
		s.hold()
	}
	s.scratch = s.scratch[:0]
	for _, m := range s.members {
		if m == l.self || !l.overdue(m, now) {
			s.scratch = append(s.scratch, m)
		}
	}
	l.blocked = len(s.scratch) < s.minISR
	switch {
	case !l.serving || l.epochStart == unknownPosition:
		return
	case s.open && now-s.sent < l.cfg.RetryNs:
		return
	case len(s.scratch)+len(joining) < s.minISR || l.damage.any():
		// A smaller ISR would commit nothing, and only make fewer replicas electable; and who removes others while it
		// cannot read its own log may remove the last good copy: nobody goes.
		s.scratch = append(s.scratch[:0], s.members...)
	}
	s.scratch = append(s.scratch, joining...)
	if s.limit(now); !s.open && sameMembers(s.scratch, s.members) {
		return
	}
	// An open proposal that is not wanted any more is replaced, if need be by the ISR as it is: whichever the store takes,
	// the new version settles the other one. Until then everybody of both counts.
	fresh := !s.open || !sameMembers(s.scratch, s.next)
	s.next, s.scratch = s.scratch, s.next
	if fresh {
		s.count(now)
	}
	l.noteStuck(now)
	for _, m := range s.next {
		if !contains(s.proposed, m) {
			s.proposed = append(s.proposed, m)
		}
	}
	s.open = true
	l.sendProposal(now, acts)
}

func (l *Leader) sendProposal(now int64, acts *Actions) {
	l.isr.sent = now
	a := acts.add(ActPropose)
	a.State = State{
		Epoch: l.epoch, Version: l.isr.version, Leader: l.self.Node, Boot: l.boot, MinISR: l.isr.minISR, ISR: l.isr.next,
	}
}

func sameMembers(a, b []Member) bool {
	if len(a) != len(b) {
		return false
	}
	for _, m := range a {
		if !contains(b, m) {
			return false
		}
	}
	return true
}

// overdue says whether m should leave the ISR.
func (l *Leader) overdue(m Member, now int64) bool {
	p := l.peer(m.Node)
	if p == nil || p.heard && p.Store != m.Store {
		return true
	}
	if p.Damaged || p.Down || p.lost {
		return true
	}
	if p.absent.count > 0 && now-p.absent.since > l.cfg.LagMaxNs {
		return true // a member without a copy could be made leader
	}
	return l.lags(p, now)
}

func (l *Leader) lags(p *Progress, now int64) bool {
	return p.Match < l.log.End.Next && now-p.caughtUpAt > l.cfg.LagMaxNs
}

// pauseFraction: between two Steps more than this part of LagMaxNs is a pause of this process. Ticks come far more
// often.
const pauseFraction = 4

// discount takes the time in which this process stood still out of what is held against its followers: their answers
// wait in its sockets, and a member that is healthy would be removed for a lag that is the leader's own.
func (l *Leader) discount(now int64) {
	stood := now - l.steppedAt - l.cfg.LagMaxNs/pauseFraction
	l.steppedAt = now
	if stood <= 0 {
		return
	}
	for i := range l.peers {
		p := &l.peers[i]
		p.heardAt, p.caughtUpAt = min(p.heardAt+stood, now), min(p.caughtUpAt+stood, now)
		p.absent.since = min(p.absent.since+stood, now)
	}
}

// noteStuck remembers where those stand that the newest proposal removes for their lag. A disk that hangs is no reason
// to be silent: such a follower answers every heartbeat, and once it is outside it holds all that is committed without
// it, too.
func (l *Leader) noteStuck(now int64) {
	for i := range l.peers {
		if p := &l.peers[i]; l.lags(p, now) && l.isr.member(p.member()) && !contains(l.isr.next, p.member()) {
			p.stuck, p.stuckAt = true, p.Match
		}
	}
}

// mayJoin says whether p should be proposed. The store may make it electable as soon as it is, so it must hold by now
// everything that is committed, known to be or not: at least all that this leader began with and its epoch-start batch
// (P4). A follower that is merely close would never be proposed under a steady load, because Committed runs ahead of
// its acks: from the moment it is in step it holds Committed back as a member does, for JoinNs at most, until it is
// there. One that was removed for its lag first has to hold more than it held then: until that moment nothing shows
// that its disk works.
func (l *Leader) mayJoin(p *Progress, now int64) bool {
	if p.stuck && p.Match > p.stuckAt {
		p.stuck = false
	}
	if p.stuck || p.Down || p.Damaged || l.isr.member(p.member()) || p.State != Replicate ||
		now-p.heardAt > l.cfg.LagMaxNs {
		p.joining = false
		return false
	}
	if p.Match >= max(l.log.Committed, l.joinFloor) {
		p.joining = false
		return true
	}
	if !l.isr.joins.allows(now) {
		p.joining = false // it would hold Committed back for nothing
		return false
	}
	near := p.Next == l.log.End.Next && l.log.End.Next-p.Match <= segment.Position(l.cfg.MaxWindowCount) &&
		now-p.movedAt <= l.cfg.LagMaxNs
	switch {
	case p.joining && now >= p.joinUntil:
		p.joining, p.joinUntil = false, now+4*l.cfg.JoinNs
	case !p.joining && near && now >= p.joinUntil:
		p.joining, p.joinUntil = true, now+l.cfg.JoinNs
	}
	return false
}
