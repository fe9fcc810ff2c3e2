package delivery

import "penstock/batch"

// ClaimNs is how long a Claim stands after it was taken or renewed, if whoever holds it does not give it back.
const ClaimNs = 60e9

// Claim is held by one caller at a time, who renews it before each step of its work. The zero value is free. It is in
// memory only: a caller must be able to bear that another one works at the same time after a crash.
type Claim struct {
	by      string
	untilNs int64
}

// Take takes or renews the claim for a caller. It returns false if another one holds it.
func (c *Claim) Take(by string, nowNs int64) bool {
	if c.by != by && c.by != "" && nowNs < c.untilNs {
		return false
	}
	c.by, c.untilNs = by, nowNs+ClaimNs
	return true
}

// Give gives the claim back, if the caller holds it.
func (c *Claim) Give(by string) {
	if c.by == by {
		*c = Claim{}
	}
}

// GoOnAfter notes in next, which has an id for each partition, that a list goes on after a message. next grows with the
// partitions: they may be raised while the list is read.
func GoOnAfter(next []batch.ID, id batch.ID) []batch.ID {
	p := int(id.Partition())
	if p >= len(next) {
		next = append(next, make([]batch.ID, p+1-len(next))...)
	}
	next[p] = max(next[p], id+1)
	return next
}
