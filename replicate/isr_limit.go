package replicate

// Every change of an ISR is a transaction of the metadata store, and a follower that joins holds Committed back. So one
// incarnation of a leader makes at most Config.MaxISRJoins joins per Config.ISRWindowNs, however often a follower falls
// behind and comes back. Only joins bring members, so removals need no room of their own: a partition that goes on
// without a member never waits because of joins. changesPerWindow bounds both, against a store that undoes what it
// accepted.

// changesPerWindow is reached by no removals of all members, and of all that could join.
func changesPerWindow(cfg *Config) int { return 2*cfg.MaxISRJoins + MaxReplicaCount }

// limiter allows len(times) things in windowNs: times is a ring, at the oldest one.
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

// allows says whether one more is within the limit now.
func (l *limiter) allows(now int64) bool { return now-l.times[l.at] >= l.windowNs }

func (l *limiter) take(now int64) {
	l.times[l.at] = now
	l.at = (l.at + 1) % len(l.times)
}

// LeaderCounts is what one incarnation of a leader counts.
type LeaderCounts struct {
	ISRChanges  uint64 // of the ISR that it asked the store for, repetitions not counted
	ISRHeldBack uint64 // that it did not ask for because there had been too many
	Absences    uint64 // answers of nodes that they have no copy
	Stranded    uint64 // times that it gave up because too few members answered
	Losses      uint64 // 1: it went on although nobody could show that nothing acknowledged is missing; see compare.go
}

// Counts returns what the machine has counted so far.
func (l *Leader) Counts() LeaderCounts {
	return LeaderCounts{
		ISRChanges: l.isr.made, ISRHeldBack: l.isr.heldBack, Absences: l.absences, Stranded: l.stranding.count,
		Losses: l.losses,
	}
}

// limit takes out of the wanted ISR, s.scratch, what may not be changed now, and says whether it differs from the
// accepted one.
func (s *isrState) limit(now int64) {
	joins, removals := s.difference(s.scratch)
	switch {
	case joins+removals == 0:
		s.held = false
	case s.changes.allows(now):
	default:
		s.hold()
		s.scratch = append(s.scratch[:0], s.members...)
	}
}

// hold counts a change that may not be made now, once until one may.
func (s *isrState) hold() {
	if !s.held {
		s.held = true
		s.heldBack++
	}
}

// count notes what a new proposal changes.
func (s *isrState) count(now int64) {
	joins, removals := s.difference(s.next)
	if joins > 0 {
		s.joins.take(now)
	}
	if joins+removals > 0 {
		s.held = false
		s.made++
		s.changes.take(now)
	}
}

// difference counts the members that isr has and the accepted ISR has not, and the other way round.
func (s *isrState) difference(isr []Member) (joins, removals int) {
	for _, m := range isr {
		if !s.member(m) {
			joins++
		}
	}
	return joins, len(s.members) - (len(isr) - joins)
}
