package core

// A delivery of an ordered channel that goes to a client of another node lies for a while where this machine cannot see
// it: in a socket, or at a node that stands still. Until it was said how long that may last (its hold), no other client
// gets the message, and nobody the next one of its lane: else the node in between could hand over the earlier one after
// the later.
//
// The hold ends when the client speaks of the delivery (FIN, REQ), when its node gives it back (EvReturn) or says that
// nothing of the client's is left (EvUnsubscribe with Flag), and at last by time. A message that timed out meanwhile,
// or whose client is gone without a word, is recalled: an entry in no list, whose timer is the end of the hold.
//
// A confirmation that was taken ends the entry, and its timer with it: only the lane waits for the commit. So no
// message comes again from this leader because its confirmation's commit takes long.

// returnPauseMs is how long a delivery that was given back waits for the next one: a node that cannot hand anything
// over just now would give it back at once, again and again.
const returnPauseMs = 50

// holds says that deliveries to the client are held.
func (c *Channel) holds(cl *channelClient) bool {
	return cl.holdMs > 0 && c.settings.Order != OrderNone
}

// startHold notes what the delivery that begins now may not be overtaken by.
func (c *Channel) startHold(e *entry, cl *channelClient, res *Result) {
	e.serial, e.heldMs, e.holder = 0, 0, cl.id
	if c.holds(cl) {
		e.serial, e.heldMs = cl.messageCount, e.startMs+cl.holdMs
		res.Serial = e.serial
	}
}

// comeAgain puts an entry that is in no list into the redelivery queue, when the hold of its last delivery is over.
func (c *Channel) comeAgain(e *entry, front bool) {
	if e.heldMs <= c.nowNs/nsPerMs {
		c.enqueue(e, front)
		return
	}
	c.recallCount++
	c.recalled++
	e.state = entryRecalled
	c.schedule(e, e.heldMs)
}

// stale says that the client's node spoke before it had the delivery that is in flight: it means an earlier one, which
// timed out.
func (e *entry) stale(ev *Event) bool { return e.serial > ev.Seen }

// giveBack takes a delivery that the client's node did not hand over. It does not count as an attempt.
func (c *Channel) giveBack(ev *Event) error {
	e := c.entries.get(ev.ID)
	if e == nil || e.holder != ev.Client || e.serial == 0 || e.serial != ev.Seen {
		return ErrNotInFlight
	}
	switch e.state {
	case entryInFlight:
		c.land(e)
	case entryRecalled:
		c.wheel.Cancel(&e.timer)
		c.recalled--
	default:
		return ErrNotInFlight
	}
	c.returnCount++
	e.attempts--
	e.heldMs, e.serial = c.soonMs()+returnPauseMs, 0
	c.comeAgain(e, true)
	return nil
}

// hold sets how long deliveries to a client are held from now on.
func (c *Channel) hold(ev *Event) {
	if cl := c.clients[ev.Client]; cl != nil {
		cl.holdMs = ev.HoldMs
	}
}

// fence lets nothing of a partition's order go for a while: the leader before may have given messages to nodes that
// still have to hand them over.
func (c *Channel) fence(p *channelPart, ms int64) {
	if ms <= 0 || c.settings.Order == OrderNone {
		return
	}
	p.fence = c.pool.get(MakeID(p.number, 0))
	p.fence.state = entryFence
	c.schedule(p.fence, c.soonMs()+ms)
}

// liftFence ends the fence before its time: every node said that it hands over nothing of an earlier leader's any more.
func (c *Channel) liftFence(p *channelPart) {
	if p.fence != nil {
		c.wheel.Cancel(&p.fence.timer)
		c.pool.put(p.fence)
		p.fence = nil
	}
}

// Fenced says whether the partition's order waits for EvUnfence, or for the time that EvAddPartition named.
func (c *Channel) Fenced(part uint32) bool { return c.part(part).fence != nil }
