package fold

import "penstock/segment"

// DueOr returns when a message is due that was published with a delay and that some channel has not confirmed. For any
// other message it returns dueMs.
func (c *Cursors) DueOr(id segment.MsgID, dueMs int64) int64 {
	if i := SearchID(c.Deferred, id, DeferredMessage.id); i < len(c.Deferred) && c.Deferred[i].ID == id {
		return c.Deferred[i].DueMs
	}
	return dueMs
}

// ShiftDue adds ms to the due times that the log's last epoch has stored, and returns their number: of messages that
// were published with a delay at or behind the offset where the epoch began, and of those that were given back since. A
// message that was carried keeps its time, because where it was published is not known any more. Nor is it always known
// when a message was given back; one that is due after beyondMs (unix ms), the latest time that a right clock could
// have stored, was deferred by the wrong clock. No time becomes negative. The engine applies ShiftDue to the fold that
// it writes at the start of an epoch, so that all replicas get the new times with the log.
func (c *Cursors) ShiftDue(ms int64, from segment.Offset, beyondMs int64) (count int) {
	for i := range c.Deferred {
		if d := &c.Deferred[i]; d.At >= from && c.placeOf(d.ID) == 0 {
			d.DueMs = max(0, d.DueMs+ms)
			count++
		}
	}
	for _, ch := range c.channels {
		for i := range ch.Requeued {
			if d := &ch.Requeued[i]; d.Recent || d.DueMs > beyondMs {
				d.DueMs = max(0, d.DueMs+ms)
				count++
			}
		}
	}
	return count
}

// BeginEpoch is called when an epoch of the log begins: what was deferred so far is of another writer.
func (c *Cursors) BeginEpoch() {
	for _, ch := range c.channels {
		for i := range ch.Requeued {
			ch.Requeued[i].Recent = false
		}
	}
}

// keepRecent notes which deferrals are recent, according to the fold that c replaces.
func (c *Cursors) keepRecent(old *Cursors) {
	for _, ch := range c.channels {
		was := old.Channel(ch.Name)
		if was == nil {
			continue
		}
		had := was.Requeued
		for i := range ch.Requeued {
			d := &ch.Requeued[i]
			if had = atOrAbove(had, d.ID, Deferral.id); len(had) > 0 && had[0].ID == d.ID && had[0].DueMs == d.DueMs {
				d.Recent = had[0].Recent
			}
		}
	}
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
