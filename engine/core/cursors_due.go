package core

import "penstock/segment"

// DueOr returns when a message is due that was published with a delay and that some channel has not confirmed. For any
// other message it returns dueMs.
func (c *Cursors) DueOr(id segment.MsgID, dueMs int64) int64 {
	if i := searchID(c.Deferred, id, DeferredMessage.id); i < len(c.Deferred) && c.Deferred[i].ID == id {
		return c.Deferred[i].DueMs
	}
	return dueMs
}

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

// EachWaiting visits the messages that wait for their time, with the offset of the batch that holds or carries the
// message (0: where it was published) and when it is due (unix ms). It visits one again for each channel that requeued
// it.
func (c *Cursors) EachWaiting(visit func(id segment.MsgID, at segment.Offset, dueMs int64)) {
	for _, d := range c.Deferred {
		visit(d.ID, d.At, d.DueMs)
	}
	for _, ch := range c.channels {
		for _, d := range ch.Requeued {
			visit(d.ID, d.At, d.DueMs)
		}
	}
}
