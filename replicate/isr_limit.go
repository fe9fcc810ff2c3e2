package replicate

// Every change of an ISR is a transaction of the metadata store, and a follower that joins holds Committed back. So one
// incarnation of a leader makes at most Config.MaxISRJoins joins per ISRWindowNs, however often a follower falls behind
// and comes back. Removals need no limit of their own, because only joins bring members; so a partition that must drop
// a member to continue never waits because of earlier joins. changesPerWindow bounds joins and removals together, in
// case a store undoes changes that it accepted.

// changesPerWindow has room for MaxISRJoins joins and for the removal of every member, those that joined included.
func changesPerWindow(cfg *Config) int { return 2*cfg.MaxISRJoins + MaxReplicaCount }

// limiter allows len(times) events per windowNs. times is a ring, and at is the index of its oldest entry.
type limiter struct {
	times    []int64
	at       int
	windowNs int64
}

func newLimiter(count int, windowNs int64) limiter {
	l := limiter{times: make([]int64, count), windowNs: windowNs}
	for i := range l.times {
		l.times[i] = noTime
	}
	return l
}

// allows says whether one more event is within the limit now.
func (l *limiter) allows(now int64) bool { return now-l.times[l.at] >= l.windowNs }

func (l *limiter) take(now int64) {
	l.times[l.at] = now
	l.at = (l.at + 1) % len(l.times)
}

// LeaderCounts holds the counters of one incarnation of a leader.
type LeaderCounts struct {
	ISRChanges  uint64 // changes of the ISR that it asked the store for, without repetitions
	ISRHeldBack uint64 // changes that it did not ask for because there had been too many
	Absences    uint64 // answers of nodes that they have no copy
	Stranded    uint64 // times that it gave up because too few members answered
	Losses      uint64 // 1: it leads although acknowledged batches may be missing; see compare.go
}

// Counts returns the machine's counters.
func (l *Leader) Counts() LeaderCounts {
	return LeaderCounts{
		ISRChanges: l.isr.made, ISRHeldBack: l.isr.heldBack, Absences: l.absences, Stranded: l.stranding.count,
		Losses: l.losses,
	}
}

// limit resets the wanted ISR, s.scratch, to the accepted one if no change is allowed now. held says that joins were
// left out of s.scratch, because there were too many. It counts what is held back once, until nothing is held back any
// more.
func (s *isrState) limit(now int64, held bool) {
	if joins, removals := s.difference(s.scratch); joins+removals > 0 && !s.changes.allows(now) {
		held = true
		s.scratch = append(s.scratch[:0], s.members...)
	}
	if held && !s.held {
		s.heldBack++
	}
	s.held = held
}

// count records the changes that a new proposal makes.
func (s *isrState) count(now int64) {
	joins, removals := s.difference(s.next)
	if joins > 0 {
		s.joins.take(now)
	}
	if joins+removals > 0 {
		s.made++
		s.changes.take(now)
	}
}

// difference counts the members of isr that the accepted ISR does not have, and the accepted members that isr does not
// have.
func (s *isrState) difference(isr []Member) (joins, removals int) {
	for _, m := range isr {
		if !s.member(m) {
			joins++
		}
	}
	return joins, len(s.members) - (len(isr) - joins)
}
