package engine

import (
	"errors"

	"penstock/engine/core"
	"penstock/segment"
)

// What channels have confirmed out of order and what waits for its time has to be in memory, in every checkpoint of
// the commit log, and in a batch at the beginning of every segment. The commit log makes its files as large as that
// takes. Two limits are the last line of defence: Options.MaxStateBytes for the node, and what one batch can hold for
// a partition. At either, what would add to it by somebody's wish (a delayed message, a requeue with a delay, a new
// channel) is refused, and everything else goes on.

// ErrStateFull is a refusal at one of these limits.
var ErrStateFull = errors.New("engine: deferred messages and confirmations out of order take as much room as a " +
	"node (MaxStateBytes) or a partition may use for them: nothing is deferred and no channel is made; nothing of " +
	"this request was stored, everything else goes on; finish messages or raise the limit")

// maxPartitionStateBytes is where a partition's state is full: a batch has to hold it. What lies between is for the
// confirmations of messages that are in flight, which nobody can refuse.
const maxPartitionStateBytes = segment.MaxBatchBytes - 2<<20

// stateFull says whether count more delayed messages are too many for pt or the node.
func (pt *partition) stateFull(count int) bool {
	more := int64(count) * core.MaxDeferredBytes
	return pt.stateBytes.Load()+more > maxPartitionStateBytes || pt.e.stateBytes.Load()+more > pt.e.opts.MaxStateBytes
}

// stateFull is partition.stateFull for what concerns every partition of the topic.
func (t *Topic) stateFull() bool {
	for _, pt := range t.partitions() {
		if pt.stateFull(1) {
			return true
		}
	}
	return false
}

// measureState follows a control batch: it counts what the fold takes now.
func (pt *partition) measureState() {
	n := pt.fold.MaxBytes(pt.machine.State().End)
	pt.e.stateBytes.Add(n - pt.stateBytes.Swap(n))
}

// stateGrew counts delayed messages that were just folded: about, for it must not look at all channels.
func (pt *partition) stateGrew(count int) {
	if count > 0 {
		n := int64(count) * core.DeferredBytes(pt.machine.State().End)
		pt.stateBytes.Add(n)
		pt.e.stateBytes.Add(n)
	}
}

// refusesDelay says whether so many delayed messages are too many. Only the committer may ask.
func (pt *partition) refusesDelay(count int) bool {
	if !pt.stateFull(count) {
		return false
	}
	pt.measureState()
	return pt.stateFull(count)
}

// CheckpointBytes implements clog.Source. It also measures the node's state anew: that of partitions which are gone
// leaves the sum.
func (c *committer) CheckpointBytes() int64 {
	const fixed, epochBytes = identityBytes + stateBytes + 8 + 4, 24 // see appendEntry; of replicate's table: an entry, and more than its header
	state, n := int64(0), int64(4)
	for _, pt := range c.e.partitionList() {
		bytes := pt.fold.MaxBytes(pt.machine.State().End)
		pt.stateBytes.Store(bytes)
		state += bytes
		n += bytes + fixed + epochBytes*int64(1+len(pt.epochs.Entries()))
	}
	c.e.stateBytes.Store(state)
	return n
}
