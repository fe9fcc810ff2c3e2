package delivery

import (
	"penstock/batch"
	"penstock/internal/node/fold"
)

// One judgement for every delivery
//
// Messages come to a channel from several sources: new ones at the reading cursor of each partition, ones that were
// published with a delay and are due, ones that were requeued, timed out or were given back, ones that waited for their
// order. Redrive and a fork add to the first of these, consumers at other nodes take from all. Whatever the source, a
// delivery is decided in two steps:
//
//	EvNext    says whose turn it is (turns.go), and the caller reads that message.
//	EvOffer   judges the message as it was read, here: the pause, the filter, the channel's sample, the order, the limit
//	          of attempts, the rate, the clients with credit, the client's sample. Only a message that passes all of
//	          them is delivered, and only then a delivery, a place in flight and an interval of the rate are used up.
//
// So nothing is spent on a message that nobody gets, and new settings hold for the next delivery of every message, not
// only for those that were not read yet. What the filter or a sample leaves out counts as confirmed.
//
// A message that was published for this channel only (Event.Own: Redrive sent it back) belongs to the channel already:
// no filter and no sample leaves it out. A message that was delivered before must be finished by some client, so no
// client's sample leaves it out; the channel's own filter and sample are what the operator wants of all its messages.

// offer decides what happens to a message that was read: the one at the reading cursor or, with Flag, one that waits to
// be delivered again.
func (c *Channel) offer(ev *Event, res *Result) {
	p := c.part(ev.Part)
	s, e := &p.unread, (*entry)(nil)
	if ev.Flag {
		e = c.entries.get(batch.MakeID(ev.Part, ev.Msg))
		if e == nil || e.state != entryQueued {
			res.Decision, res.Why = Hold, HoldMoved
			return
		}
		s, e.tag, e.told = e.source, ev.Tag, true
	} else if !c.mayReadAt(p, ev, res) {
		return
	}
	c.judge(p, e, ev, res)
	switch {
	case res.Decision != Hold:
		c.turns.changes++
		c.turns.spend(s, 1)
	case e != nil && s != p.sourceOf(e): // its tag is known now: clients of that tag take it, or the others
		c.turns.dequeue(e)
		c.turns.queueUp(e, p, false)
	default:
		c.turns.stall(s)
	}
}

// mayReadAt says whether the message is the one at the reading cursor, and may be judged. Otherwise res says why not.
func (c *Channel) mayReadAt(p *partition, ev *Event, res *Result) bool {
	switch {
	case ev.Msg < p.next: // confirmed, or it has an entry: the cursor is past it
		res.Decision = Skip
	case ev.Msg > p.next:
		res.Decision, res.Why = Hold, HoldMoved
	case ev.Msg >= p.end:
		res.Decision, res.Why = Hold, HoldEnd
	case !c.paused && p.full():
		res.Decision, res.Why = Hold, HoldRanges
	default:
		return true
	}
	return false
}

// judge decides whether a message is delivered now, and to whom. e is its entry in a queue; nil: it is at the reading
// cursor.
func (c *Channel) judge(p *partition, e *entry, ev *Event, res *Result) {
	id := batch.MakeID(ev.Part, ev.Msg)
	switch {
	case c.paused:
		res.Decision, res.Why = Hold, HoldPaused
		return
	case ev.Unwanted && !ev.Own:
		c.filteredCount++
		c.leaveOut(p, e, id, res)
		return
	case c.outOfSample(id) && !ev.Own:
		c.leaveOut(p, e, id, res)
		return
	case !c.clients.hasCredit():
		res.Decision, res.Why = Hold, HoldNoCredit
		return
	}
	cl := c.clients.ring
	var l *lane
	var old fold.Deferral
	if c.special {
		var goesOn bool
		if l, old, goesOn = c.inOrder(p, e, ev, res); !goesOn {
			return
		}
		if !c.pace.allows(c.nowNs) {
			res.Decision, res.Why = Hold, HoldRate
			return
		}
		if cl = c.clients.choose(ev.Tag, ev.Part); cl == nil {
			res.Decision, res.Why = Hold, HoldNoCredit
			return
		}
	}
	first := e == nil && old.Attempts == 0 || e != nil && e.attempts == 0
	if first && !ev.Own && c.clients.sampledOut(cl, id, c.cfg.SampleSeed) {
		c.leaveOut(p, e, id, res)
		c.passed(p)
		return
	}
	c.pace.spend(c.nowNs, ev.Bytes)
	if e != nil {
		c.turns.dequeue(e)
		c.deliver(e, cl, res)
		return
	}
	if c.special {
		e = c.enter(p, ev, l, old)
	} else {
		e = p.take(ev)
	}
	c.deliver(e, cl, res)
	p.settle()
}

// leaveOut confirms a message without delivering it.
func (c *Channel) leaveOut(p *partition, e *entry, id batch.ID, res *Result) {
	res.Decision, res.ID = Skip, id
	if e != nil {
		c.discard(e)
		return
	}
	p.confirm(fold.IDRange{From: p.next, To: p.next + 1})
	p.next++
	p.settle()
}

// inOrder says whether order, delays of an earlier leader, and the limit of attempts let the message go on now. If it
// does not, inOrder has found another place for it, or it is held.
func (c *Channel) inOrder(p *partition, e *entry, ev *Event, res *Result) (l *lane, old fold.Deferral, goesOn bool) {
	if e != nil { // it waited for its order and its delay before it was queued
		if c.spent(e) { // the limit was lowered meanwhile
			res.Decision, res.ID = Skip, e.id
			c.turns.dequeue(e)
			c.deadLetter(e)
			return nil, old, false
		}
		return nil, old, true
	}
	l, known := c.lanes.of(p, ev.Key, c.settings.Order)
	old = p.recall(ev.Msg)
	switch {
	case c.settings.Order != fold.OrderNone && p.lane.onlySettles() && !ev.Own && c.sampledBehind(ev, old):
		c.leaveOut(p, nil, batch.MakeID(ev.Part, ev.Msg), res)
		c.passed(p)
		return nil, old, false
	case !p.free() && c.settings.Order != fold.OrderNone,
		known && !l.free() && c.lanes.parked >= c.cfg.MaxKeyWaiting:
		res.Decision, res.Why = Hold, HoldOrder
		return nil, old, false
	case known && !l.free():
		e := p.take(ev)
		e.attempts, e.dueMs, e.lane = old.Attempts, old.DueMs, l
		c.lanes.parkLast(e)
	case old.DueMs*nsPerMs > c.nowNs:
		c.wait(c.enter(p, ev, l, old), old.DueMs)
	case c.settings.MaxAttempts != 0 && old.Attempts >= c.settings.MaxAttempts:
		c.deadLetter(c.enter(p, ev, l, old))
	default:
		return l, old, true
	}
	res.Decision = Skip
	p.settle()
	return nil, old, false
}
