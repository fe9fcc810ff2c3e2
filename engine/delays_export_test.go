package engine

// DelaysIn is how many messages wait for their time by a copy's log.
func DelaysIn(e *Engine, topic string, n int) int {
	return partitionOf(e, topic, n).State().Delayed
}
