package channel

import (
	"penstock/batch"
	"penstock/internal/node/delivery"
	"penstock/internal/node/message"
	"penstock/segment"
)

// deliverRuns delivers messages of the batch that c.records walks over, from the one with this index on, in runs to a
// consumer whose sink takes whole runs (message.RunSink). It returns the index of the message at which this is not
// possible any more: because the machine wants to be asked for it alone, or its record has a delay or is damaged, or
// the batch is at its end. c.records is then at that message. If the turn is over, deliverRuns returns offerStop. mu is
// held.
//
// The messages have no headers, and the channel does not look at headers, so nothing distinguishes one from the next.
func (c *Channel) deliverRuns(b *offering, index uint32) (uint32, offered) {
	for index < b.h.Count {
		id := b.h.FirstID + segment.MsgID(index)
		if id != c.m.ReadFrom(b.cur.number) {
			return index, offerOn
		}
		allowed := c.m.NextRun(b.cur.number)
		k := c.consumers[allowed.Client]
		if allowed.Count == 0 || k.runs == nil {
			b.inRuns = false
			return index, offerOn
		}
		c.giving = message.Run{
			ID: batch.MakeID(b.cur.number, id), Number: allowed.Number, Created: b.h.Created,
			Count: min(allowed.Count, b.left, int(b.h.Count-index)), Records: &c.records,
		}
		k.touch()
		n, room := k.runs.DeliverRun(&c.giving)
		if n > 0 {
			c.offer.Msg, c.offer.Index = id, index
			b.event, b.given = c.offer, n
			b.event.Kind = delivery.EvOfferRun
			c.endRun(b)
			index, b.left = index+uint32(n), b.left-n
		}
		switch {
		case !room:
			c.block(k)
			return index, offerStop
		case b.left == 0:
			return index, offerStop
		case n < c.giving.Count:
			return index, offerOn
		}
	}
	return index, offerOn
}

// mayRun says whether the message that c.offer names goes on with the run, or begins one. mu is held.
func (k *channelMachine) mayRun(b *offering) bool {
	if k.offer.Unwanted {
		return false
	}
	if b.given > 0 {
		if b.given < b.run.Count && k.offer.Tag == b.event.Tag {
			return true
		}
		k.endRun(b)
	}
	if k.offer.Msg != k.m.ReadFrom(b.cur.number) {
		return false
	}
	b.run = k.m.NextRun(b.cur.number)
	return b.run.Count > 0
}

// giveInRun delivers the message that c.offer names as the next one of the run. mu is held.
func (c *Channel) giveInRun(b *offering, r *segment.Record) offered {
	if b.given == 0 {
		b.event = c.offer
		b.event.Kind = delivery.EvOfferRun
	}
	k := c.consumers[b.run.Client]
	d := k.deliveryOf(batch.MakeID(b.cur.number, c.offer.Msg), b.h, r)
	d.Attempts, d.Number, d.Serial, d.Epoch = 1, b.run.Number+uint64(b.given), 0, 0
	b.given++
	b.left--
	if !c.give(k) {
		c.endRun(b)
		c.block(k)
		return offerStop
	}
	if b.left == 0 {
		return offerStop
	}
	return offerOn
}

// endRun tells the machine of the run that was delivered, if there is one. mu is held.
func (k *channelMachine) endRun(b *offering) {
	if b.given == 0 {
		return
	}
	b.event.Count, b.given = b.given, 0
	k.m.Step(b.now, &b.event, &k.res)
}

// touch makes pump flush the consumer's sink when ch.mu is released. ch.mu is held.
func (k *Consumer) touch() {
	if !k.touched {
		k.touched = true
		k.ch.touched = append(k.ch.touched, k)
	}
}
