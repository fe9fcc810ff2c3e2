package part

import (
	"penstock/engine/checkpoint"
	"penstock/engine/core"
	"penstock/segment"
)

// The state of the channels is what they have confirmed out of order, and what is deferred. It is kept in memory, in
// every checkpoint of the commit log, and in a batch at the beginning of every segment; the commit log makes its files
// large enough for it. Two limits bound it: Options.MaxStateBytes for the node, and the size of a batch for a
// partition. At a limit the engine refuses requests that would add to the state (a delayed message, a requeue with a
// delay, a new channel). Everything else goes on.

// maxPartitionStateBytes is the limit of a partition. The rest of a batch is left for confirmations of messages in
// flight, which cannot be refused.
const maxPartitionStateBytes = segment.MaxBatchBytes - 2<<20

// StateFull says whether count more delayed messages would exceed the limit of pt or of the node.
func (pt *Partition) StateFull(count int) bool {
	more := int64(count) * core.MaxDeferredBytes
	s := pt.store
	return pt.stateBytes.Load()+more > maxPartitionStateBytes || s.stateBytes.Load()+more > s.opts.MaxStateBytes
}

// measureState measures the fold after a control batch. It runs on the committer.
func (pt *Partition) measureState() {
	n := pt.fold.MaxBytes(pt.machine.State().End)
	pt.store.stateBytes.Add(n - pt.stateBytes.Swap(n))
}

// stateGrew adds an estimate for delayed messages that were just folded. Measuring would visit all channels.
func (pt *Partition) stateGrew(count int) {
	if count > 0 {
		n := int64(count) * core.DeferredBytes(pt.machine.State().End)
		pt.stateBytes.Add(n)
		pt.store.stateBytes.Add(n)
	}
}

// refusesDelay says whether so many delayed messages would exceed a limit. If the estimate says so, it measures first.
// Only the committer may call it.
func (pt *Partition) refusesDelay(count int) bool {
	if !pt.StateFull(count) {
		return false
	}
	pt.measureState()
	return pt.StateFull(count)
}

// CheckpointBytes implements clog.Source: an upper bound for the size of a checkpoint. It also measures the node's
// state anew, which removes partitions that are gone from the sum.
func (c *committer) CheckpointBytes() int64 {
	// epochBytes: one entry of replicate's epoch table, and more than the table's header.
	const epochBytes = 24
	state, n := int64(0), int64(4)
	for _, pt := range c.store.Partitions() {
		bytes := pt.fold.MaxBytes(pt.machine.State().End)
		pt.stateBytes.Store(bytes)
		state += bytes
		n += bytes + checkpoint.FixedBytes + epochBytes*int64(1+len(pt.epochs.Entries()))
	}
	c.store.stateBytes.Store(state)
	return n
}
