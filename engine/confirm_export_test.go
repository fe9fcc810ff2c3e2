package engine

import "penstock/segment"

// RetainTo is what retention may remove of a partition, and where its log ends. It is for an engine whose
// RetentionInterval does not pass.
func RetainTo(e *Engine, topic string, n int) (to, end segment.Offset) {
	pt := partitionOf(e, topic, n)
	end, _, _ = pt.log.End()
	return e.store.flusher.retainTo(pt), end
}

// ConfirmedInLog is how many messages of a partition, from the first, every channel has confirmed as the log has it.
func ConfirmedInLog(t *Topic, n int) uint64 { return t.partitions()[n].needed.Load() }
