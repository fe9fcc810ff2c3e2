package delivery

import (
	"cmp"
	"slices"

	"penstock/batch"
	"penstock/internal/node/fold"
	"penstock/segment"
)

// lane is a queue of messages that an ordered channel delivers one after the other: those of a partition, or of a key.
//
//	busy      number of its entries that are in flight, waiting, recalled, queued for redelivery, or doomed
//	parked    its entries that must wait behind the busy ones
//	settling  set while its last confirmation is not committed
//	behind    partitions whose logs have to commit one, too: parked messages of theirs were discarded meanwhile
//
// A lane without busy and parked entries that does not settle is free; behind is set only while it settles. When a lane
// has neither busy entries nor a confirmation to settle, its first parked entry goes on. That happens at the end of the
// Step (advanceLanes), so that no list changes while it is iterated.
//
// busy exceeds 1 only in the lane of a partition whose messages were in flight when the order was switched on. These
// deliveries end first; those that fail are parked in the order of their ids.
type lane struct {
	key        uint64 // 0: the lane of a partition
	busy       int
	parked     entryList
	settling   *partition // the partition whose log gets the confirmation; nil: the lane does not settle
	take       uint64     // the take that contains the confirmation, or notTaken
	behind     []*partition
	prev, next *lane // neighbours in settling.settling; next also links the pool
	nextFreed  *lane // next in lanes.freed
	isFreed    bool
}

// notTaken stands for the take of an entry that no TakeControls has returned yet.
const notTaken = 1<<64 - 1

// free says that no message of the lane is busy, parked or settling, so that a new one may be delivered.
func (l *lane) free() bool { return l.busy == 0 && l.parked.first == nil && l.settling == nil }

// onlySettles says that the lane waits for nothing but a commit.
func (l *lane) onlySettles() bool { return l.busy == 0 && l.parked.first == nil && l.settling != nil }

// free says that the partition's lane is free, and that the partition has no fence.
func (p *partition) free() bool { return p.fence == nil && p.lane.free() }

// laneList is a list of lanes in the order in which they began to settle.
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

// lanes are the lanes of an ordered channel. They decide what blocks what: which entries are parked behind others,
// which lanes wait for a commit, and which have become free.
type lanes struct {
	byKey  map[uint64]*lane // for lookups only
	pool   *lane
	freed  *lane // lanes to look at when the Step ends, see Channel.advanceLanes
	parked int   // entries in that state
}

// of returns the lane of a message. l is nil if the message has no lane, or if its key's lane does not exist yet.
// known says that l is the existing lane of a key.
func (ls *lanes) of(p *partition, key uint64, order fold.Order) (l *lane, known bool) {
	switch {
	case order == fold.OrderPartition, order == fold.OrderDeclared:
		return &p.lane, false
	case order == fold.OrderKey && key != 0:
		l = ls.byKey[key]
		return l, l != nil
	}
	return nil, false
}

// add returns the lane of a key that has none.
func (ls *lanes) add(key uint64) *lane {
	l := ls.pool
	if l == nil {
		l = new(lane)
	} else {
		ls.pool = l.next
	}
	*l = lane{key: key}
	if ls.byKey == nil {
		ls.byKey = make(map[uint64]*lane)
	}
	ls.byKey[key] = l
	return l
}

// parkLast parks an entry that is in no list and was offered just now: it goes behind all that its lane has.
func (ls *lanes) parkLast(e *entry) { ls.parkBefore(e, nil) }

// park parks an entry that is in no list. Parked entries of one partition stay sorted by id.
func (ls *lanes) park(e *entry) {
	next := e.lane.parked.first
	if last := e.lane.parked.last; last == nil || last.id < e.id {
		next = nil
	}
	for next != nil && (next.id.Partition() != e.id.Partition() || next.id < e.id) {
		next = next.next
	}
	ls.parkBefore(e, next)
}

// parkBefore adds an entry to the parked entries of its lane, before next; nil: at the end.
func (ls *lanes) parkBefore(e, next *entry) {
	e.state = entryParked
	ls.parked++
	e.lane.parked.insertBefore(e, next)
}

// leave removes an entry that is being forgotten from its lane.
func (ls *lanes) leave(e *entry) {
	l := e.lane
	e.lane = nil
	if e.state == entryParked {
		l.parked.remove(e)
		ls.parked--
	} else {
		l.busy--
	}
	ls.letGo(l)
}

// settle makes the lane wait until the confirmations made so far are committed in the partition's log, after those
// that it waits for already. If all of them were taken, it waits for the last take; a lane that waited for the next one
// might do so for ever.
func (ls *lanes) settle(p *partition, l *lane) {
	if p.ephemeral {
		ls.letGo(l)
		return
	}
	switch {
	case l.settling == p:
		p.settling.remove(l)
	case l.settling != nil:
		if !slices.Contains(l.behind, p) {
			l.behind = append(l.behind, p)
		}
		return
	}
	l.settling, l.take = p, notTaken
	p.settling.pushBack(l)
	ls.label(p)
	ls.release(p)
}

// label notes in the settling lanes of p which take contains their confirmations. As long as p has entries left
// to take, it is not known which take will contain them; the lanes then wait for the take that leaves nothing.
func (ls *lanes) label(p *partition) {
	if p.log.unlogged.Len() > 0 || p.outbox.untaken > 0 || p.log.resetUnlogged || p.log.settingsUnlogged {
		return
	}
	for l := p.settling.last; l != nil && l.take == notTaken; l = l.prev {
		l.take = p.log.takes
	}
}

// release lets the lanes go on whose confirmations are committed.
func (ls *lanes) release(p *partition) {
	for l := p.settling.first; l != nil && l.take <= p.log.committed; l = p.settling.first {
		ls.settled(p, l)
	}
}

// settled is for a lane that need not wait for p any more.
func (ls *lanes) settled(p *partition, l *lane) {
	p.settling.remove(l)
	l.settling = nil
	if len(l.behind) == 0 {
		ls.letGo(l)
		return
	}
	next := l.behind[0]
	l.behind = slices.Delete(l.behind, 0, 1)
	ls.settle(next, l)
}

// committed handles EvConfirmsCommitted. It trusts only the number of the take. A batch written before the first take
// (a repeated pause, for instance) has number 0: it may be committed after later takes were handed out, and proves
// nothing about them.
func (ls *lanes) committed(p *partition, take uint64) {
	p.log.committed = max(p.log.committed, min(take, p.log.takes))
	ls.release(p)
}

// letGo makes advanceLanes look at the lane when the Step ends.
func (ls *lanes) letGo(l *lane) {
	if !l.isFreed {
		l.isFreed, l.nextFreed, ls.freed = true, ls.freed, l
	}
}

// sampledBehind says whether the client that would get the message at the reading cursor leaves it out of its sample.
// Such a message need not wait while the lane only settles. Otherwise each one would wait for a commit of its own.
func (c *Channel) sampledBehind(ev *Event, old fold.Deferral) bool {
	cl := c.clients.choose(ev.Tag, ev.Part)
	return cl != nil && old.Attempts == 0 && c.clients.sampledOut(cl, batch.MakeID(ev.Part, ev.Msg), c.cfg.SampleSeed)
}

// enter creates the entry of the message at the reading cursor and counts it as busy in its lane, because it need not
// wait for other messages.
func (c *Channel) enter(p *partition, ev *Event, l *lane, old fold.Deferral) *entry {
	e := p.take(ev)
	e.attempts = old.Attempts
	if l == nil && c.settings.Order == fold.OrderKey && ev.Key != 0 {
		l = c.lanes.add(ev.Key)
	}
	if e.lane = l; l != nil {
		l.busy++
	}
	return e
}

// detain returns true if an entry must not go into the redelivery queue: it becomes a dead letter, or it is parked
// because another entry of its lane goes first.
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
	c.lanes.park(e)
	c.lanes.letGo(l)
	return true
}

// advanceLanes lets the first parked entry go on in each lane that has become free for it. It returns the lane of a key
// to the pool when nothing is left in it.
func (c *Channel) advanceLanes() {
	for l := c.lanes.freed; l != nil; l = c.lanes.freed {
		c.lanes.freed, l.nextFreed, l.isFreed = l.nextFreed, nil, false
		if l.busy > 0 || l.settling != nil {
			continue
		}
		e := l.parked.first
		if e == nil {
			if l.key != 0 {
				delete(c.lanes.byKey, l.key)
				l.next, c.lanes.pool = c.lanes.pool, l
			}
			continue
		}
		l.parked.remove(e)
		c.lanes.parked--
		l.busy++
		c.goOn(e)
	}
}

// goOn is for an entry that was parked: it waits for its time, or is queued.
func (c *Channel) goOn(e *entry) {
	if e.dueMs*nsPerMs > c.nowNs {
		c.wait(e, e.dueMs)
	} else {
		c.enqueue(e, false)
	}
}

// reorder applies a changed order to the existing entries, except those published with a delay. When an order is on,
// each entry joins the lane of its partition. Later messages wait until these are confirmed and the log has the
// settings.
func (c *Channel) reorder() {
	for l := c.lanes.freed; l != nil; l = c.lanes.freed {
		c.lanes.freed, l.nextFreed, l.isFreed = l.nextFreed, nil, false
	}
	for _, p := range c.parts {
		if p != nil {
			p.breakRuns()
		}
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
	c.lanes.byKey, c.lanes.parked = nil, 0
	for _, p := range c.parts {
		if p != nil {
			p.lane, p.settling = lane{}, laneList{}
		}
	}
	for _, e := range es {
		switch {
		case c.settings.Order == fold.OrderNone:
			if e.state == entryParked {
				c.goOn(e)
			}
			continue
		case e.state == entryQueued:
			c.turns.dequeue(e)
			fallthrough
		case e.state == entryParked:
			e.lane = &c.part(e.id.Partition()).lane
			c.lanes.park(e)
		default:
			e.lane = &c.part(e.id.Partition()).lane
			e.lane.busy++
		}
	}
	for _, p := range c.parts {
		if p != nil && c.settings.Order != fold.OrderNone {
			c.lanes.settle(p, &p.lane)
		}
	}
}

func deferredID(d fold.DeferredMessage) segment.MsgID { return d.ID }

// remember keeps a delay of the fold, in an ordered channel, until the reading cursor comes to the message, and returns
// true. An entry that waits by itself would be delivered out of order. A message that was published with a delay, or
// that is carried, is delivered when it is due, outside of the order: remember returns false.
func (p *partition) remember(d fold.Deferral, published []fold.DeferredMessage) bool {
	if d.At != 0 || fold.HasID(published, d.ID, deferredID) {
		return false
	}
	d.Attempts = min(d.Attempts, fold.MaxAttempts)
	p.remembered = append(p.remembered, d)
	return true
}
