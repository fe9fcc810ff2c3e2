package engine

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

// stateFull says whether count more delayed messages would exceed the limit of pt or of the node.
func (pt *partition) StateFull(count int) bool {
	more := int64(count) * core.MaxDeferredBytes
	return pt.stateBytes.Load()+more > maxPartitionStateBytes || pt.e.stateBytes.Load()+more > pt.e.opts.MaxStateBytes
}

// measureState measures the fold after a control batch. It runs on the committer.
func (pt *partition) measureState() {
	n := pt.fold.MaxBytes(pt.machine.State().End)
	pt.e.stateBytes.Add(n - pt.stateBytes.Swap(n))
}

// stateGrew adds an estimate for delayed messages that were just folded. Measuring would visit all channels.
func (pt *partition) stateGrew(count int) {
	if count > 0 {
		n := int64(count) * core.DeferredBytes(pt.machine.State().End)
		pt.stateBytes.Add(n)
		pt.e.stateBytes.Add(n)
	}
}

// refusesDelay says whether so many delayed messages would exceed a limit. If the estimate says so, it measures first.
// Only the committer may call it.
func (pt *partition) refusesDelay(count int) bool {
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
	for _, pt := range c.e.partitionList() {
		bytes := pt.fold.MaxBytes(pt.machine.State().End)
		pt.stateBytes.Store(bytes)
		state += bytes
		n += bytes + checkpoint.FixedBytes + epochBytes*int64(1+len(pt.epochs.Entries()))
	}
	c.e.stateBytes.Store(state)
	return n
}
