package core

import (
	"slices"

	"penstock/segment"
)

// outboxEntry is a dead letter on its way to the dead-letter topic.
type outboxEntry struct {
	DeadMessage
	take uint64 // that took it into the log; 0: the log had it before this channel began
}

func (o outboxEntry) id() segment.MsgID { return o.ID }

// Outbox appends the partition's committed dead letters that are not moved yet, in the order of their ids.
// What is not committed is not in it: after a crash it would still be the channel's.
func (c *Channel) Outbox(part uint32, dst []DeadMessage) []DeadMessage {
	p := c.part(part)
	for _, o := range p.outbox {
		if o.take <= p.committed {
			dst = append(dst, o.DeadMessage)
		}
	}
	return dst
}

// LastTake is the number of the partition's last TakeControls that returned something; see EvConfirmsCommitted.
func (c *Channel) LastTake(part uint32) uint64 { return c.part(part).takes }

// spent says whether the message was delivered as often as the settings allow.
func (c *Channel) spent(e *entry) bool {
	return c.settings.MaxAttempts != 0 && e.attempts >= c.settings.MaxAttempts
}

// deadLetter confirms the message of an entry that is in no list and puts it into the outbox, both by one
// control entry. While the outbox is full the entry waits.
func (c *Channel) deadLetter(e *entry) {
	p, m := c.part(e.id.Partition()), e.id.MsgID()
	if len(p.outbox) >= c.cfg.MaxOutbox {
		e.state, e.dueMs = entryDoomed, c.nowNs/nsPerMs
		p.doomed.pushBack(e)
		c.waiting++
		return
	}
	p.addDead(DeadMessage{ID: m, Attempts: e.attempts}, c.cfg.Ephemeral)
	c.deadCount++
	lane := e.lane
	e.state = 0
	c.forget(e)
	// Not through confirm: a Confirmed in the log before the DeadLettered would lose the message in a crash.
	confirmRange(&p.confirmed, &p.ranges, IDRange{m, m + 1})
	if lane != nil {
		c.settleLane(p, lane)
	}
	c.settle(p)
}

// addDead puts a dead letter into the outbox. One that is there already, because a reset went back before
// it, is told to the log again: the log has to confirm it again.
func (p *channelPart) addDead(d DeadMessage, ephemeral bool) {
	i := searchID(p.outbox, d.ID, outboxEntry.id)
	if i == len(p.outbox) || p.outbox[i].ID != d.ID {
		p.outbox = slices.Insert(p.outbox, i, outboxEntry{})
	} else if p.outbox[i].take == notTaken {
		p.untaken--
	}
	p.outbox[i] = outboxEntry{DeadMessage: d}
	if !ephemeral {
		p.outbox[i].take = notTaken
		p.untaken++
	}
}

// takeDead returns dead letters that the log does not know.
func (p *channelPart) takeDead() []DeadMessage {
	p.takenDead = p.takenDead[:0]
	for i := 0; p.untaken > 0 && len(p.takenDead) < MaxTakenDead; i++ {
		if o := &p.outbox[i]; o.take == notTaken {
			o.take = p.takes
			p.untaken--
			p.takenDead = append(p.takenDead, o.DeadMessage)
		}
	}
	return p.takenDead
}

// deadMoved takes out of the outbox what the dead-letter topic has. What is not committed stays: it goes
// there once more.
func (c *Channel) deadMoved(p *channelPart, rs []IDRange) {
	p.outbox = removeWithin(p.outbox, rs, outboxEntry.id, func(o outboxEntry) bool {
		gone := o.take <= p.committed
		if gone && !c.cfg.Ephemeral {
			p.moved.Add(o.ID)
		}
		return gone
	})
	c.retryDoomed(p, false)
}

// retryDoomed looks again at what found the outbox full: while there is room, or at all of it because the
// limit of attempts may be another.
func (c *Channel) retryDoomed(p *channelPart, all bool) {
	for n := p.doomed.count; n > 0 && (all || len(p.outbox) < c.cfg.MaxOutbox); n-- {
		e := p.doomed.first
		p.doomed.remove(e)
		c.waiting--
		if c.spent(e) {
			c.deadLetter(e)
		} else {
			c.enqueue(e, false)
		}
	}
}

// forgetDead removes dead letters at or above from that no TakeControls has returned yet. A reset calls it: their
// messages will be delivered again.
func (c *Channel) forgetDead(p *channelPart, from segment.MsgID) {
	p.outbox = slices.DeleteFunc(p.outbox, func(o outboxEntry) bool {
		if o.ID < from || o.take != notTaken {
			return false
		}
		p.untaken--
		return true
	})
}

// recall returns what is remembered of a message at the reading cursor, and forgets what is before it.
func (p *channelPart) recall(m segment.MsgID) (d Deferral) {
	for len(p.remembered) > 0 && p.remembered[0].ID < m {
		p.remembered = p.remembered[1:]
	}
	if len(p.remembered) > 0 && p.remembered[0].ID == m {
		d = p.remembered[0]
	}
	return d
}

// carried takes in where messages lie that were copied to another batch. One that was published with a delay
// and would be read by the cursor, because a reset went back before it, waits for its time again: its segment may go.
func (c *Channel) carried(p *channelPart, ds []DeferredMessage) {
	for i, d := range ds {
		if d.DueMs != 0 {
			c.addDeferred(p, ds[i:i+1])
		} else if e := c.entries.get(MakeID(p.number, d.ID)); e != nil {
			e.at, e.hasAt, e.index = d.At, true, NoIndex
		}
	}
	c.settle(p)
}
