package replicate

import "penstock/segment"

// Quorum computes how far a log is committed: every replica of the ISR holds it durably, and the ISR is big
// enough. It is one value: made anew, told every mark, asked once.
type Quorum struct {
	// MinISR is how many members the ISR must have before anything counts (P8).
	MinISR int
	// EpochStart is the position of the leader's epoch-start batch. While the ISR does not hold that batch, nothing
	// counts: a batch of an older epoch that all hold may still be cut by a leader who never had it (P12).
	EpochStart segment.Position

	members int
	marks   int
	least   segment.Position
}

// Member adds a replica of the ISR that holds everything below durable in this epoch.
func (q *Quorum) Member(durable segment.Position) {
	q.members++
	q.Also(durable)
}

// Also adds a replica that may be in the ISR by now: it holds the mark back but does not help to reach MinISR (P6).
func (q *Quorum) Also(durable segment.Position) {
	if q.marks == 0 || durable < q.least {
		q.least = durable
	}
	q.marks++
}

// Enough says whether the ISR has MinISR members.
func (q *Quorum) Enough() bool { return q.members > 0 && q.members >= q.MinISR }

// Committed returns the new mark, at least was: everything below it is committed.
func (q *Quorum) Committed(was segment.Position) segment.Position {
	if !q.Enough() || q.least <= q.EpochStart {
		return was
	}
	return max(was, q.least)
}
