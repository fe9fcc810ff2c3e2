package engine

import (
	"sync"

	"penstock/segment"
)

// confirmedBound is how far retention by confirmation may go in a partition. The fold has control batches as soon as they are in the log, and they may
// never be committed: a new leader cuts them, or a crash takes them before they are durable. What they confirmed, emptied or deleted is then there
// as before, and so must be its bytes. So a bound holds when the log is committed up to the batch that it was taken at; and what lowers it, as a seek back
// does, holds at once.
//
// The zero value lets nothing go. The committer notes, the flusher settles.
type confirmedBound struct {
	mu       sync.Mutex
	settled  keepFrom       // holds whatever is cut
	coming   keepFrom       // holds once the log is committed up to comingAt
	latest   keepFrom       // by all that is in the log, which ends at latestAt
	comingAt segment.Offset // 0: there is none
	latestAt segment.Offset
}

// keepFrom says what is needed: messages from id on where they were published, and the control batches that carry others from at on.
type keepFrom struct {
	id segment.MsgID
	at segment.Offset
}

func (k keepFrom) min(o keepFrom) keepFrom { return keepFrom{min(k.id, o.id), min(k.at, o.at)} }

// note takes what the fold says at the log's end. After a cut that is before comingAt: the rest of the log that coming was taken of is gone, and coming is no more
// than what the part that is left allows.
func (b *confirmedBound) note(k keepFrom, end segment.Offset) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.latest, b.latestAt = k, end
	b.settled, b.coming = b.settled.min(k), b.coming.min(k)
	b.comingAt = min(b.comingAt, end)
}

// settle returns what holds now that the log is committed up to an offset.
func (b *confirmedBound) settle(committed segment.Offset) keepFrom {
	b.mu.Lock()
	defer b.mu.Unlock()
	if committed < b.comingAt {
		return b.settled // a later one would never hold while confirmations come faster than they are committed
	}
	if b.comingAt > 0 {
		b.settled = b.coming
	}
	if b.coming, b.comingAt = b.latest, b.latestAt; committed >= b.comingAt {
		b.settled, b.comingAt = b.coming, 0
	}
	return b.settled
}

// now is what settle returned last, or less.
func (b *confirmedBound) now() keepFrom {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.settled
}
