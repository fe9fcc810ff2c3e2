package core

import (
	"cmp"
	"slices"
)

// lane is a row of messages that leave one after the other: a partition's, or a key's.
//
//	busy      its entries that a client has, that wait for their time, or that are in the redelivery queue
//	parked    its entries behind them
//	settling  its last confirmation is not committed yet
//
// It is free with none of the three. A lane that becomes free of the first and the last lets its first
// parked entry go on, at the end of the Step (advanceLanes): so no list is changed while it is walked.
//
// busy is above 1 only in the lane of a partition whose messages were in flight when the order was switched
// on: they end first, and those that come back are parked in the order of their ids.
type lane struct {
	key        uint64 // 0: a partition's lane
	busy       int
	parked     entryList
	settling   *channelPart // whose log the confirmation goes to
	take       uint64       // that took it
	prev, next *lane        // in settling.settling; next also in the pool
	nextFreed  *lane
	isFreed    bool
}

// notTaken is the take of what the log does not know.
const notTaken = 1<<64 - 1

// notLogged is a version that no settings have.
const notLogged = 1<<64 - 1

func (l *lane) free() bool { return l.busy == 0 && l.parked.first == nil && l.settling == nil }

// onlySettles says that nothing but a commit keeps the lane from being free.
func (l *lane) onlySettles() bool { return l.busy == 0 && l.parked.first == nil && l.settling != nil }

// free says that the partition's lane is, and that no fence stands.
func (p *channelPart) free() bool { return p.fence == nil && p.lane.free() }

// laneList holds lanes in the order in which they began to settle.
type laneList struct{ first, last *lane }

func (ls *laneList) pushBack(l *lane) {
	l.prev, l.next = ls.last, nil
	if ls.last == nil {
		ls.first = l
	} else {
		ls.last.next = l
	}
	ls.last = l
}

func (ls *laneList) remove(l *lane) {
	if l.prev == nil {
		ls.first = l.next
	} else {
		l.prev.next = l.next
	}
	if l.next == nil {
		ls.last = l.prev
	} else {
		l.next.prev = l.prev
	}
	l.prev, l.next = nil, nil
}

// offerSpecial is offer for a channel with settings or tags: the message at the reading cursor is
// visible, and some client has credit.
func (c *Channel) offerSpecial(p *channelPart, ev *Event, res *Result) {
	id := MakeID(ev.Part, ev.Msg)
	if c.outOfSample(id) {
		c.pass(p, res)
		return
	}
	l, known := c.laneOf(p, ev.Key)
	old := p.recall(ev.Msg)
	switch {
	case c.settings.Order != OrderNone && p.lane.onlySettles() && c.sampledBehind(p, ev, old):
		c.passSample(p, res)
		return
	case !p.free() && c.settings.Order != OrderNone,
		known && !l.free() && c.parked >= c.cfg.MaxKeyWaiting:
		res.Decision, res.Why = Hold, HoldOrder
		return
	case known && !l.free():
		e := c.take(p, ev)
		e.attempts, e.dueMs, e.lane = old.Attempts, old.DueMs, l
		c.park(e)
		res.Decision = Skip
	case old.DueMs*nsPerMs > c.nowNs:
		e := c.enter(p, ev, l, old)
		c.wait(e, old.DueMs)
		res.Decision = Skip
	case c.settings.MaxAttempts != 0 && old.Attempts >= c.settings.MaxAttempts:
		c.deadLetter(c.enter(p, ev, l, old))
		res.Decision = Skip
	case !c.rate.allows(c.nowNs):
		res.Decision, res.Why = Hold, HoldRate
		return
	default:
		c.offerTo(c.choose(ev.Tag, ev.Part), p, ev, l, old, res)
		return
	}
	c.settle(p)
}

// offerTo delivers the message at the reading cursor to a client, or holds it if that is nil.
func (c *Channel) offerTo(cl *channelClient, p *channelPart, ev *Event, l *lane, old Deferral, res *Result) {
	switch {
	case cl == nil:
		res.Decision, res.Why = Hold, HoldNoCredit
	case old.Attempts == 0 && c.sampledOut(cl, MakeID(ev.Part, ev.Msg)):
		c.passSample(p, res)
	default:
		c.turn = turnOld
		c.deliver(c.enter(p, ev, l, old), cl, res)
		c.settle(p)
	}
}

// sampledBehind says whether the message at the reading cursor is for a client that does not want it in its sample. If
// nothing but the log is waited for it need not wait, or each would wait for a commit of its own.
func (c *Channel) sampledBehind(p *channelPart, ev *Event, old Deferral) bool {
	cl := c.choose(ev.Tag, ev.Part)
	return cl != nil && old.Attempts == 0 && c.sampledOut(cl, MakeID(ev.Part, ev.Msg))
}

// passSample is pass for what a client's sample leaves out. Who is subscribed at the next leader may want all of it;
// the channel's own sample and filter are the same there.
func (c *Channel) passSample(p *channelPart, res *Result) {
	c.pass(p, res)
	c.passed(p)
}

// laneOf returns the lane of a message, nil if it has none or its key's is yet to be made; and whether
// the lane is a key's that is there.
func (c *Channel) laneOf(p *channelPart, key uint64) (l *lane, known bool) {
	switch {
	case c.settings.Order == OrderPartition, c.settings.Order == OrderDeclared:
		return &p.lane, false
	case c.settings.Order == OrderKey && key != 0:
		l = c.lanes[key]
		return l, l != nil
	}
	return nil, false
}

// enter takes the message at the reading cursor into its lane, as one that need not wait for others.
func (c *Channel) enter(p *channelPart, ev *Event, l *lane, old Deferral) *entry {
	e := c.take(p, ev)
	e.attempts = old.Attempts
	if l == nil && c.settings.Order == OrderKey && ev.Key != 0 {
		l = c.newLane(ev.Key)
	}
	if e.lane = l; l != nil {
		l.busy++
	}
	return e
}

func (c *Channel) newLane(key uint64) *lane {
	l := c.lanePool
	if l == nil {
		l = new(lane)
	} else {
		c.lanePool = l.next
	}
	*l = lane{key: key}
	if c.lanes == nil {
		c.lanes = make(map[uint64]*lane)
	}
	c.lanes[key] = l
	return l
}

// park puts an entry that is in no list behind its lane. Of its own partition only higher ids stand behind it.
func (c *Channel) park(e *entry) {
	l := e.lane
	e.state = entryParked
	c.parked++
	next := l.parked.first
	if last := l.parked.last; last == nil || last.id < e.id || e.attempts == 0 {
		next = nil // offered: in order
	}
	for next != nil && (next.id.Partition() != e.id.Partition() || next.id < e.id) {
		next = next.next
	}
	l.parked.insertBefore(e, next)
}

// detain keeps back an entry that would go to the redelivery queue: it is to be a dead letter, or another of
// its lane goes first.
func (c *Channel) detain(e *entry) bool {
	if c.spent(e) {
		c.deadLetter(e)
		return true
	}
	l := e.lane
	if l == nil {
		return false
	}
	if first := l.parked.first; l.busy == 1 && (first == nil || first.id.Partition() != e.id.Partition() ||
		first.id > e.id) {
		return false
	}
	l.busy--
	c.park(e)
	c.letGo(l)
	return true
}

// leaveLane takes an entry that is being forgotten out of its lane.
func (c *Channel) leaveLane(e *entry) {
	l := e.lane
	e.lane = nil
	if e.state == entryParked {
		l.parked.remove(e)
		c.parked--
	} else {
		l.busy--
	}
	c.letGo(l)
}

// settleLane makes the lane wait until the partition's log has, committed, what was just confirmed.
func (c *Channel) settleLane(p *channelPart, l *lane) {
	if c.cfg.Ephemeral {
		c.letGo(l)
		return
	}
	if l.settling != nil {
		l.settling.settling.remove(l)
	}
	l.settling, l.take = p, notTaken
	p.settling.pushBack(l)
}

// labelSettling notes which take carries the confirmations that lanes wait for. While some remain to be taken
// it is not said which; so it waits for the one that takes the last.
func (c *Channel) labelSettling(p *channelPart) {
	if p.unlogged.Len() > 0 || p.untaken > 0 || p.resetUnlogged || p.loggedSettings != c.settings.Version {
		return
	}
	for l := p.settling.last; l != nil && l.take == notTaken; l = l.prev {
		l.take = p.takes
	}
}

func (c *Channel) releaseSettled(p *channelPart) {
	for l := p.settling.first; l != nil && l.take <= p.committed; l = p.settling.first {
		p.settling.remove(l)
		l.settling = nil
		c.letGo(l)
	}
}

// confirmsCommitted goes by the number alone: what was written before the first take, as a pause that was said again,
// may be committed after more was taken, and says nothing of that.
func (c *Channel) confirmsCommitted(p *channelPart, take uint64) {
	p.committed = max(p.committed, min(take, p.takes))
	c.releaseSettled(p)
}

// letGo remembers to look at the lane when the Step ends.
func (c *Channel) letGo(l *lane) {
	if !l.isFreed {
		l.isFreed, l.nextFreed, c.freed = true, c.freed, l
	}
}

// advanceLanes lets the first parked entry of each lane go on that became free. A lane of a key that
// nothing is left of is given back.
func (c *Channel) advanceLanes() {
	for l := c.freed; l != nil; l = c.freed {
		c.freed, l.nextFreed, l.isFreed = l.nextFreed, nil, false
		if l.busy > 0 || l.settling != nil {
			continue
		}
		e := l.parked.first
		if e == nil {
			if l.key != 0 {
				delete(c.lanes, l.key)
				l.next, c.lanePool = c.lanePool, l
			}
			continue
		}
		l.parked.remove(e)
		c.parked--
		l.busy++
		if e.dueMs*nsPerMs > c.nowNs {
			c.wait(e, e.dueMs)
		} else {
			c.enqueue(e, false)
		}
	}
}

// reorder takes up a new order with whatever is in flight, queued or parked: it ends in its partition's lane,
// and what follows waits for that, and for the log to have the settings.
func (c *Channel) reorder() {
	for l := c.freed; l != nil; l = c.freed {
		c.freed, l.nextFreed, l.isFreed = l.nextFreed, nil, false
	}
	var es []*entry
	c.entries.each(func(e *entry) {
		if e.state == entryParked {
			e.lane.parked.remove(e)
		}
		e.lane = nil
		if !e.outside {
			es = append(es, e)
		}
	})
	slices.SortFunc(es, func(a, b *entry) int { return cmp.Compare(a.id, b.id) })
	c.lanes, c.parked = nil, 0
	for _, p := range c.parts {
		if p != nil {
			p.lane, p.settling = lane{}, laneList{}
		}
	}
	for _, e := range es {
		switch {
		case c.settings.Order == OrderNone:
			if e.state == entryParked {
				c.enqueue(e, false)
			}
			continue
		case e.state == entryQueued:
			c.queue.remove(e)
			fallthrough
		case e.state == entryParked:
			e.lane = &c.part(e.id.Partition()).lane
			c.park(e)
		default:
			e.lane = &c.part(e.id.Partition()).lane
			e.lane.busy++
		}
	}
	for _, p := range c.parts {
		if p != nil && c.settings.Order != OrderNone {
			c.settleLane(p, &p.lane)
		}
	}
}

// remember keeps a delay that the log knows until the cursor comes to the message, if the channel is ordered: put
// aside by its id it would come out of its order. Delayed by its publishing, or carried, it comes by its own time.
func (c *Channel) remember(p *channelPart, d Deferral, published []DeferredMessage) bool {
	if c.settings.Order == OrderNone || d.At != 0 || hasID(published, d.ID, DeferredMessage.id) {
		return false
	}
	d.Attempts = min(d.Attempts, MaxAttempts)
	p.remembered = append(p.remembered, d)
	return true
}
