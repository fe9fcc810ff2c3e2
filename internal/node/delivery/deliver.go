package delivery

import (
	"math/bits"

	"penstock/batch"
	"penstock/internal/node/fold"
)

// Full says whether the unread messages of a partition wait because MaxRanges is reached.
func (c *Channel) Full(part uint32) bool {
	p := c.part(part)
	return p.next < p.end && p.full()
}

// mix is the finisher of splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// deliver assigns an entry that is in no list to cl, a client in the ring.
func (c *Channel) deliver(e *entry, cl *client, res *Result) {
	c.clients.served(cl)
	if e.counted = e.attempts < fold.MaxAttempts; e.counted {
		e.attempts++
	}
	e.state, e.client, e.startMs = entryInFlight, cl, c.soonMs()
	c.schedule(e, e.startMs+cl.timeoutMs)
	cl.flight.pushBack(e)
	c.clients.begin(cl, 1)
	e.number, res.Number = cl.messageCount, cl.messageCount
	c.startHold(e, cl, res)
	res.Decision, res.Client, res.ID, res.Attempts = Deliver, cl.id, e.id, e.attempts
	res.At, res.Index, res.HasAt = e.at, e.index, e.hasAt
}

// land ends the delivery of an entry in flight. The entry is then in no list.
func (c *Channel) land(e *entry) {
	cl := e.client
	c.entries.wheel.Cancel(&e.timer)
	cl.flight.remove(e)
	e.client = nil
	c.clients.end(cl, 1)
}

// enqueue puts an entry that is in no list into the queue of its source.
func (c *Channel) enqueue(e *entry, front bool) {
	lost := c.part(e.id.Partition()).lacks(e)
	if c.special && !c.skipped && !lost && c.detain(e) {
		return
	}
	switch c.turns.queueUp(e, c.part(e.id.Partition()), front); {
	case lost:
		c.discardLost(e)
	case c.skipped:
		c.skip(e)
	}
}

// wait makes an entry that is in no list wait until dueMs.
func (c *Channel) wait(e *entry, dueMs int64) {
	e.state, e.dueMs = entryWaiting, dueMs
	c.waiting++
	c.schedule(e, dueMs)
}

// fire handles a timer that is due. The wheel calls it during Advance.
func (c *Channel) fire(t *Timer[*entry]) {
	e := t.Value
	switch e.state {
	case entryInFlight:
		if e.run != 0 {
			c.timeOutRun(e)
			return
		}
		c.timeoutCount++
		c.land(e)
		c.comeAgain(e, false)
		return
	case entryRecalled:
		c.recalled--
		c.enqueue(e, true)
		return
	case entryFence:
		c.part(e.id.Partition()).liftFence()
		return
	}
	if e.id.MsgID() >= c.part(e.id.Partition()).end {
		e.state = entryHeld // visible moves it to the redelivery queue
		return
	}
	c.waiting--
	c.enqueue(e, false)
}

// owned returns the entry of a message that is in flight to the event's client. It refuses an event that the client's
// node sent before it had received this delivery.
func (c *Channel) owned(ev *Event) (*entry, error) {
	e := c.own(ev.ID)
	if e == nil || e.state != entryInFlight {
		return nil, ErrNotInFlight
	}
	if e.client.id != ev.Client {
		return nil, ErrNotOwner
	}
	if e.stale(ev) || ev.Number != 0 && ev.Number != e.number {
		return nil, ErrNotInFlight
	}
	return e, nil
}

func (c *Channel) finish(ev *Event) error {
	if e := c.runOf(ev.ID); e != nil && e.client.id == ev.Client {
		m, k := ev.ID.MsgID(), uint64(ev.ID-e.id)
		if ev.Number != 0 && ev.Number != e.number+k {
			return ErrNotInFlight
		}
		e.client.finishCount++
		c.finishInRun(e, 1<<k)
		c.part(ev.ID.Partition()).confirm(fold.IDRange{From: m, To: m + 1})
		return nil
	}
	e, err := c.owned(ev)
	if err != nil {
		return err
	}
	e.client.finishCount++
	c.discard(e)
	return nil
}

// finishThrough confirms deliveries to a client from the oldest on. It costs as much as it confirms. A delivery that
// was taken back gives its number to the next one; it is in no list any more, so the numbers of a list only grow.
func (c *Channel) finishThrough(ev *Event) (count int, err error) {
	cl := c.clients.byID[ev.Client]
	if cl == nil {
		return 0, ErrNotInFlight
	}
	last := uint64(0)
	var g gathered
	for e := cl.flight.first; e != nil && e.number <= ev.Seen; e = cl.flight.first {
		if e.run != 0 {
			done := e.throughNumber(ev.Seen)
			if done == 0 {
				break
			}
			last = e.number + uint64(bits.Len64(done)) - 1
			count += bits.OnesCount64(done)
			g.addRun(c.part(e.id.Partition()), e, done)
			c.finishInRun(e, done)
			continue
		}
		last = e.number
		count++
		m, lane := e.id.MsgID(), e.lane
		g.add(c.part(e.id.Partition()), fold.IDRange{From: m, To: m + 1})
		if c.forget(e); lane != nil {
			g.confirm()
			c.lanes.settle(g.p, lane)
		}
	}
	g.confirm()
	cl.finishCount += uint64(count)
	if last != ev.Seen || count == 0 {
		return count, ErrNotInFlight
	}
	return count, nil
}

// gathered is messages next to each other that are to be confirmed together.
type gathered struct {
	p *partition
	r fold.IDRange // of p; empty: there are none
}

// add adds messages, and first confirms those that they are not next to.
func (g *gathered) add(p *partition, r fold.IDRange) {
	if p != g.p || r.From != g.r.To {
		g.confirm()
		*g = gathered{p, r}
	}
	g.r.To = r.To
}

func (g *gathered) confirm() {
	if g.r.From < g.r.To {
		g.p.confirm(g.r)
		g.r.From = g.r.To
	}
}

// EachThrough visits the messages that EvFinishThrough would confirm, the oldest delivery first.
func (c *Channel) EachThrough(client ClientID, number uint64, visit func(batch.ID)) {
	cl := c.clients.byID[client]
	if cl == nil {
		return
	}
	for e := cl.flight.first; e != nil && e.number <= number; e = e.next {
		e.each(func(id batch.ID, n uint64) {
			if n <= number {
				visit(id)
			}
		})
	}
}

// requeue ends a delivery: the message goes to the redelivery queue now or, with a delay, waits first. The log learns
// of the delay.
func (c *Channel) requeue(ev *Event) error {
	e, err := c.owned(ev)
	if err != nil {
		return err
	}
	delay := min(ev.DelayMs, c.cfg.MaxReqTimeoutMs)
	if c.spent(e) || c.part(e.id.Partition()).lacks(e) {
		delay = 0 // it becomes a dead letter now, or its bytes are gone, so there is nothing to delay
	}
	if delay > 0 && c.waiting >= c.cfg.MaxDeferred {
		return ErrTooManyDeferred
	}
	if p := c.part(e.id.Partition()); delay > 0 && p.ranges.Len() >= fold.MaxGaps(c.cfg.MaxRanges) {
		return ErrTooManyGaps // what waits without a client must not stop the reading of new messages: see full
	}
	c.requeueCount++
	e.client.requeueCount++
	c.land(e)
	if delay <= 0 {
		c.noteFailure(e)
		c.enqueue(e, false)
		return nil
	}
	c.wait(e, c.soonMs()+delay)
	c.part(e.id.Partition()).noteDelay(e)
	return nil
}

// unread makes a queued message wait that cannot be read now. Unlike requeue it writes nothing to the log: another
// leader may well be able to read the message, and needs no delay.
func (c *Channel) unread(ev *Event) {
	e := c.entries.get(ev.ID)
	if e == nil || e.state != entryQueued {
		return
	}
	c.turns.dequeue(e)
	c.wait(e, c.soonMs()+max(ev.DelayMs, 1))
}

// touch restarts the message timeout of the client, up to MaxMsgTimeoutMs after the delivery began. It never shortens
// it, also when MaxMsgTimeoutMs has become less.
func (c *Channel) touch(ev *Event) error {
	e, err := c.owned(ev)
	if err != nil {
		return err
	}
	c.schedule(e, max(e.timer.Due(), min(c.soonMs()+e.client.timeoutMs, e.startMs+c.cfg.MaxMsgTimeoutMs)))
	return nil
}

// drop confirms a visible message, whatever its state.
func (c *Channel) drop(id batch.ID) {
	p := c.part(id.Partition())
	if e := c.own(id); e != nil {
		c.discard(e)
	} else if m := id.MsgID(); m >= p.confirmed && m < p.end {
		p.confirm(fold.IDRange{From: m, To: m + 1})
	}
	p.settle()
}

// gone is drop for a deferred message that waits for its time or its turn. If a client has the message, it may still
// finish it. If the message is to become a dead letter, the goroutine that moves dead letters finds that its bytes are
// gone.
func (c *Channel) gone(id batch.ID, res *Result) {
	e := c.look(id)
	if e == nil || e.state == entryInFlight || e.state == entryDoomed {
		return
	}
	c.discardLost(e)
	c.part(id.Partition()).settle()
	res.Decision, res.ID = Skip, id
}

// discard confirms the message of an entry in any state, and forgets the entry.
func (c *Channel) discard(e *entry) {
	p, m := c.part(e.id.Partition()), e.id.MsgID()
	lane := e.lane
	c.forget(e)
	p.confirm(fold.IDRange{From: m, To: m + 1})
	if lane != nil {
		c.lanes.settle(p, lane)
	}
}

// forget removes an entry from all lists, tables and counts. It confirms nothing.
func (c *Channel) forget(e *entry) {
	switch e.state {
	case entryInFlight:
		c.land(e)
	case entryQueued:
		c.turns.dequeue(e)
	case entryWaiting, entryHeld:
		c.entries.wheel.Cancel(&e.timer)
		c.waiting--
	case entryRecalled:
		c.entries.wheel.Cancel(&e.timer)
		c.recalled--
	case entryDoomed:
		c.part(e.id.Partition()).doomed.remove(e)
		c.waiting--
	}
	if e.lane != nil {
		c.lanes.leave(e)
	}
	p, m := c.part(e.id.Partition()), e.id.MsgID()
	if p.next <= m && m < p.end {
		p.holes--
	}
	if e.listed {
		p.log.staleDeferrals++
	}
	c.entries.remove(e.id)
	c.entries.pool.put(e)
}
