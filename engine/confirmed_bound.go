package engine

import (
	"penstock/internal/lock"
	"penstock/segment"
)

// confirmedBound is how far retention by confirmation may go in a partition. The fold has control batches as soon as they are in the log, and they may
// never be committed: a new leader cuts them, or a crash takes them before they are durable. What they confirmed, emptied or deleted is then there
// as before, and so must be its bytes. So a bound holds when the log is committed up to the batch that it was taken at; and what lowers it, as a seek back
// does, holds at once.
//
// The zero value lets nothing go. The committer notes, the flusher settles.
type confirmedBound struct {
	mu          lock.Mutex[lock.ConfirmedBound]
	safe        neededFrom     // holds whatever is cut
	candidate   neededFrom     // holds once the log is committed up to candidateAt
	latest      neededFrom     // by all that is in the log, which ends at latestAt
	candidateAt segment.Offset // 0: there is none
	latestAt    segment.Offset
}

// neededFrom says what is needed: messages from id on where they were published, and the control batches that carry others from at on.
type neededFrom struct {
	id segment.MsgID
	at segment.Offset
}

func (k neededFrom) min(o neededFrom) neededFrom { return neededFrom{min(k.id, o.id), min(k.at, o.at)} }

// note takes what the fold says at the log's end. After a cut that is before candidateAt: the rest of the log that coming was taken of is gone, and coming is no more
// than what the part that is left allows.
func (b *confirmedBound) note(k neededFrom, end segment.Offset) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.latest, b.latestAt = k, end
	b.safe, b.candidate = b.safe.min(k), b.candidate.min(k)
	b.candidateAt = min(b.candidateAt, end)
}

// advance returns what holds now that the log is committed up to an offset.
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

// current is what settle returned last, or less.
func (b *confirmedBound) current() neededFrom {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.safe
}
