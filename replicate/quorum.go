package replicate

import "penstock/segment"

// Quorum computes how far a log is committed: up to the smallest durable mark of the ISR, if the ISR is big enough. A
// Quorum is used once: create it, add every mark, read the result.
type Quorum struct {
	// MinISR is how many members the ISR must have before anything counts (P8).
	MinISR int
	// EpochStart is the position of the leader's epoch-start batch. Nothing counts until the whole ISR holds that
	// batch: even a batch that all replicas hold from an older epoch may still be cut by a leader that never had it
	// (P12).
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

// Also adds a replica that may be in the ISR by now: it holds the mark back but does not count toward MinISR (P6).
func (q *Quorum) Also(durable segment.Position) {
	if q.marks == 0 || durable < q.least {
		q.least = durable
	}
	q.marks++
}

// Enough says whether the ISR has MinISR members.
func (q *Quorum) Enough() bool { return q.members > 0 && q.members >= q.MinISR }

// Committed returns the new mark, below which everything is committed. It is never less than was.
func (q *Quorum) Committed(was segment.Position) segment.Position {
	if !q.Enough() || q.least <= q.EpochStart {
		return was
	}
	return max(was, q.least)
}
