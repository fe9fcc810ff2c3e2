package budget

import (
	"errors"
	"sync/atomic"
	"time"

	"penstock/internal/node/errs"
	"penstock/internal/node/flush"
	"penstock/internal/node/fold"
	"penstock/segment"
)

// The state of the channels consists of the messages that they have confirmed out of order, of the deferred messages,
// and of what is known about producers. It is kept in memory, in every checkpoint of the commit log, and in a batch at
// the beginning of every segment. The commit log makes its files large enough for a checkpoint. Three limits bound the
// state: Limits.MaxStateBytes for the node's memory, on followers as on leaders; maxStoredBytes for its
// checkpoint; and the size of a batch for a partition. Of the first two, the topics that one token has made take a
// share at most (share.go). At a limit the engine refuses requests that would add to the state (a delayed message, a
// requeue with a delay, a new channel, a new producer). All other requests go on.

// maxPartitionBytes is the limit of one partition. The rest of a batch is reserved for confirmations of messages
// in flight, which cannot be refused.
const maxPartitionBytes = segment.MaxBatchBytes - 2<<20

// maxStoredBytes is the limit of the node's checkpoint.
const maxStoredBytes = 128 << 20

// Account is what one partition takes. Only the goroutine that owns the partition's fold changes it: the committer,
// recovery, or the one that makes the partition. Any goroutine may call the methods that do not need the fold.
type Account struct {
	budget *Budget
	topic  *Topic

	stored      atomic.Int64 // upper bound of the fold's size in a checkpoint
	memory      atomic.Int64 // what the fold and its channels cost in memory
	delayMemory atomic.Int64 // what one more delayed message costs
	gaps        atomic.Int64 // upper bound of the fold's Gaps
	refusedAt   atomic.Int64 // when a put was last refused because of the quota, by clock.Clock.Mono; 0: none was
}

// Topic is what a topic may take, and for whom it counts. Its partitions share it.
type Topic struct {
	Limits atomic.Pointer[flush.Limits] // set with the topic's settings
	Share  atomic.Pointer[Share]        // of the token that has made the topic; nil: it counts for nobody
}

// Open makes the partition count for the topic, and the topic's share.
func (a *Account) Open(b *Budget, t *Topic) {
	a.budget, a.topic = b, t
	a.Moved(nil, t.Share.Load())
}

// Moved makes what the partition takes now count for another token; nil: for nobody. The next checkpoint counts anew.
func (a *Account) Moved(from, to *Share) {
	stored, memory := a.stored.Load(), a.memory.Load()
	from.add(-stored, -memory)
	to.add(stored, memory)
}

// add corrects the sums of the node, and of the token that has made the topic.
func (a *Account) add(stored, memory int64) {
	a.budget.stored.Add(stored)
	a.budget.memory.Add(memory)
	a.topic.Share.Load().add(stored, memory)
}

// StateFull returns an error if count more delayed messages would exceed the limit of the partition or of the node. Any
// goroutine may call it.
func (a *Account) StateFull(count int) error {
	return a.exceeds(int64(count)*fold.MaxDeferredBytes, int64(count)*a.delayMemory.Load())
}

// exceeds returns an error if more bytes of state, and of memory for it, would exceed a limit of the partition, of the
// node, or of the token that has made the topic.
func (a *Account) exceeds(more, memory int64) error {
	b := a.budget
	mostMemory := b.maxStateBytes.Load()
	own, stored, inMemory := a.stored.Load()+more, b.stored.Load()+more, b.memory.Load()+memory
	full := func(what string, value, most int64, setting string) error {
		return &errs.LimitError{
			Err: errs.ErrStateFull, What: "with this request the number of bytes for them in " + what, Value: value, Most: most,
			Setting: setting,
		}
	}
	switch {
	case inMemory > mostMemory:
		return full("the node's memory", inMemory, mostMemory, "max-state-bytes")
	case stored > maxStoredBytes:
		return full("a checkpoint of the node", stored, maxStoredBytes, "")
	case own > maxPartitionBytes:
		return full("a checkpoint of the partition", own, maxPartitionBytes, "")
	}
	return b.exceedsShare(a.topic.Share.Load(), more, memory)
}

// RefusesDelay returns why the partition would refuse count more messages delayed by delay now, or nil: retention by
// age would remove them before they are due, the state is full, or they could make so many holes among the confirmed
// messages of a channel that it delivers nothing new (fold.Cursors.Gaps). Any goroutine may call it.
func (a *Account) RefusesDelay(count int, delay time.Duration) error {
	if l := a.topic.Limits.Load(); l != nil && l.RetentionAge > 0 && delay >= l.RetentionAge {
		return &errs.RetentionError{Delay: delay, Age: l.RetentionAge}
	}
	if err := a.StateFull(count); err != nil {
		return err
	}
	most := int(a.budget.maxRanges.Load())
	if gaps, limit := int(a.gaps.Load()), fold.MaxGaps(most); gaps+count > limit {
		return &errs.GapsError{Waiting: gaps, Limit: limit, MaxRanges: most}
	}
	return nil
}

// RefusesDelayOf is RefusesDelay for the owner of the fold: if an estimate exceeds a limit, it measures the fold before
// it decides. end is the end of the log.
func (a *Account) RefusesDelayOf(now *fold.Cursors, end segment.Offset, count int, delay time.Duration) error {
	err := a.RefusesDelay(count, delay)
	if err == nil || errors.Is(err, errs.ErrDeferRetention) {
		return err
	}
	a.Measure(now, end)
	return a.RefusesDelay(count, delay)
}

// RefusesProducer returns an error if one more producer would exceed a limit. The caller owns the fold.
func (a *Account) RefusesProducer(now *fold.Cursors, end segment.Offset) error {
	if a.exceeds(fold.MaxProducerBytes, 4*fold.MaxProducerBytes) == nil {
		return nil
	}
	a.Measure(now, end)
	return a.exceeds(fold.MaxProducerBytes, 4*fold.MaxProducerBytes)
}

// Measure measures the fold after a control batch, and corrects what the partition and the node have of it. The caller
// owns the fold.
func (a *Account) Measure(now *fold.Cursors, end segment.Offset) {
	bytes, memory := now.MaxBytes(end), now.MemoryBytes()
	a.add(bytes-a.stored.Swap(bytes), memory-a.memory.Swap(memory))
	a.delayMemory.Store(now.DelayMemoryBytes())
	a.countGaps(now)
}

// Recount measures the fold for Budget.Recount, and returns an upper bound for its size in a checkpoint.
func (a *Account) Recount(now *fold.Cursors, end segment.Offset) int64 {
	bytes := now.MaxBytes(end)
	a.stored.Store(bytes)
	a.memory.Store(now.MemoryBytes())
	return bytes
}

// countGaps bounds the holes that the fold's waiting messages make. To count them costs as much as messages wait, so
// that is done only where the bound exceeds the limit, once per so many changes. The caller owns the fold.
func (a *Account) countGaps(now *fold.Cursors) {
	gaps, most := now.Gaps(), int(a.budget.maxRanges.Load())
	if gaps >= fold.MaxGaps(most) {
		now.CountGaps(max(1, most/64))
		gaps = now.Gaps()
	}
	a.gaps.Store(int64(gaps))
}

// Grew adds an estimate for count delayed messages that were just folded. An exact measurement would visit all
// channels. The caller owns the fold.
func (a *Account) Grew(now *fold.Cursors, end segment.Offset, count int) {
	if count > 0 {
		bytes := int64(count) * fold.DeferredBytes(end)
		memory := int64(count) * now.DelayMemoryBytes()
		a.stored.Add(bytes)
		a.memory.Add(memory)
		a.add(bytes, memory)
		if a.gaps.Add(int64(count)) >= int64(fold.MaxGaps(int(a.budget.maxRanges.Load()))) {
			a.countGaps(now)
		}
	}
}
