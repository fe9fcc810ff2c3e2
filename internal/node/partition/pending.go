package partition

import (
	"penstock/internal/node/fold"
	"penstock/internal/node/inbox"
	"penstock/segment"
)

// pendingBatch is a batch that this leader, or this single node, has appended and not committed yet.
type pendingBatch struct {
	position  segment.Position
	nextID    segment.MsgID
	count     uint32
	bodyBytes uint64
	sealedNs  int64      // when it was sealed, by Lease.Now; 0 on a single node
	puts      inbox.List // the puts in it; empty once they were answered
	deferred  []fold.DeferredMessage
}

// pendingQueue holds the batches of a leader between sealing and commit, in log order. replicate.Config bounds their
// number. Replica.mu guards it: the committer pushes, commit pops, and the end of the leadership drains it. After a
// crash the batches are in the logs of some replicas, and the next leader decides about them.
type pendingQueue struct {
	ring []pendingBatch // len is a power of two, or 0
	at   int
	n    int

	epochStart segment.Position // position of the batch that begins the epoch
	opened     bool             // that batch and everything before it is committed
}

const minPendingSlots = 2

func (q *pendingQueue) slot(i int) *pendingBatch { return &q.ring[(q.at+i)&(len(q.ring)-1)] }

func (q *pendingQueue) front() *pendingBatch {
	if q.n == 0 {
		return nil
	}
	return q.slot(0)
}

func (q *pendingQueue) push(b *pendingBatch) {
	if q.n == len(q.ring) {
		ring := make([]pendingBatch, max(2*len(q.ring), minPendingSlots))
		for i := range q.n {
			ring[i] = *q.slot(i)
		}
		q.ring, q.at = ring, 0
	}
	q.n++
	*q.slot(q.n - 1) = *b
}

func (q *pendingQueue) pop() {
	*q.slot(0) = pendingBatch{}
	q.at = (q.at + 1) & (len(q.ring) - 1)
	if q.n--; q.n == 0 {
		q.at = 0 // the processor's cache has this slot: with many partitions, a queue rarely holds more than one batch
	}
}

// clear empties the queue for a new epoch.
func (q *pendingQueue) clear() { *q = pendingQueue{epochStart: noPosition} }

const noPosition = ^segment.Position(0)

// drain empties the queue and returns the puts that were not answered.
func (q *pendingQueue) drain() (puts inbox.List) {
	for b := q.front(); b != nil; b = q.front() {
		puts.Append(b.puts)
		q.pop()
	}
	q.opened = false
	return puts
}

// expire removes the puts of the batches that were sealed before beforeNs, except those with NoExpiry, and returns
// them. The batches stay in the queue: they may still be committed.
func (q *pendingQueue) expire(beforeNs int64) (puts inbox.List) {
	for i := range q.n {
		b := q.slot(i)
		if b.sealedNs >= beforeNs {
			break
		}
		if p := b.puts.First(); p != nil && p.NoExpiry {
			continue
		}
		puts.Append(b.puts.Take())
	}
	return puts
}
