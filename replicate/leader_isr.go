package replicate

import (
	"slices"

	"github.com/google/uuid"

	"penstock/segment"
)

// isrState is what the leader knows of the partition's row in the store, and what it has proposed to the store.
type isrState struct {
	version  uint64
	minISR   int
	members  []Member // accepted by the store at version
	proposed []Member // all members of all proposals on this version: each may be in the ISR by now (P6)

	short     []Member      // accepted by the store at version: see short.go
	forced    segment.Epoch // State.Forced
	open      bool
	next      []Member // the newest proposal
	nextShort []Member
	sent      int64
	scratch   []Member
	wanted    []Member // the members that should be listed as short

	joins, changes limiter
	made, heldBack uint64 // see LeaderCounts
	held           bool   // the change that is wanted now was counted in heldBack
}

func (s *isrState) member(m Member) bool { return slices.Contains(s.members, m) }

// node says whether the ISR has a member on node n, with whatever disk.
func (s *isrState) node(n NodeID) bool { return HasNode(s.members, n) }

// learn takes a row from the store, however old or repeated. Only a higher version tells something new. It also settles
// every proposal made on an older version, because compare-and-swap no longer lets those through.
func (l *Leader) learn(st *State, now int64, acts *Actions) {
	switch {
	case st.Epoch > l.epoch:
		l.log.Epoch = st.Epoch
		l.stop(ErrFenced, acts)
	case st.Epoch == l.epoch && (st.Leader != l.self.Node || st.Boot != l.boot):
		l.stop(ErrFenced, acts)
	case st.Epoch < l.epoch || st.Version <= l.isr.version:
	case !slices.Contains(st.ISR, l.self):
		l.stop(ErrFenced, acts) // a leader outside the ISR would commit batches that it may not hold
	default:
		skipped := st.Version > l.isr.version+1
		l.adopt(st, now)
		for i := range l.peers { // reports that waited for this row
			if p := &l.peers[i]; p.State == Probe && p.compared && p.boot != (uuid.UUID{}) && !p.matched &&
				!l.toBeWritten(p) {
				l.answer(p, now, acts)
			}
		}
		if skipped {
			l.doubtOutsiders(now, acts)
		}
	}
}

// doubtOutsiders begins a new exchange with every replica outside the ISR, after versions of the row were skipped. In a
// skipped version the node may have been no replica, and its copy may have been removed and begun anew. The acks of the
// old copy would let the empty new one join the ISR. Members need no doubt: only this leader's proposals add one.
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
	s.forced = st.Forced
	l.comparing.forced = st.Forced != 0 && st.Forced == l.epoch
	s.members, s.short = append(s.members[:0], st.ISR...), append(s.short[:0], st.Short...)
	s.proposed, s.open = s.proposed[:0], false
	for i := range l.peers {
		if p := &l.peers[i]; l.isr.member(p.member()) {
			p.joining = false // it is a member now and counts as one
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

// propose asks the store for the ISR that the leader wants: without members that are too far behind, with followers
// that have caught up. At most one proposal is open at a time, until a newer version shows its outcome.
func (l *Leader) propose(now int64, acts *Actions) {
	s := &l.isr
	var buf [MaxReplicaCount]Member
	joining := buf[:0]
	for i := range l.peers {
		if p := &l.peers[i]; l.mayJoin(p, now) {
			joining = append(joining, p.member())
		}
	}
	held := len(joining) > 0 && !s.joins.allows(now)
	if held {
		joining = joining[:0]
	}
	s.scratch = s.scratch[:0]
	for _, m := range s.members {
		if m == l.self || !l.overdue(m, now) {
			s.scratch = append(s.scratch, m)
		}
	}
	l.blocked = len(s.scratch) < s.minISR
	switch {
	case !l.serving || l.epochStart == unknownPosition || l.comparing.open:
		return // one that was overtaken only hands over: each change of the ISR would outdate that
	case s.open && now-s.sent < l.cfg.RetryNs:
		return
	case len(s.scratch)+len(joining) < s.minISR || l.damage.any():
		// A smaller ISR would commit nothing, and only leave fewer electable replicas. And a leader that cannot read
		// its own log may remove the last good copy. In both cases no member is removed, but for one whose node comes
		// back with another disk: a node has one place.
		s.scratch = s.scratch[:0]
		for _, m := range s.members {
			if !HasNode(joining, m.Node) {
				s.scratch = append(s.scratch, m)
			}
		}
	}
	s.scratch = append(s.scratch, joining...)
	s.limit(now, held)
	l.wantShort(s.scratch)
	if !s.open && sameMembers(s.scratch, s.members) && sameMembers(s.wanted, s.short) {
		return
	}
	// A proposal that is open and no longer wanted is replaced, if need be by the ISR as it is: whichever of the two
	// the store takes, the new version settles the other. Until then the members of both proposals count.
	fresh := !s.open || !sameMembers(s.scratch, s.next)
	s.next, s.scratch = s.scratch, s.next
	s.nextShort, s.wanted = s.wanted, s.nextShort
	if fresh {
		s.count(now)
	}
	l.noteStuck(now)
	for _, m := range s.next {
		if !slices.Contains(s.proposed, m) {
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
		Short: l.isr.nextShort,
	}
}

func sameMembers(a, b []Member) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(m Member) bool { return !slices.Contains(b, m) })
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

// pauseFraction: if more than this part of LagMaxNs passes between two Steps, this process was paused. Ticks come far
// more often.
const pauseFraction = 4

// discount does not count the time in which this process was paused against its followers. Their answers wait in this
// process's sockets, and without the discount a healthy member would be removed for a lag that is the leader's own.
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

// noteStuck remembers the Match of each member that the newest proposal removes for its lag. A follower with a hanging
// disk is not silent: it answers every heartbeat. Once it is outside, it may still hold everything that is committed,
// for example while Committed does not advance. So mayJoin asks it to pass that Match first.
func (l *Leader) noteStuck(now int64) {
	for i := range l.peers {
		if p := &l.peers[i]; l.lags(p, now) && l.isr.member(p.member()) && !slices.Contains(l.isr.next, p.member()) {
			p.stuck, p.stuckAt = true, p.Match
		}
	}
}

// mayJoin says whether p should be proposed for the ISR. The store may make p electable at once, so p must already hold
// everything that is committed, known to this leader or not: at least the whole log that this leader began with, and
// its epoch-start batch (P4). Under a steady load a follower that is merely close would never be proposed, because
// Committed runs ahead of its acks. So a close follower holds Committed back as a member does, for JoinNs at most,
// until it has caught up. A follower that was removed for its lag must first hold more than it held then: nothing else
// shows that its disk works again.
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
