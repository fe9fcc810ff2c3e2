package replicate

import "penstock/segment"

// Lag is what a follower lacks of its leader's log, as far as the leader knows. Both are 0 if it lacks nothing.
type Lag struct {
	Node  NodeID
	Ns    int64 // time since it is known to have lacked nothing
	Bytes int64 // of batches that it has not acknowledged; of one that was not heard yet, all of the log
}

// Lag returns what the follower p lacks at now, by the clock of Step.
func (l *Leader) Lag(p *Progress, now int64) Lag {
	if p.Match >= l.log.End.Next {
		return Lag{Node: p.Node}
	}
	has := max(p.matchOffset, segment.Offset(l.log.Start.End))
	return Lag{Node: p.Node, Ns: max(0, now-p.caughtUpAt), Bytes: int64(l.log.End.End - has)}
}

// HasQuorum says whether enough members of the ISR are healthy for batches to be committed.
func (l *Leader) HasQuorum() bool { return len(l.isr.members) >= l.isr.minISR && !l.blocked }
