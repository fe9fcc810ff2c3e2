package delivery

import (
	"penstock/batch"
	"penstock/internal/node/fold"
)

// In an ordered channel, a delivery to a client of another node is out of this machine's sight for a while: it is in a
// socket, or at a node that does not run. The client's hold (Event.HoldMs) bounds how long that may last. Until the
// hold ends, no other client gets the message, and nobody gets the next one of its lane. Otherwise the node in between
// could hand over the earlier message after the later one.
//
// The hold ends when the client answers the delivery (FIN, REQ), when its node gives the delivery back (EvReturn), or
// when the node says that no delivery to the client is on its way any more (EvUnsubscribe with Flag). At the latest it
// ends by time. A message is recalled if it timed out before that, or if its client left without such a statement: its
// entry is in no list, and its timer is the end of the hold.
//
// A FIN ends the entry and its timer; from then on only the lane waits, for the commit. So this leader does not deliver
// a message again just because the commit of its confirmation takes long.

// returnPauseMs is how long a message that was given back waits before its next delivery. Without the pause, a node
// that cannot hand anything over just now would get it and give it back again and again.
const returnPauseMs = 50

// startHold sets the hold of the delivery that begins now.
func (c *Channel) startHold(e *entry, cl *client, res *Result) {
	e.serial, e.heldMs, e.holder = 0, 0, cl.id
	if cl.holdMs > 0 && c.settings.Order != fold.OrderNone {
		e.serial, e.heldMs = cl.messageCount, e.startMs+cl.holdMs
		res.Serial = e.serial
	}
}

// comeAgain queues an entry that is in no list, as soon as the hold of its last delivery is
// over.
func (c *Channel) comeAgain(e *entry, front bool) {
	c.noteFailure(e)
	if e.heldMs <= c.nowNs/nsPerMs {
		c.enqueue(e, front)
		return
	}
	c.recallCount++
	c.recalled++
	e.state = entryRecalled
	c.schedule(e, e.heldMs)
}

// stale says that the client's node sent the event before it received the delivery that is in flight. The event is
// about an earlier delivery, which timed out.
func (e *entry) stale(ev *Event) bool { return e.serial > ev.Seen }

// giveBack takes back a delivery that the client's node did not hand over. It does not count as an attempt.
func (c *Channel) giveBack(ev *Event) error {
	e := c.own(ev.ID)
	if e == nil || e.holder != ev.Client || e.serial == 0 || e.serial != ev.Seen {
		return ErrNotInFlight
	}
	switch e.state {
	case entryInFlight:
		c.land(e)
	case entryRecalled:
		c.entries.wheel.Cancel(&e.timer)
		c.recalled--
	default:
		return ErrNotInFlight
	}
	c.returnCount++
	e.uncount()
	e.heldMs, e.serial = c.soonMs()+returnPauseMs, 0
	c.comeAgain(e, true)
	return nil
}

// fence keeps the messages of an ordered partition from being delivered for at most ms: the previous leader may have
// sent messages to nodes that have not handed them over yet.
func (c *Channel) fence(p *partition, ms int64) {
	if ms <= 0 || c.settings.Order == fold.OrderNone {
		return
	}
	p.fence = c.entries.pool.get(batch.MakeID(p.number, 0))
	p.fence.state = entryFence
	c.schedule(p.fence, c.soonMs()+ms)
}

// liftFence ends the fence, because its time is over, because every node said that it hands over nothing more of
// earlier leaders, or because the partition leaves the channel.
func (p *partition) liftFence() {
	if p.fence != nil {
		p.entries.wheel.Cancel(&p.fence.timer)
		p.entries.pool.put(p.fence)
		p.fence = nil
	}
}

// Fenced says whether the partition has a fence: its order waits for EvUnfence, or for the time that EvAddPartition
// gave.
func (c *Channel) Fenced(part uint32) bool { return c.part(part).fence != nil }
