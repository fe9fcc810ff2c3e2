package engine

import "penstock/engine/core"

// DelaysIn is how many messages wait for their time by a copy's log.
func DelaysIn(e *Engine, topic string, n int) int {
	pt := partitionOf(e, topic, n)
	pt.rep.mu.Lock()
	defer pt.rep.mu.Unlock()
	count := len(pt.fold.Deferred)
	pt.fold.Each(func(c *core.Cursor) { count += len(c.Requeued) })
	return count
}
