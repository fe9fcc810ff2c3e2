package engine

import "penstock/segment"

// RetainTo is what retention may remove of a partition, and where its log ends. It is for an engine whose RetentionInterval does not pass.
func RetainTo(e *Engine, topic string, n int) (to, end segment.Offset) {
	pt := partitionOf(e, topic, n)
	end, _, _ = pt.log.End()
	return e.flusher.retainTo(pt), end
}

// SendControls writes what a channel has confirmed, if nothing of it is on its way, and says what is left to be written.
func SendControls(c *Channel) (left bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sendControls()
	return c.m.HasControls(0)
}
