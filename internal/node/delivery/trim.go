package delivery

import (
	"penstock/internal/node/fold"
	"penstock/segment"
)

// trimmed is for a log whose oldest segments were removed. Messages that no client has finished may have gone with
// them, because retention by size, age or count, and a quota in the mode drop-oldest, remove waiting messages, too.
// These messages count as confirmed from now on, so that no count includes a message that does not exist. A client that
// has one in flight may still finish it. Dead letters stay until the goroutine that moves them finds that their bytes
// are gone.
//
// With an offset (At), all events that preceded the trim were stepped: no message is below the log's start only because
// the machine does not know yet where it was carried to.
func (c *Channel) trimmed(p *partition, ev *Event) {
	p.start = max(p.start, ev.Start)
	c.dropTo(p, ev.Start)
	if ev.At <= p.border.At {
		return
	}
	p.border = fold.Border{At: ev.At, ID: ev.Start}
	c.entries.each(func(e *entry) {
		if e.id.Partition() == p.number && e.state != entryInFlight && e.state != entryDoomed && p.lacks(e) {
			c.discardLost(e)
		}
	})
	p.settle()
}

// dropTo discards the unread messages below the log's start, which are gone.
func (c *Channel) dropTo(p *partition, start segment.MsgID) {
	if !c.skipped {
		c.droppedCount += p.unreadBelow(start)
	}
	c.discardTo(p, start)
}

// lacks says that the bytes of an entry's message are gone.
func (p *partition) lacks(e *entry) bool {
	return e.id.MsgID() < p.border.ID && (!e.hasAt || e.at < p.border.At)
}

// discardLost is discard for a message whose bytes are gone.
func (c *Channel) discardLost(e *entry) {
	if !c.skipped {
		c.droppedCount++
	}
	c.discard(e)
}
