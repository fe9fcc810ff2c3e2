package core

// ShiftDue moves the due time of everything that waits by ms and returns how much there is. The engine does it to the
// fold that the batch carries which begins an epoch, so that all replicas get it with the log. No time goes below 0.
func (c *Cursors) ShiftDue(ms int64) (count int) {
	for i := range c.Deferred {
		d := &c.Deferred[i]
		d.DueMs = max(0, d.DueMs+ms)
		count++
	}
	for _, ch := range c.channels {
		for i := range ch.Requeued {
			d := &ch.Requeued[i]
			d.DueMs = max(0, d.DueMs+ms)
			count++
		}
	}
	return count
}
