package core

// offer decides about the message at the reading cursor.
func (c *Channel) offer(ev *Event, res *Result) {
	p := c.part(ev.Part)
	switch {
	case ev.Msg < p.next: // confirmed, in flight or waiting: the cursor went past it
		res.Decision = Skip
		return
	case ev.Msg > p.next:
		res.Decision, res.Why = Hold, HoldMoved
		return
	case ev.Msg >= p.end:
		res.Decision, res.Why = Hold, HoldEnd
		return
	case c.paused:
		res.Decision, res.Why = Hold, HoldPaused
		return
	case c.full(p):
		res.Decision, res.Why = Hold, HoldRanges
		return
	case ev.Unwanted:
		c.filteredCount++
		c.pass(p, res)
		return
	case !c.hasCredit():
		res.Decision, res.Why = Hold, HoldNoCredit
		return
	case c.special:
		c.offerSpecial(p, ev, res)
		return
	}
	if c.sampledOut(c.ring, MakeID(ev.Part, ev.Msg)) {
		c.pass(p, res)
		return
	}
	c.turn = turnOld
	c.deliver(c.take(p, ev), c.ring, res)
	c.settle(p)
}

// take makes an entry of the message at the reading cursor; it is in no list.
func (c *Channel) take(p *channelPart, ev *Event) *entry {
	e := c.pool.get(MakeID(ev.Part, ev.Msg))
	c.entries.put(e)
	e.at, e.index, e.hasAt, e.tag, e.told = ev.At, ev.Index, true, ev.Tag, true
	p.next++
	return e
}

// pass confirms the message at the reading cursor: nobody gets it.
func (c *Channel) pass(p *channelPart, res *Result) {
	c.confirm(p, IDRange{p.next, p.next + 1})
	p.next++
	res.Decision = Skip
	c.settle(p)
}

// redeliver decides about the first message of the redelivery queue.
func (c *Channel) redeliver(res *Result) {
	e := c.queue.first
	switch {
	case e == nil:
		res.Decision, res.Why = Hold, HoldEmpty
		return
	case c.paused:
		res.Decision, res.Why = Hold, HoldPaused
		return
	case !c.hasCredit():
		res.Decision, res.Why = Hold, HoldNoCredit
		return
	case c.special && c.spent(e): // the limit was lowered while it was here
		res.Decision, res.ID = Skip, e.id
		c.queue.remove(e)
		c.deadLetter(e)
		return
	case e.attempts >= 2 && c.turn == turnNew && c.anyUnread():
		// What failed twice takes turns with what is new: a message that fails for
		// ever must not keep the others from a client that takes one at a time (B46).
		// It waits once: if what is new cannot be read, the old ones go on.
		c.turn = turnYielded
		res.Decision, res.Why = Hold, HoldTurn
		return
	}
	cl := c.ring
	if c.special {
		if e, cl = c.redeliverSpecial(res); cl == nil {
			return
		}
	}
	if e.attempts >= 2 && c.turn == turnOld {
		c.turn = turnNew
	}
	// A delayed message meets the sampling here for the first time. What was
	// delivered once is somebody's to finish: it is never sampled away.
	if e.attempts == 0 && !res.Unsure && c.sampledOut(cl, e.id) {
		res.Decision, res.ID = Skip, e.id
		c.discard(e)
		return
	}
	c.queue.remove(e)
	c.deliver(e, cl, res)
}

// anyUnread says whether an offer could be taken as far as the partitions are concerned.
func (c *Channel) anyUnread() bool {
	for _, p := range c.parts {
		if p != nil && p.next < p.end && !c.full(p) && (c.settings.Order == OrderNone || p.free()) {
			return true
		}
	}
	return false
}

// full says whether reading must wait for confirmations. The message at p.confirmed
// then has an entry, and confirming it merges ranges; if the cursor itself stands
// there, reading is what merges: a recovered channel may begin with many ranges.
func (c *Channel) full(p *channelPart) bool {
	return p.ranges.Len() >= c.cfg.MaxRanges && p.next > p.confirmed
}

// sampledOut says whether the client whose turn it is does not want the message. As
// in nsqd the message is then lost for the whole channel, and the next client's turn
// comes. It depends on the id and the seed only, so a replay decides the same.
func (c *Channel) sampledOut(cl *channelClient, id ID) bool {
	if cl.sampleRate == 0 || int(mix(uint64(id)^c.cfg.SampleSeed)%100) < cl.sampleRate {
		return false
	}
	c.ring = cl.ringNext
	return true
}

// mix is the finisher of splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// deliver gives an entry that is in no list to a client in the ring.
func (c *Channel) deliver(e *entry, cl *channelClient, res *Result) {
	if cl == c.ring {
		c.ring = cl.ringNext
	} else {
		c.lastInRing(cl)
	}
	if c.rate.intervalFx != 0 {
		c.rate.spend(c.nowNs)
	}
	if e.attempts < MaxAttempts {
		e.attempts++
	}
	e.state, e.client, e.startMs = entryInFlight, cl, c.soonMs()
	c.schedule(e, e.startMs+cl.timeoutMs)
	cl.flight.pushBack(e)
	c.inFlight++
	cl.messageCount++
	c.startHold(e, cl, res)
	c.refresh(cl)
	res.Decision, res.Client, res.ID, res.Attempts = Deliver, cl.id, e.id, e.attempts
	res.At, res.Index, res.HasAt = e.at, e.index, e.hasAt
}

// land takes an entry out of its client's hands: it is then in no list.
func (c *Channel) land(e *entry) {
	cl := e.client
	c.wheel.Cancel(&e.timer)
	cl.flight.remove(e)
	c.inFlight--
	e.client = nil
	c.refresh(cl)
}

// enqueue puts an entry that is in no list into the redelivery queue.
func (c *Channel) enqueue(e *entry, front bool) {
	if c.special && !c.skipped && c.detain(e) {
		return
	}
	e.state = entryQueued
	if front {
		c.queue.pushFront(e)
	} else {
		c.queue.pushBack(e)
	}
	if c.skipped {
		c.discard(e)
	}
}

// wait puts an entry that is in no list aside until dueMs.
func (c *Channel) wait(e *entry, dueMs int64) {
	e.state, e.dueMs = entryWaiting, dueMs
	c.waiting++
	c.schedule(e, dueMs)
}

// fire is called by the wheel for everything that is due.
func (c *Channel) fire(t *Timer[*entry]) {
	e := t.Value
	switch e.state {
	case entryInFlight:
		c.timeoutCount++
		c.land(e)
		c.comeAgain(e, false)
		return
	case entryRecalled:
		c.recalled--
		c.enqueue(e, true)
		return
	case entryFence:
		c.liftFence(c.part(e.id.Partition()))
		return
	}
	if e.id.MsgID() >= c.part(e.id.Partition()).end {
		e.state = entryHeld // visible() sends it on
		return
	}
	c.waiting--
	c.enqueue(e, false)
}

// owned returns the entry of a message that is in flight to the event's client, whose node knows the delivery.
func (c *Channel) owned(ev *Event) (*entry, error) {
	e := c.entries.get(ev.ID)
	if e == nil || e.state != entryInFlight {
		return nil, ErrNotInFlight
	}
	if e.client.id != ev.Client {
		return nil, ErrNotOwner
	}
	if e.stale(ev) {
		return nil, ErrNotInFlight
	}
	return e, nil
}

func (c *Channel) finish(ev *Event) error {
	e, err := c.owned(ev)
	if err != nil {
		return err
	}
	e.client.finishCount++
	c.discard(e)
	return nil
}

func (c *Channel) requeue(ev *Event) error {
	e, err := c.owned(ev)
	if err != nil {
		return err
	}
	delay := min(ev.DelayMs, c.cfg.MaxReqTimeoutMs)
	if c.spent(e) {
		delay = 0 // it is a dead letter: nobody waits for it
	}
	if delay > 0 && c.waiting >= c.cfg.MaxDeferred {
		return ErrTooManyDeferred
	}
	c.requeueCount++
	e.client.requeueCount++
	c.land(e)
	if delay <= 0 {
		c.enqueue(e, false)
		return nil
	}
	c.wait(e, c.soonMs()+delay)
	c.noteDeferral(c.part(e.id.Partition()), e)
	return nil
}

// unread takes a delivery back whose message cannot be read now. Unlike requeue it writes nothing: where the message is
// read next nobody knows of it.
func (c *Channel) unread(ev *Event) {
	e := c.entries.get(ev.ID)
	if e == nil || e.state != entryInFlight {
		return
	}
	e.attempts--
	e.client.messageCount--
	c.land(e)
	c.wait(e, c.soonMs()+max(ev.DelayMs, 1))
}

// touch gives the client its whole timeout again, up to MaxMsgTimeoutMs after the
// delivery began.
func (c *Channel) touch(ev *Event) error {
	e, err := c.owned(ev)
	if err != nil {
		return err
	}
	c.schedule(e, min(c.soonMs()+e.client.timeoutMs, e.startMs+c.cfg.MaxMsgTimeoutMs))
	return nil
}

// drop confirms a message whose bytes are gone, whatever state it is in.
func (c *Channel) drop(id ID) {
	p := c.part(id.Partition())
	if e := c.entries.get(id); e != nil {
		c.discard(e)
	} else if m := id.MsgID(); m >= p.confirmed && m < p.end {
		c.confirm(p, IDRange{m, m + 1})
	}
	c.settle(p)
}

// gone is drop for what waits, for its time or its turn. A client that has a message may still finish it; a dead letter
// is its carrier's to see.
func (c *Channel) gone(id ID, res *Result) {
	e := c.entries.get(id)
	if e == nil || e.state == entryInFlight || e.state == entryDoomed {
		return
	}
	c.discard(e)
	c.settle(c.part(id.Partition()))
	res.Decision, res.ID = Skip, id
}

// discard confirms an entry's message and forgets the entry, in whatever state.
func (c *Channel) discard(e *entry) {
	p, m := c.part(e.id.Partition()), e.id.MsgID()
	lane := e.lane
	c.forget(e)
	c.confirm(p, IDRange{m, m + 1})
	if lane != nil {
		c.settleLane(p, lane)
	}
}

// forget removes an entry from everywhere and changes nothing else.
func (c *Channel) forget(e *entry) {
	switch e.state {
	case entryInFlight:
		c.land(e)
	case entryQueued:
		c.queue.remove(e)
	case entryWaiting, entryHeld:
		c.wheel.Cancel(&e.timer)
		c.waiting--
	case entryRecalled:
		c.wheel.Cancel(&e.timer)
		c.recalled--
	case entryDoomed:
		c.part(e.id.Partition()).doomed.remove(e)
		c.waiting--
	}
	if e.lane != nil {
		c.leaveLane(e)
	}
	p, m := c.part(e.id.Partition()), e.id.MsgID()
	if p.next <= m && m < p.end {
		p.holes--
	}
	if e.listed {
		p.staleDeferrals++
	}
	c.entries.remove(e.id)
	c.pool.put(e)
}

// confirm marks a range as done and notes it for the log.
func (c *Channel) confirm(p *channelPart, r IDRange) {
	confirmRange(&p.confirmed, &p.ranges, r)
	if !c.cfg.Ephemeral {
		p.unlogged.AddRange(r)
	}
}
