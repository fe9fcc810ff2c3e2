package seal

import (
	"penstock/internal/node/fold"
	"penstock/internal/node/inbox"
	"penstock/segment"
)

// Batch is a batch that this leader, or this single node, has appended and not committed yet.
type Batch struct {
	Position  segment.Position
	NextID    segment.MsgID
	Count     uint32
	BodyBytes uint64
	SealedNs  int64      // when it was sealed, by Lease.Now; 0 on a single node
	Puts      inbox.List // the puts in it; empty once they were answered
	Deferred  []fold.DeferredMessage
}

// Pending holds the batches of a leader between sealing and commit, in log order. replicate.Config bounds their number.
// Replica.mu guards it: the committer pushes, Replica.commit pops, and the end of the leadership drains it. After a
// crash the batches are in the logs of some replicas, and the next leader decides about them.
type Pending struct {
	ring []Batch // len is a power of two, or 0
	at   int
	n    int

	EpochStart segment.Position // position of the batch that begins the epoch
	Opened     bool             // that batch and everything before it is committed
}

const minPendingSlots = 2

func (q *Pending) slot(i int) *Batch { return &q.ring[(q.at+i)&(len(q.ring)-1)] }

// Len returns how many batches are in the queue.
func (q *Pending) Len() int { return q.n }

// Front returns the oldest batch, or nil if the queue is empty.
func (q *Pending) Front() *Batch {
	if q.n == 0 {
		return nil
	}
	return q.slot(0)
}

// Push adds a copy of b behind the others.
func (q *Pending) Push(b *Batch) {
	if q.n == len(q.ring) {
		ring := make([]Batch, max(2*len(q.ring), minPendingSlots))
		for i := range q.n {
			ring[i] = *q.slot(i)
		}
		q.ring, q.at = ring, 0
	}
	q.n++
	*q.slot(q.n - 1) = *b
}

// Pop removes the oldest batch.
func (q *Pending) Pop() {
	*q.slot(0) = Batch{}
	q.at = (q.at + 1) & (len(q.ring) - 1)
	if q.n--; q.n == 0 {
		q.at = 0 // the processor's cache has this slot: with many partitions, a queue rarely holds more than one batch
	}
}

// Clear empties the queue for a new epoch.
func (q *Pending) Clear() { *q = Pending{EpochStart: noPosition} }

const noPosition = ^segment.Position(0)

// Drain empties the queue and returns the puts that were not answered.
func (q *Pending) Drain() (puts inbox.List) {
	for b := q.Front(); b != nil; b = q.Front() {
		puts.Append(b.Puts)
		q.Pop()
	}
	q.Opened = false
	return puts
}

// Expire removes the puts of the batches that were sealed before beforeNs, except those with NoExpiry, and returns
// them. The batches stay in the queue: they may still be committed.
func (q *Pending) Expire(beforeNs int64) (puts inbox.List) {
	for i := range q.n {
		b := q.slot(i)
		if b.SealedNs >= beforeNs {
			break
		}
		if p := b.Puts.First(); p != nil && p.NoExpiry {
			continue
		}
		puts.Append(b.Puts.Take())
	}
	return puts
}

// Join makes p wait for the commit of the messages below end, which are in the log. They are in a batch of the queue,
// or were appended by an earlier leader, before the batch that begins the epoch: in both cases they are committed when
// the first batch of the queue that ends at end or later is. Join returns false if there is none, because this node has
// just stopped to lead.
func (q *Pending) Join(end segment.MsgID, p *inbox.Put) bool {
	for i := range q.n {
		if b := q.slot(i); b.NextID >= end {
			b.Puts.Push(p)
			return true
		}
	}
	return false
}
