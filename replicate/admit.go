package replicate

import "penstock/segment"

// waitingPut is a write that may be accepted later.
type waitingPut struct {
	token      uint64
	deadlineNs int64
}

// put answers at once if it can. A write waits while it is likely that it can be taken soon: the ISR is too small,
// the epoch-start batch is not appended yet, or too much is not committed; it never waits for a lost lease.
func (l *Leader) put(now int64, ev *Event, acts *Actions) {
	err := l.refusal()
	switch {
	case err == nil && len(l.waiting) == 0:
		acts.add(ActAccept).Token = ev.Token
	case err == ErrLeaseLost || err != nil && ev.DeadlineNs <= now:
		refuse(acts, ev.Token, err)
	case len(l.waiting) >= l.cfg.MaxWaitingCount:
		refuse(acts, ev.Token, ErrBusy)
	default:
		l.waiting = append(l.waiting, waitingPut{ev.Token, ev.DeadlineNs})
	}
}

// refusal says why nothing may be appended now.
func (l *Leader) refusal() error {
	switch pendingFrom := max(l.log.Committed, l.epochStart); {
	case !l.serving:
		return ErrLeaseLost
	case len(l.isr.members) < l.isr.minISR || l.blocked:
		return ErrNoQuorum
	case l.epochStart == unknownPosition:
		return ErrExpired
	case l.log.End.Next-pendingFrom >= segment.Position(l.cfg.MaxPendingCount):
		return ErrExpired
	case int64(l.log.End.End-l.commitEnd) >= l.cfg.MaxPendingBytes:
		return ErrExpired
	}
	return nil
}

// admit lets waiting writes in, in order, or refuses them when their time is over. One Step accepts at most as many
// as keep what is pending bounded: each of them may become a batch.
func (l *Leader) admit(now int64, acts *Actions) {
	if len(l.waiting) == 0 {
		return
	}
	err := l.refusal()
	kept, room := l.waiting[:0], l.cfg.MaxPendingCount
	for _, w := range l.waiting {
		switch {
		case err == ErrLeaseLost:
			refuse(acts, w.token, err)
		case err == nil && room > 0 && (w.deadlineNs > now || w.deadlineNs == 0):
			room--
			acts.add(ActAccept).Token = w.token
		case w.deadlineNs <= now:
			refuse(acts, w.token, reason(err))
		default:
			kept = append(kept, w)
		}
	}
	l.waiting = kept
}

func reason(err error) error {
	if err == nil {
		return ErrExpired
	}
	return err
}
