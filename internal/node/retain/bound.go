package retain

import (
	"penstock/internal/lock"
	"penstock/segment"
)

// Bound says how far retention by confirmation may remove a partition's log. The fold includes control batches as soon
// as they are in the log, although they may never be committed: a new leader may cut them, or a crash may lose them
// before they are durable. After such a cut, the messages that these batches confirmed, emptied or deleted are needed
// again, and so are their bytes. So a bound becomes safe only when the log is committed up to the offset at which the
// bound was computed. A lower bound, for example after a seek back, applies at once.
//
// The zero value lets nothing be removed. Note, Current and Advance may run concurrently; mu guards all fields. The
// committer calls Note, and the flusher calls Advance. A crash loses the bounds; recovery notes them again.
type Bound struct {
	mu          lock.Mutex[lock.ConfirmedBound]
	safe        Needed         // valid whatever is cut from the log
	candidate   Needed         // becomes safe once the log is committed up to candidateAt
	latest      Needed         // computed from the whole log when its end was latestAt
	candidateAt segment.Offset // 0: there is no candidate
	latestAt    segment.Offset
}

// Needed says which data is needed: messages from ID on where they were published, and control batches with carried
// messages from offset At on.
type Needed struct {
	ID segment.MsgID
	At segment.Offset
}

func (k Needed) min(o Needed) Needed { return Needed{min(k.ID, o.ID), min(k.At, o.At)} }

// Note records the bound k, computed from the fold at end, the end of the log. After a cut, end may lie before
// candidateAt. The part of the log from which the candidate was computed is then gone, so candidate is lowered to what
// the remaining part allows.
func (b *Bound) Note(k Needed, end segment.Offset) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.latest, b.latestAt = k, end
	b.safe, b.candidate = b.safe.min(k), b.candidate.min(k)
	b.candidateAt = min(b.candidateAt, end)
}

// Advance returns the safe bound, given that the log is committed up to committed. The flusher calls it.
func (b *Bound) Advance(committed segment.Offset) Needed {
	b.mu.Lock()
	defer b.mu.Unlock()
	if committed < b.candidateAt {
		return b.safe // a later one would never hold while confirmations come faster than they are committed
	}
	if b.candidateAt > 0 {
		b.safe = b.candidate
	}
	if b.candidate, b.candidateAt = b.latest, b.latestAt; committed >= b.candidateAt {
		b.safe, b.candidateAt = b.candidate, 0
	}
	return b.safe
}

// Current returns the bound that Advance returned last, or a lower one.
func (b *Bound) Current() Needed {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.safe
}
