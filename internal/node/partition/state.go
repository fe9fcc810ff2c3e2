package partition

import (
	"errors"
	"time"

	"penstock/internal/node/checkpoint"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/segment"
)

// The state of the channels consists of the messages that they have confirmed out of order, of the deferred messages,
// and of what is known about producers. It is kept in memory, in every checkpoint of the commit log, and in a batch at
// the beginning of every segment. The commit log makes its files large enough for a checkpoint. Three limits bound the
// state: Options.MaxStateBytes for the node's memory, on followers as on leaders; maxStoredStateBytes for its
// checkpoint; and the size of a batch for a partition. Of the first two, the topics that one token has made take a
// share at most (share.go). At a limit the engine refuses requests that would add to the state (a delayed message, a
// requeue with a delay, a new channel, a new producer). All other requests go on.

// maxPartitionStateBytes is the limit of one partition. The rest of a batch is reserved for confirmations of messages
// in flight, which cannot be refused.
const maxPartitionStateBytes = segment.MaxBatchBytes - 2<<20

// maxStoredStateBytes is the limit of the node's checkpoint.
const maxStoredStateBytes = 128 << 20

// StateFull returns an error if count more delayed messages would exceed the limit of pt or of the node. Any goroutine
// may call it.
func (pt *Partition) StateFull(count int) error {
	return pt.exceedsState(int64(count)*fold.MaxDeferredBytes, int64(count)*pt.delayMemory.Load())
}

// exceedsState returns an error if more bytes of state, and of memory for it, would exceed a limit of pt, of the node,
// or of the token that has made the topic.
func (pt *Partition) exceedsState(more, memory int64) error {
	s := pt.store
	own, stored, inMemory := pt.stateBytes.Load()+more, s.stateBytes.Load()+more, s.stateMemory.Load()+memory
	full := func(what string, value, most int64, setting string) error {
		return &errs.LimitError{
			Err: errs.ErrStateFull, What: "with this request the number of bytes for them in " + what, Value: value, Most: most,
			Setting: setting,
		}
	}
	switch {
	case inMemory > s.opts.MaxStateBytes:
		return full("the node's memory", inMemory, s.opts.MaxStateBytes, "max-state-bytes")
	case stored > maxStoredStateBytes:
		return full("a checkpoint of the node", stored, maxStoredStateBytes, "")
	case own > maxPartitionStateBytes:
		return full("a checkpoint of the partition", own, maxPartitionStateBytes, "")
	}
	return pt.exceedsShare(more, memory)
}

// RefusesDelay returns why the partition would refuse count more messages delayed by delay now, or nil: retention by
// age would remove them before they are due, the state is full, or they could make so many holes among the confirmed
// messages of a channel that it delivers nothing new (fold.Cursors.Gaps). Any goroutine may call it.
func (pt *Partition) RefusesDelay(count int, delay time.Duration) error {
	if l := pt.topic.Limits.Load(); l != nil && l.RetentionAge > 0 && delay >= l.RetentionAge {
		return &errs.RetentionError{Delay: delay, Age: l.RetentionAge}
	}
	if err := pt.StateFull(count); err != nil {
		return err
	}
	most := pt.store.opts.MaxRanges
	if gaps, limit := int(pt.gaps.Load()), fold.MaxGaps(most); gaps+count > limit {
		return &errs.GapsError{Waiting: gaps, Limit: limit, MaxRanges: most}
	}
	return nil
}

// measureState measures the fold after a control batch, and corrects what pt and the node have of it. Only the
// committer, recovery and the goroutine that makes a partition call it.
func (pt *Partition) measureState() {
	bytes, memory := pt.fold.MaxBytes(pt.machine.State().End), pt.fold.MemoryBytes()
	pt.addState(bytes-pt.stateBytes.Swap(bytes), memory-pt.stateMemory.Swap(memory))
	pt.delayMemory.Store(pt.fold.DelayMemoryBytes())
	pt.countGaps()
}

// countGaps bounds the holes that the fold's waiting messages make. To count them costs as much as messages wait, so
// that is done only where the bound exceeds the limit, once per so many changes. The caller owns the fold.
func (pt *Partition) countGaps() {
	gaps, most := pt.fold.Gaps(), pt.store.opts.MaxRanges
	if gaps >= fold.MaxGaps(most) {
		pt.fold.CountGaps(max(1, most/64))
		gaps = pt.fold.Gaps()
	}
	pt.gaps.Store(int64(gaps))
}

// stateGrew adds an estimate for count delayed messages that were just folded. An exact measurement would visit all
// channels. The committer calls it.
func (pt *Partition) stateGrew(count int) {
	if count > 0 {
		bytes := int64(count) * fold.DeferredBytes(pt.machine.State().End)
		memory := int64(count) * pt.fold.DelayMemoryBytes()
		pt.stateBytes.Add(bytes)
		pt.stateMemory.Add(memory)
		pt.addState(bytes, memory)
		if pt.gaps.Add(int64(count)) >= int64(fold.MaxGaps(pt.store.opts.MaxRanges)) {
			pt.countGaps()
		}
	}
}

// refusesDelay is RefusesDelay for the committer: if an estimate exceeds a limit, it measures the fold before it
// decides.
func (pt *Partition) refusesDelay(count int, delay time.Duration) error {
	err := pt.RefusesDelay(count, delay)
	if err == nil || errors.Is(err, errs.ErrDeferRetention) {
		return err
	}
	pt.measureState()
	return pt.RefusesDelay(count, delay)
}

// CheckpointBytes implements clog.Source. It returns an upper bound for the size of a checkpoint. It also measures the
// state of the node anew, which drops removed partitions from the sum. It runs on the committer.
func (c *committer) CheckpointBytes() int64 {
	// epochBytes is the size of one entry of replicate's epoch table. The table's header is smaller.
	const epochBytes = 24
	state, memory, n := int64(0), int64(0), int64(4)
	c.store.Shares(func(sh *Share) { sh.nextBytes, sh.nextMemory = 0, 0 })
	for _, pt := range c.store.Partitions() {
		bytes := pt.fold.MaxBytes(pt.machine.State().End)
		pt.stateBytes.Store(bytes)
		pt.stateMemory.Store(pt.fold.MemoryBytes())
		state, memory = state+bytes, memory+pt.stateMemory.Load()
		if sh := pt.topic.Share.Load(); sh != nil {
			sh.nextBytes, sh.nextMemory = sh.nextBytes+bytes, sh.nextMemory+pt.stateMemory.Load()
		}
		n += bytes + checkpoint.FixedBytes + epochBytes*int64(1+len(pt.epochs.Entries()))
	}
	c.store.stateBytes.Store(state)
	c.store.stateMemory.Store(memory)
	c.store.Shares(func(sh *Share) {
		sh.stateBytes.Store(sh.nextBytes)
		sh.stateMemory.Store(sh.nextMemory)
	})
	return n
}
