package retain

import (
	"penstock/internal/lock"
	"penstock/segment"
)

// Bound is how far retention by confirmation may remove a partition's log. The fold includes control batches
// as soon as they are in the log, although they may never be committed: a new leader may cut them, or a crash may lose
// them before they are durable. Then the messages that they confirmed, emptied or deleted are needed again, and so are
// their bytes. Therefore a bound is safe only once the log is committed up to the offset at which it was taken. A lower
// bound, as after a seek back, applies at once.
//
// The zero value lets nothing be removed. Note, Current and Advance may run at the same time; mu guards all fields. The
// committer calls Note, the flusher Advance. A crash loses the bounds; recovery notes them again.
type Bound struct {
	mu          lock.Mutex[lock.ConfirmedBound]
	safe        Needed         // safe whatever is cut
	candidate   Needed         // becomes safe once the log is committed up to candidateAt
	latest      Needed         // computed from the whole log, whose end was latestAt
	candidateAt segment.Offset // 0: there is no candidate
	latestAt    segment.Offset
}

// Needed says which data is needed: messages with ids from ID on where they were published, and control batches
// with carried messages from offset At on.
type Needed struct {
	ID segment.MsgID
	At segment.Offset
}

func (k Needed) min(o Needed) Needed { return Needed{min(k.ID, o.ID), min(k.At, o.At)} }

// Note records the bound by the fold at the log's end. After a cut, end may lie before candidateAt. Then the part of
// the log that candidate was computed from is gone, and candidate becomes no more than the remaining part allows.
func (b *Bound) Note(k Needed, end segment.Offset) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.latest, b.latestAt = k, end
	b.safe, b.candidate = b.safe.min(k), b.candidate.min(k)
	b.candidateAt = min(b.candidateAt, end)
}

// Advance returns the safe bound, given that the log is committed up to an offset. The flusher calls it.
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

// Current returns the bound that advance returned last, or a lower one.
func (b *Bound) Current() Needed {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.safe
}
