package replicate

import "penstock/segment"

// admit answers EvPut: without ActRefuse, the next batch may be appended. Nothing waits here: the engine's inbox keeps
// a write that may be accepted later, asks again after each Step, and knows its deadline.
func (l *Leader) admit(acts *Actions) {
	if err := l.refusal(); err != nil {
		acts.add(ActRefuse).Err = err
	}
}

// refusal returns why no batch may be appended now. Only ErrNotYet passes by itself.
func (l *Leader) refusal() error {
	switch pendingFrom := max(l.log.Committed, l.epochStart); {
	case !l.serving:
		return ErrLeaseLost
	case len(l.isr.members) < l.isr.minISR || l.blocked:
		return ErrNoQuorum
	case l.epochStart == unknownPosition || l.comparing.open:
		return ErrNotYet
	case l.log.End.Next-pendingFrom >= segment.Position(l.cfg.MaxPendingCount):
		return ErrNotYet
	case int64(l.log.End.End-l.commitEnd) >= l.cfg.MaxPendingBytes:
		return ErrNotYet
	}
	return nil
}
