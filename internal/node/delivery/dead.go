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

// outbox has the dead letters of a partition that the dead-letter topic does not have yet.
type outbox struct {
	letters []outboxEntry      // sorted by ID
	untaken int                // how many of them were not taken yet
	moved   fold.IDSet         // ids that left the outbox; their DeadLetterMoved was not taken yet
	taken   []fold.DeadMessage // lent to the caller of TakeControls
}

// add puts a dead letter into the outbox. After a reset the outbox may still have the message's earlier dead letter;
// then it is written to the log again, because the reset undid its confirmation there.
func (b *outbox) add(d fold.DeadMessage, ephemeral bool) {
	i := fold.SearchID(b.letters, d.ID, outboxEntry.id)
	o := outboxEntry{DeadMessage: d, wasTaken: notTaken}
	switch {
	case i == len(b.letters) || b.letters[i].ID != d.ID:
		b.letters = slices.Insert(b.letters, i, outboxEntry{})
	case b.letters[i].take == notTaken:
		o.wasTaken, o.wasAttempts = b.letters[i].wasTaken, b.letters[i].wasAttempts
		b.untaken--
	default:
		o.wasTaken, o.wasAttempts = b.letters[i].take, b.letters[i].Attempts
	}
	if !ephemeral {
		o.take = notTaken
		b.untaken++
	}
	b.letters[i] = o
}

// take returns dead letters that were not taken yet, and marks them with the number of the take.
func (b *outbox) take(number uint64) []fold.DeadMessage {
	b.taken = b.taken[:0]
	for i := 0; b.untaken > 0 && len(b.taken) < MaxTakenDead; i++ {
		if o := &b.letters[i]; o.take == notTaken {
			o.take, o.wasTaken = number, notTaken
			b.untaken--
			b.taken = append(b.taken, o.DeadMessage)
		}
	}
	return b.taken
}

// remove removes the dead letters that the dead-letter topic has stored. Those whose DeadLettered entry is not
// committed stay, and are moved once more.
func (b *outbox) remove(rs []fold.IDRange, committed uint64, ephemeral bool) {
	b.letters = fold.RemoveWithin(b.letters, rs, outboxEntry.id, func(o outboxEntry) bool {
		gone := o.take <= committed
		if gone && !ephemeral {
			b.moved.Add(o.ID)
		}
		return gone
	})
}

// forget removes the dead letters at or above from that were not taken yet. A reset calls it: their messages will be
// delivered again. What the log has stays: it will be moved.
func (b *outbox) forget(from segment.MsgID) {
	kept := b.letters[:0]
	for _, o := range b.letters {
		if o.ID >= from && o.take == notTaken {
			b.untaken--
			if o.wasTaken == notTaken {
				continue
			}
			o.take, o.Attempts, o.wasTaken = o.wasTaken, o.wasAttempts, notTaken
		}
		kept = append(kept, o)
	}
	b.letters = kept
}

// Outbox appends the partition's committed dead letters that were not moved yet, sorted by id. It omits those that are
// not committed: after a crash such a message would still belong to the channel.
func (c *Channel) Outbox(part uint32, dst []fold.DeadMessage) []fold.DeadMessage {
	p := c.part(part)
	for _, o := range p.outbox.letters {
		if o.take <= p.log.committed {
			dst = append(dst, o.DeadMessage)
		}
	}
	return dst
}

// LastCommitted returns the number of the last take that is known to be committed.
func (c *Channel) LastCommitted(part uint32) uint64 { return c.part(part).log.committed }

// LastTake returns the number of the partition's last take; see TakeControls.
func (c *Channel) LastTake(part uint32) uint64 { return c.part(part).log.takes }

// spent says whether the message was delivered as often as the settings allow.
func (c *Channel) spent(e *entry) bool {
	return c.settings.MaxAttempts != 0 && e.attempts >= c.settings.MaxAttempts
}

// deadLetter confirms the message of an entry that is in no list and puts it into the outbox. One control entry does
// both. While the outbox is full, the entry waits as a doomed one.
func (c *Channel) deadLetter(e *entry) {
	p, m := c.part(e.id.Partition()), e.id.MsgID()
	if len(p.outbox.letters) >= c.cfg.MaxOutbox {
		e.state, e.dueMs = entryDoomed, c.nowNs/nsPerMs
		p.doomed.pushBack(e)
		c.waiting++
		return
	}
	p.outbox.add(fold.DeadMessage{ID: m, Attempts: e.attempts}, c.cfg.Ephemeral)
	c.deadCount++
	lane := e.lane
	e.state = 0
	c.forget(e)
	// confirm would add the message to a Confirmed entry. If only that one survived a crash, without the DeadLettered,
	// the message would be lost.
	fold.ConfirmRange(&p.confirmed, &p.ranges, fold.IDRange{From: m, To: m + 1})
	if lane != nil {
		c.lanes.settle(p, lane)
	}
	p.settle()
}

// retryDoomed looks again at doomed entries: as many as the outbox has room for or, if all is set, every one, because
// the limit of attempts may have changed.
func (c *Channel) retryDoomed(p *partition, all bool) {
	for n := p.doomed.count; n > 0 && (all || len(p.outbox.letters) < c.cfg.MaxOutbox); n-- {
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

// recall returns the remembered delay of the message m at the reading cursor, or a zero Deferral. It forgets the delays
// of earlier messages.
func (p *partition) recall(m segment.MsgID) (d fold.Deferral) {
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
func (c *Channel) carried(p *partition, ds []fold.DeferredMessage) {
	for i, d := range ds {
		if d.DueMs != 0 {
			c.addDeferred(p, ds[i:i+1])
		} else if e := c.own(batch.MakeID(p.number, d.ID)); e != nil {
			e.at, e.hasAt, e.index = d.At, true, NoIndex
		}
	}
	p.settle()
}
