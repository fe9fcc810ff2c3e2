package engine

import (
	"penstock/internal/lock"
	"penstock/segment"
)

// confirmedBound is how far retention by confirmation may remove a partition's log. The fold includes control batches
// as soon as they are in the log, although they may never be committed: a new leader may cut them, or a crash may lose
// them before they are durable. Then the messages that they confirmed, emptied or deleted are needed again, and so are
// their bytes. Therefore a bound is safe only once the log is committed up to the offset at which it was taken. A lower
// bound, as after a seek back, applies at once.
//
// The zero value lets nothing be removed. note, current and advance may run at the same time; mu guards all fields. The
// committer calls note, the flusher advance. A crash loses the bounds; recovery notes them again.
type confirmedBound struct {
	mu          lock.Mutex[lock.ConfirmedBound]
	safe        neededFrom     // safe whatever is cut
	candidate   neededFrom     // becomes safe once the log is committed up to candidateAt
	latest      neededFrom     // computed from the whole log, whose end was latestAt
	candidateAt segment.Offset // 0: there is no candidate
	latestAt    segment.Offset
}

// neededFrom says which data is needed: messages with ids from id on where they were published, and control batches
// with carried messages from offset at on.
type neededFrom struct {
	id segment.MsgID
	at segment.Offset
}

func (k neededFrom) min(o neededFrom) neededFrom { return neededFrom{min(k.id, o.id), min(k.at, o.at)} }

// note records the bound by the fold at the log's end. After a cut, end may lie before candidateAt. Then the part of
// the log that candidate was computed from is gone, and candidate becomes no more than the remaining part allows.
func (b *confirmedBound) note(k neededFrom, end segment.Offset) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.latest, b.latestAt = k, end
	b.safe, b.candidate = b.safe.min(k), b.candidate.min(k)
	b.candidateAt = min(b.candidateAt, end)
}

// advance returns the safe bound, given that the log is committed up to an offset. The flusher calls it.
func (b *confirmedBound) advance(committed segment.Offset) neededFrom {
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

// current returns the bound that advance returned last, or a lower one.
func (b *confirmedBound) current() neededFrom {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.safe
}
