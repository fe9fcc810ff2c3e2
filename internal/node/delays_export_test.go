package node

// DelaysIn returns how many deferred messages the fold of a copy's log has, those that a consumer requeued included.
func DelaysIn(e *Engine, topic string, n int) int {
	return partitionOf(e, topic, n).State().Delayed
}
