package core

import (
	"slices"

	"penstock/segment"
)

// channelPart is the channel's state in one partition.
//
//	start <= ... confirmed <= next; everything in [confirmed, next) is confirmed or has an entry
//	next is never confirmed and never has an entry, unless it is at or beyond end
type channelPart struct {
	number    uint32
	start     segment.MsgID // of the log, as far as known here
	confirmed segment.MsgID
	ranges    IDSet
	next      segment.MsgID // the reading cursor
	end       segment.MsgID // visible end
	holes     int           // entries in [next, end)
	beyond    IDSet         // ids at or above end that have, or had, an entry

	// What the log does not know yet.
	resetTo        segment.MsgID
	resetUnlogged  bool
	unlogged       IDSet           // confirmed
	deferrals      []segment.MsgID // entries with listed set, and stale ones
	staleDeferrals int
	loggedPaused   bool
	loggedSkipped  bool
	loggedSettings uint64 // version

	// Order: see lane.
	fence      *entry     // nil: none stands; see fence
	lane       lane       // of all messages, or of those whose keys are not known
	settling   laneList   // lanes whose last confirmation is not committed: taken ones first
	takes      uint64     // TakeControls that returned something
	committed  uint64     // takes that the log has, committed
	remembered []Deferral // of an ordered channel's recovery: they come again in their order. Sorted

	// Dead letters.
	outbox  []outboxEntry // sorted by ID
	untaken int           // of them the log does not know
	moved   IDSet         // the log does not know that they left
	doomed  entryList

	// What TakeControls lent out last.
	takenRanges    []IDRange
	takenDeferrals []Deferral
	takenDead      []DeadMessage
	takenMoved     []IDRange
}

// addPartition makes the state of a partition from the fold of its log (ev.Cursor). After a crash or a change of leader
// that is all there is: what was confirmed and is not in the fold is unread again.
func (c *Channel) addPartition(ev *Event) {
	if ev.Part > MaxPartition {
		panic("BUG: partition number does not fit into an ID")
	}
	for int(ev.Part) >= len(c.parts) {
		c.parts = append(c.parts, nil)
	}
	if c.parts[ev.Part] != nil {
		panic("BUG: partition added twice")
	}
	cur := ev.Cursor
	if cur.Settings.Version > c.settings.Version {
		c.adopt(cur.Settings) // a crash may have left it in some partitions only: the newest hold
	}
	p := &channelPart{
		number: ev.Part, start: ev.Start, end: ev.End,
		confirmed: cur.Confirmed, next: cur.Confirmed, ranges: cur.Ranges.Clone(),
		loggedPaused: cur.Paused, loggedSkipped: cur.Skipped, loggedSettings: cur.Settings.Version,
	}
	c.parts[ev.Part] = p
	for _, d := range cur.Dead {
		p.outbox = append(p.outbox, outboxEntry{DeadMessage: d})
	}
	for _, d := range cur.Requeued {
		if c.remember(p, d, ev.Deferred) {
			continue
		}
		e := c.addEntry(p, d.ID)
		e.attempts = min(d.Attempts, MaxAttempts)
		e.at, e.hasAt = d.At, d.At != 0
		c.wait(e, d.DueMs)
	}
	c.special = c.isSpecial()
	if c.settings.Order != OrderNone && (ev.Flag || p.loggedSettings != c.settings.Version) {
		// What the log confirms, and may lose yet, is behind nobody: the settings are written once more, and when that is
		// committed, all before it is. They are also if another partition has newer ones, see adopt.
		p.loggedSettings = notLogged
		c.settleLane(p, &p.lane)
	}
	c.fence(p, ev.HoldMs)
	c.addDeferred(p, ev.Deferred)
	c.discardTo(p, ev.Start)
	c.settle(p)
	// A crash may have left the flag in some partitions only: it then holds for all,
	// and the others are told by their next control batch.
	c.paused = c.paused || cur.Paused
	if cur.Skipped && !c.skipped {
		c.setSkip(true)
	} else if c.skipped {
		c.discardTo(p, p.end)
	}
}

// removePartition forgets a partition. Clients that have messages of it are told ErrNotInFlight from now on. Lanes of
// keys that wait for its log go on: the log's next leader knows what it holds.
func (c *Channel) removePartition(p *channelPart) {
	c.forgetIf(p, func(*entry) bool { return true })
	for l := p.settling.first; l != nil; l = p.settling.first {
		p.settling.remove(l)
		l.settling = nil
		c.letGo(l)
	}
	c.liftFence(p)
	c.parts[p.number] = nil
	c.special = c.isSpecial()
}

// addEntry makes an entry for an id that is not confirmed and has none.
func (c *Channel) addEntry(p *channelPart, m segment.MsgID) *entry {
	e := c.pool.get(MakeID(p.number, m))
	e.index = NoIndex
	c.entries.put(e)
	switch {
	case m >= p.end:
		p.beyond.Add(m)
	case m >= p.next:
		p.holes++
	}
	return e
}

// addDeferred makes messages wait for their time. One that is known gets the new
// place, and the new time while it waits for its first delivery (B51).
func (c *Channel) addDeferred(p *channelPart, ds []DeferredMessage) {
	for _, d := range ds {
		e := c.entries.get(MakeID(p.number, d.ID))
		switch {
		case e != nil:
			e.outside = e.outside || e.lane == nil
			if e.state == entryWaiting && e.attempts == 0 {
				e.dueMs = d.DueMs
				c.schedule(e, d.DueMs)
			}
		case d.ID < p.next || p.ranges.Contains(d.ID):
			continue // confirmed
		default:
			e = c.addEntry(p, d.ID)
			e.outside = true
			c.wait(e, d.DueMs)
		}
		e.at, e.hasAt, e.index = d.At, true, NoIndex
	}
}

// settle moves the cursor over what is confirmed or has an entry, so that what is
// read next is always wanted.
func (c *Channel) settle(p *channelPart) {
	for {
		p.next = p.ranges.NextGap(max(p.next, p.confirmed))
		if p.holes == 0 || p.next >= p.end || c.entries.get(MakeID(p.number, p.next)) == nil {
			return
		}
		p.next++
		p.holes--
	}
}

func (c *Channel) visible(p *channelPart, end segment.MsgID) {
	if end < p.end {
		panic("BUG: visible end moves back")
	}
	c.messageCount += uint64(end - p.end)
	p.end = end
	for {
		r, ok := p.beyond.First()
		if !ok || r.From >= end {
			break
		}
		m := r.From
		p.beyond.CutBelow(m + 1)
		e := c.entries.get(MakeID(p.number, m))
		if e == nil {
			continue
		}
		if m >= p.next {
			p.holes++
		}
		if e.state == entryHeld {
			c.waiting--
			c.enqueue(e, false)
		}
	}
	c.settle(p)
	if c.skipped {
		c.discardTo(p, end)
	}
}

// discardTo confirms what is unread below to and moves the cursor there.
func (c *Channel) discardTo(p *channelPart, to segment.MsgID) {
	if to <= p.next {
		return
	}
	from := p.next
	if p.holes > 0 || to > p.end && p.beyond.Len() > 0 {
		for _, m := range c.entriesIn(p, p.next, to) {
			if m < p.end {
				p.holes--
			}
			c.confirm(p, IDRange{from, m})
			from = m + 1
		}
	}
	c.confirm(p, IDRange{from, to})
	p.next = to
	c.settle(p)
	c.passed(p)
}

// passed makes an ordered channel wait until the log has what was confirmed without being delivered, or what a reset or
// new settings did: a leader that does not know of it would deliver what lies before this channel's next message.
func (c *Channel) passed(p *channelPart) {
	if c.settings.Order != OrderNone {
		c.settleLane(p, &p.lane)
	}
}

// entriesIn returns, in order, the ids in [from, to) that have an entry. It looks at
// the ids or at the entries, whichever are fewer.
func (c *Channel) entriesIn(p *channelPart, from, to segment.MsgID) (ids []segment.MsgID) {
	if from >= to {
		return nil
	}
	if uint64(to-from) <= uint64(len(c.entries.slots)) {
		for m := from; m < to; m++ {
			if c.entries.get(MakeID(p.number, m)) != nil {
				ids = append(ids, m)
			}
		}
		return ids
	}
	for _, s := range c.entries.slots {
		if s.e != nil && s.id.Partition() == p.number && from <= s.id.MsgID() && s.id.MsgID() < to {
			ids = append(ids, s.id.MsgID())
		}
	}
	slices.Sort(ids)
	return ids
}

func (c *Channel) setSkip(on bool) {
	c.skipped = on
	if !on {
		return
	}
	if c.parked > 0 { // first: discarding what is before them would let them go on
		c.entries.each(func(e *entry) {
			if e.state == entryParked {
				c.discard(e)
			}
		})
	}
	for e := c.queue.first; e != nil; e = c.queue.first {
		c.discard(e)
	}
	for _, p := range c.parts {
		if p != nil {
			c.discardTo(p, p.end)
		}
	}
}

// dropped takes out a range that the log dropped for every channel. The log is told
// again: a reset of this channel may be on its way there and would undo it.
func (c *Channel) dropped(p *channelPart, r IDRange) {
	c.forgetIf(p, func(e *entry) bool { return r.From <= e.id.MsgID() && e.id.MsgID() < r.To })
	c.confirm(p, r)
	c.settle(p)
	c.passed(p)
}

// reset makes "everything below Msg, nothing else" the confirmed state. What is in
// flight is forgotten: a late FIN of it is refused (B56). Delayed messages that were
// never delivered keep their time, because the log still says so.
func (c *Channel) reset(p *channelPart, ev *Event) {
	p.start = max(p.start, ev.Start)
	to := max(min(ev.Msg, p.end), p.start)
	c.forgetIf(p, func(e *entry) bool { return e.attempts > 0 || !e.outside || e.id.MsgID() < to })
	c.restart(p, to)
	p.holes = len(c.entriesIn(p, p.next, p.end))
	c.addDeferred(p, ev.Deferred)
	c.settle(p)
	if c.skipped {
		c.discardTo(p, p.end)
	}
}

// restart sets the confirmed state and tells the log to do the same.
func (c *Channel) restart(p *channelPart, to segment.MsgID) {
	p.confirmed, p.next = to, to
	p.ranges.Clear()
	p.unlogged.Clear()
	p.remembered = nil
	c.forgetDead(p, to)
	c.sweepDeferrals(p)
	if !c.cfg.Ephemeral {
		p.resetUnlogged, p.resetTo = true, to
	}
	c.labelSettling(p)
	c.releaseSettled(p)
	c.passed(p)
}

func (c *Channel) empty() {
	for _, p := range c.parts {
		if p != nil {
			c.emptyPartition(p)
		}
	}
}

// emptyPartition drops everything visible. What lies beyond the visible end stays as
// it is; the reset in the log clears it there too, so it is noted again.
func (c *Channel) emptyPartition(p *channelPart) {
	c.forgetIf(p, func(e *entry) bool { return e.id.MsgID() < p.end })
	to := max(p.end, p.confirmed)
	above := p.ranges.Clone()
	above.CutBelow(to)
	c.restart(p, to)
	for _, r := range above.Ranges() {
		c.confirm(p, r)
	}
	c.entries.each(func(e *entry) {
		if e.id.Partition() == p.number && e.attempts > 0 {
			c.noteDeferral(p, e)
		}
	})
	p.holes = 0
	c.settle(p)
}

// forgetIf forgets the partition's entries that match. It looks at every entry of
// the channel: only for what happens rarely.
func (c *Channel) forgetIf(p *channelPart, match func(*entry) bool) {
	c.entries.each(func(e *entry) {
		if e.id.Partition() == p.number && match(e) {
			c.forget(e)
		}
	})
}
