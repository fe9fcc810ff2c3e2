package delivery

import (
	"slices"

	"penstock/batch"
	"penstock/internal/node/fold"
	"penstock/segment"
)

// outboxEntry is a dead letter that the dead-letter topic does not have yet.
type outboxEntry struct {
	fold.DeadMessage
	take uint64 // the take that wrote it to the log; 0: the log had it before this machine began; or notTaken
	// The message's earlier dead letter, which the log has until this one is taken. wasTaken is notTaken if there is none.
	wasTaken    uint64
	wasAttempts uint16
}

func (o outboxEntry) id() segment.MsgID { return o.ID }

// Outbox appends the partition's committed dead letters that were not moved yet, sorted by id. It omits those that are
// not committed: after a crash such a message would still belong to the channel.
func (c *Channel) Outbox(part uint32, dst []fold.DeadMessage) []fold.DeadMessage {
	p := c.part(part)
	for _, o := range p.outbox {
		if o.take <= p.committed {
			dst = append(dst, o.DeadMessage)
		}
	}
	return dst
}

// LastCommitted returns the number of the last take that is known to be committed.
func (c *Channel) LastCommitted(part uint32) uint64 { return c.part(part).committed }

// LastTake returns the number of the partition's last take; see TakeControls.
func (c *Channel) LastTake(part uint32) uint64 { return c.part(part).takes }

// spent says whether the message was delivered as often as the settings allow.
func (c *Channel) spent(e *entry) bool {
	return c.settings.MaxAttempts != 0 && e.attempts >= c.settings.MaxAttempts
}

// deadLetter confirms the message of an entry that is in no list and puts it into the outbox. One control entry does
// both. While the outbox is full, the entry waits as a doomed one.
func (c *Channel) deadLetter(e *entry) {
	p, m := c.part(e.id.Partition()), e.id.MsgID()
	if len(p.outbox) >= c.cfg.MaxOutbox {
		e.state, e.dueMs = entryDoomed, c.nowNs/nsPerMs
		p.doomed.pushBack(e)
		c.waiting++
		return
	}
	p.addDead(fold.DeadMessage{ID: m, Attempts: e.attempts}, c.cfg.Ephemeral)
	c.deadCount++
	lane := e.lane
	e.state = 0
	c.forget(e)
	// confirm would add the message to a Confirmed entry. If only that one survived a crash, without the DeadLettered,
	// the message would be lost.
	fold.ConfirmRange(&p.confirmed, &p.ranges, fold.IDRange{From: m, To: m + 1})
	if lane != nil {
		c.settleLane(p, lane)
	}
	c.settle(p)
}

// addDead puts a dead letter into the outbox. After a reset the outbox may still have the message's earlier dead
// letter; then it is written to the log again, because the reset undid its confirmation there.
func (p *channelPart) addDead(d fold.DeadMessage, ephemeral bool) {
	i := fold.SearchID(p.outbox, d.ID, outboxEntry.id)
	o := outboxEntry{DeadMessage: d, wasTaken: notTaken}
	switch {
	case i == len(p.outbox) || p.outbox[i].ID != d.ID:
		p.outbox = slices.Insert(p.outbox, i, outboxEntry{})
	case p.outbox[i].take == notTaken:
		o.wasTaken, o.wasAttempts = p.outbox[i].wasTaken, p.outbox[i].wasAttempts
		p.untaken--
	default:
		o.wasTaken, o.wasAttempts = p.outbox[i].take, p.outbox[i].Attempts
	}
	if !ephemeral {
		o.take = notTaken
		p.untaken++
	}
	p.outbox[i] = o
}

// takeDead returns dead letters that were not taken yet, and marks them with the current take.
func (p *channelPart) takeDead() []fold.DeadMessage {
	p.takenDead = p.takenDead[:0]
	for i := 0; p.untaken > 0 && len(p.takenDead) < MaxTakenDead; i++ {
		if o := &p.outbox[i]; o.take == notTaken {
			o.take, o.wasTaken = p.takes, notTaken
			p.untaken--
			p.takenDead = append(p.takenDead, o.DeadMessage)
		}
	}
	return p.takenDead
}

// deadMoved removes from the outbox the dead letters that the dead-letter topic has stored. Those whose DeadLettered
// entry is not committed stay, and are moved once more.
func (c *Channel) deadMoved(p *channelPart, rs []fold.IDRange) {
	p.outbox = fold.RemoveWithin(p.outbox, rs, outboxEntry.id, func(o outboxEntry) bool {
		gone := o.take <= p.committed
		if gone && !c.cfg.Ephemeral {
			p.moved.Add(o.ID)
		}
		return gone
	})
	c.retryDoomed(p, false)
}

// retryDoomed looks again at doomed entries: as many as the outbox has room for or, if all is set, every one, because
// the limit of attempts may have changed.
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

// forgetDead removes the dead letters at or above from that were not taken yet. A reset calls it: their messages will
// be delivered again. What the log has stays: it will be moved.
func (c *Channel) forgetDead(p *channelPart, from segment.MsgID) {
	kept := p.outbox[:0]
	for _, o := range p.outbox {
		if o.ID >= from && o.take == notTaken {
			p.untaken--
			if o.wasTaken == notTaken {
				continue
			}
			o.take, o.Attempts, o.wasTaken = o.wasTaken, o.wasAttempts, notTaken
		}
		kept = append(kept, o)
	}
	p.outbox = kept
}

// recall returns the remembered delay of the message m at the reading cursor, or a zero Deferral. It forgets the delays
// of earlier messages.
func (p *channelPart) recall(m segment.MsgID) (d fold.Deferral) {
	for len(p.remembered) > 0 && p.remembered[0].ID < m {
		p.remembered = p.remembered[1:]
	}
	if len(p.remembered) > 0 && p.remembered[0].ID == m {
		d = p.remembered[0]
	}
	return d
}

// carried notes the new places of messages that were copied to another batch. A message that was published with a delay
// gets an entry again if the reading cursor would otherwise come to it, which happens after a reset to a place before
// it: the segment in which it was published may be removed.
func (c *Channel) carried(p *channelPart, ds []fold.DeferredMessage) {
	for i, d := range ds {
		if d.DueMs != 0 {
			c.addDeferred(p, ds[i:i+1])
		} else if e := c.own(batch.MakeID(p.number, d.ID)); e != nil {
			e.at, e.hasAt, e.index = d.At, true, NoIndex
		}
	}
	c.settle(p)
}
