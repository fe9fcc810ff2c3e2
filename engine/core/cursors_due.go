package core

// ShiftDue adds ms to the due time of every waiting message and returns their number. No time becomes negative. The
// engine applies it to the fold that it writes at the start of an epoch, so that all replicas get the new times with
// the log.
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
