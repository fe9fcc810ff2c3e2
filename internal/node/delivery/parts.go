package delivery

import (
	"slices"

	"penstock/batch"
	"penstock/internal/node/fold"
	"penstock/segment"
)

// partition is the channel's state in one partition. Three invariants hold between Steps:
//
//	confirmed <= next.
//	Every id in [confirmed, next) is confirmed or has an entry.
//	next is not confirmed and has no entry, unless it is at or beyond end.
type partition struct {
	number    uint32
	ephemeral bool          // the channel writes nothing into the log
	maxRanges int           // confirmed ranges at which reading stops
	entries   *entries      // of the channel
	start     segment.MsgID // the start of the log, as far as the machine knows it
	border    fold.Border   // the start of the log at the last EvTrimmed with an offset, see trimmed
	confirmed segment.MsgID // every id below it is confirmed
	ranges    fold.IDSet    // the confirmed ranges above confirmed
	next      segment.MsgID // the reading cursor
	end       segment.MsgID // the visible end
	holes     int           // entries in [next, end)
	runs      runList       // in flight
	beyond    fold.IDSet    // ids at or above end that have an entry, or had one

	// Those that take turns: see source. tagged are in the order in which clients of a new tag subscribed.
	unread, unknown, known source
	tagged                 []*source

	// Order: see lane.
	fence      *entry          // nil: no fence; see fence
	lane       lane            // of all messages; in an OrderKey channel, of those whose keys are not known
	settling   laneList        // lanes whose last confirmation is not committed; those with a take come first
	remembered []fold.Deferral // sorted; recovered delays of an ordered channel's messages at or above next

	outbox outbox
	doomed entryList // entries that wait for room in the outbox
	log    journal
}

// full says whether reading must wait for confirmations, because the partition has too many confirmed ranges. The
// message at p.confirmed then has an entry, and its confirmation merges ranges. If the reading cursor itself is at
// p.confirmed, reading goes on, because it is reading that merges ranges: a recovered channel may begin with many.
func (p *partition) full() bool {
	return p.ranges.Len() >= p.maxRanges && p.next > p.confirmed
}

// settle moves the reading cursor past messages that are confirmed or have an entry, so that it is at a message to
// offer.
func (p *partition) settle() {
	for {
		p.next = p.ranges.NextGap(max(p.next, p.confirmed))
		if p.holes == 0 || p.next >= p.end || p.entries.get(batch.MakeID(p.number, p.next)) == nil {
			return
		}
		p.next++
		p.holes--
	}
}

// confirm marks a range as confirmed and notes it for the log.
func (p *partition) confirm(r fold.IDRange) {
	fold.ConfirmRange(&p.confirmed, &p.ranges, r)
	if !p.ephemeral {
		p.log.unlogged.AddRange(r)
	}
}

// entriesIn returns, in order, the ids in [from, to) that have an entry. It iterates over the ids or over the table,
// whichever is smaller.
func (p *partition) entriesIn(from, to segment.MsgID) (ids []segment.MsgID) {
	if from >= to {
		return nil
	}
	if uint64(to-from) <= uint64(len(p.entries.slots)) {
		for m := from; m < to; m++ {
			if p.entries.get(batch.MakeID(p.number, m)) != nil {
				ids = append(ids, m)
			}
		}
		return ids
	}
	for _, s := range p.entries.slots {
		if s.e != nil && s.id.Partition() == p.number && from <= s.id.MsgID() && s.id.MsgID() < to {
			ids = append(ids, s.id.MsgID())
		}
	}
	slices.Sort(ids)
	return ids
}

// unreadBelow counts the unread messages below to. Those that are not visible yet count, too: the caller may learn of a
// trim before it learns that the messages were committed, or a paused topic may have held them back.
func (p *partition) unreadBelow(to segment.MsgID) uint64 {
	if to <= p.next {
		return 0
	}
	n := uint64(to-p.next) - p.ranges.Count(p.next, to)
	if p.holes > 0 || to > p.end && p.beyond.Len() > 0 {
		n -= uint64(len(p.entriesIn(p.next, to)))
	}
	return n
}

// take creates the entry of the message at the reading cursor and moves the cursor past it. The entry is in no list
// yet.
func (p *partition) take(ev *Event) *entry {
	e := p.entries.pool.get(batch.MakeID(p.number, p.next))
	p.entries.put(e)
	e.at, e.index, e.hasAt, e.tag, e.told = ev.At, ev.Index, true, ev.Tag, true
	p.next++
	return e
}

// addEntry creates an entry for an id that is not confirmed and has no entry.
func (p *partition) addEntry(m segment.MsgID) *entry {
	e := p.entries.pool.get(batch.MakeID(p.number, m))
	e.index = NoIndex
	p.entries.put(e)
	switch {
	case m >= p.end:
		p.beyond.Add(m)
	case m >= p.next:
		p.holes++
	}
	return e
}

// addPartition creates the state of a partition from the fold of its log (ev.Cursor). After a crash or a change of
// leader nothing else is left: messages that were confirmed, but are not so in the fold, are unread again.
func (c *Channel) addPartition(ev *Event) {
	if ev.Part > batch.MaxPartition {
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
		c.adopt(cur.Settings) // a crash may have left a change in some partitions only: the newest settings win
	}
	p := &partition{
		number: ev.Part, start: ev.Start, end: ev.End,
		ephemeral: c.cfg.Ephemeral, maxRanges: c.cfg.MaxRanges, entries: &c.entries,
		confirmed: cur.Confirmed, next: cur.Confirmed, ranges: cur.Ranges.Clone(),
		log: journal{
			loggedPaused: cur.Paused, loggedSkipped: cur.Skipped, settingsUnlogged: cur.Settings.Version != c.settings.Version,
		},
	}
	c.parts[ev.Part] = p
	c.turns.add(p)
	for _, cl := range c.clients.all {
		c.turns.addTag(p, cl.tag)
	}
	for _, d := range cur.Dead {
		p.outbox.letters = append(p.outbox.letters, outboxEntry{DeadMessage: d, wasTaken: notTaken})
	}
	for _, d := range cur.Requeued {
		if c.settings.Order != fold.OrderNone && p.remember(d, ev.Deferred) {
			continue
		}
		e := p.addEntry(d.ID)
		e.attempts = min(d.Attempts, fold.MaxAttempts)
		e.at, e.hasAt = d.At, d.At != 0
		c.wait(e, d.DueMs)
	}
	c.special = c.isSpecial()
	if c.settings.Order != fold.OrderNone && (ev.Flag || p.log.settingsUnlogged) {
		// The log may still lose confirmations that are in the fold but not committed. So the settings are written once
		// more: when that entry is committed, all entries before it are, and until then the partition's lane waits. The
		// same happens if another partition had newer settings; see adopt.
		p.log.settingsUnlogged = true
		c.lanes.settle(p, &p.lane)
	}
	c.fence(p, ev.HoldMs)
	c.addDeferred(p, ev.Deferred)
	c.dropTo(p, ev.Start)
	p.settle()
	// A crash may have left a flag in some partitions only. It then holds for all of them, and the next control batch
	// of each of the others sets it there.
	c.paused = c.paused || cur.Paused
	if cur.Skipped && !c.skipped {
		c.setSkip(true)
	} else if c.skipped {
		c.skipTo(p, p.end)
	}
	c.skippedBefore = c.skippedBefore || cur.Skipped
}

// removePartition forgets a partition. Clients that have messages of it in flight get ErrNotInFlight from now on. Lanes
// of keys that wait for a commit of its log go on: whatever that log holds, the next leader knows it.
func (c *Channel) removePartition(p *partition) {
	c.forgetIf(p, func(*entry) bool { return true })
	for _, l := range c.lanes.byKey {
		l.behind = slices.DeleteFunc(l.behind, func(q *partition) bool { return q == p })
	}
	for l := p.settling.first; l != nil; l = p.settling.first {
		c.lanes.settled(p, l)
	}
	p.liftFence()
	c.turns.remove(p)
	c.parts[p.number] = nil
	c.special = c.isSpecial()
}

// addDeferred makes messages wait for their time. A message that has an entry gets the new place. It gets the new due
// time, too, if it still waits for its first delivery (B51).
func (c *Channel) addDeferred(p *partition, ds []fold.DeferredMessage) {
	for _, d := range ds {
		e := c.own(batch.MakeID(p.number, d.ID))
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
			e = p.addEntry(d.ID)
			e.outside = true
			c.wait(e, d.DueMs)
		}
		e.at, e.hasAt, e.index = d.At, true, NoIndex
	}
}

// visible raises the visible end. Messages that were due, and held because they were not visible, are queued.
func (c *Channel) visible(p *partition, end segment.MsgID) {
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
		e := c.entries.get(batch.MakeID(p.number, m))
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
	p.settle()
	if c.skipped {
		c.skipTo(p, end)
	}
}

// discardTo confirms the unread messages below to and moves the reading cursor there.
func (c *Channel) discardTo(p *partition, to segment.MsgID) {
	if to <= p.next {
		return
	}
	from := p.next
	if p.holes > 0 || to > p.end && p.beyond.Len() > 0 {
		for _, m := range p.entriesIn(p.next, to) {
			if m < p.end {
				p.holes--
			}
			p.confirm(fold.IDRange{From: from, To: m})
			from = m + 1
		}
	}
	p.confirm(fold.IDRange{From: from, To: to})
	p.next = to
	p.settle()
	c.passed(p)
}

// passed makes an ordered channel wait for a commit after it confirmed messages without delivering them, or after a
// reset or new settings. A leader that does not know of these would deliver messages that precede this channel's next
// one.
func (c *Channel) passed(p *partition) {
	if c.settings.Order != fold.OrderNone {
		c.lanes.settle(p, &p.lane)
	}
}

// setSkip switches skipping on or off. When it is switched on, all visible messages that wait for a client are
// confirmed. Messages in flight or waiting for their time are confirmed when they would be delivered again.
func (c *Channel) setSkip(on bool) {
	if on && !c.skipped {
		c.skippedSinceNs, c.skippedCount = c.nowNs, 0
	}
	c.skipped = on
	if !on {
		c.skippedSinceNs, c.skippedBefore = 0, false
		return
	}
	if c.lanes.parked > 0 { // first, because discarding the entries in front of them would let them go on
		c.entries.each(func(e *entry) {
			if e.state == entryParked {
				c.skip(e)
			}
		})
	}
	for _, s := range c.turns.sources {
		for e := s.queue.first; e != nil; e = s.queue.first {
			c.skip(e)
		}
	}
	for _, p := range c.parts {
		if p != nil {
			c.skipTo(p, p.end)
		}
	}
}

// skipTo discards the unread messages below to, because the channel skips.
func (c *Channel) skipTo(p *partition, to segment.MsgID) {
	c.skippedCount += p.unreadBelow(to)
	c.discardTo(p, to)
}

// skip discards an entry's message, because the channel skips.
func (c *Channel) skip(e *entry) {
	c.skippedCount++
	c.discard(e)
}

// dropped confirms a range that the log dropped for every channel. It notes the range for the log, although the log has
// dropped it: a reset of this channel may be on its way there and would undo the drop.
func (c *Channel) dropped(p *partition, r fold.IDRange) {
	c.forgetIf(p, func(e *entry) bool { return r.From <= e.id.MsgID() && e.id.MsgID() < r.To })
	p.confirm(r)
	p.settle()
	c.passed(p)
}

// reset sets the confirmed state to "everything below Msg, nothing else". Messages in flight are forgotten: a late FIN
// for one is refused (B56). Messages that were published with a delay and never delivered keep waiting, because the log
// still has their delay. A reset to the start of the log, or before it, keeps whatever has an entry below the start: it
// exists only as a carried copy, nothing else would deliver it, and nobody has finished it.
func (c *Channel) reset(p *partition, ev *Event) {
	p.start = max(p.start, ev.Start)
	to := max(min(ev.Msg, p.end), p.start)
	// With Msg at the start and at the end, somebody may have asked for the end.
	toStart := ev.Msg < p.start || ev.Msg == p.start && p.start < p.end
	c.forgetIf(p, func(e *entry) bool {
		if e.id.MsgID() < to {
			return !toStart || e.lane != nil
		}
		return e.attempts > 0 || !e.outside
	})
	p.outbox.forget(to)
	kept, from := p.entriesIn(p.confirmed, to), to
	if len(kept) > 0 {
		from = kept[0]
	}
	c.restart(p, from)
	p.holes = len(p.entriesIn(p.next, p.end))
	for _, m := range kept {
		c.keepWaiting(p, c.entries.get(batch.MakeID(p.number, m)))
	}
	c.discardTo(p, to)
	c.addDeferred(p, ev.Deferred)
	p.settle()
	if c.skipped {
		c.skipTo(p, p.end)
	}
}

// keepWaiting is for an entry that a reset keeps below the start of the log. If it is in flight, the client loses it,
// and it comes again at once, unless its bytes are gone. The log, in which the reset ends all delays of messages that
// came before, learns of it.
func (c *Channel) keepWaiting(p *partition, e *entry) {
	switch {
	case e.state != entryInFlight:
	case p.lacks(e):
		c.discardLost(e)
		return
	default:
		c.land(e)
		c.wait(e, c.soonMs())
	}
	if e.attempts > 0 {
		p.noteDelay(e)
	}
}

// restart sets the confirmed state to "everything below to" and notes the reset for the log.
func (c *Channel) restart(p *partition, to segment.MsgID) {
	p.confirmed, p.next = to, to
	p.ranges.Clear()
	p.log.unlogged.Clear()
	p.remembered = nil
	p.sweepDelays()
	if !c.cfg.Ephemeral {
		p.log.resetUnlogged, p.log.resetTo = true, to
	}
	c.lanes.label(p)
	c.lanes.release(p)
	c.passed(p)
}

// empty confirms all visible messages in all partitions, those in flight and deferred included.
func (c *Channel) empty() {
	for _, p := range c.parts {
		if p != nil {
			c.emptyPartition(p)
		}
	}
}

// emptyPartition confirms all visible messages. The state of messages beyond the visible end stays. The reset entry
// clears that state in the log, so it is noted for the log again.
func (c *Channel) emptyPartition(p *partition) {
	c.forgetIf(p, func(e *entry) bool { return e.id.MsgID() < p.end })
	to := max(p.end, p.confirmed)
	above := p.ranges.Clone()
	above.CutBelow(to)
	p.outbox.forget(to)
	c.restart(p, to)
	for _, r := range above.Ranges() {
		p.confirm(r)
	}
	c.entries.each(func(e *entry) {
		if e.id.Partition() == p.number && e.attempts > 0 {
			p.noteDelay(e)
		}
	})
	p.holes = 0
	p.settle()
}

// forgetIf forgets the partition's entries that match. It iterates over all entries of the channel, so only rare events
// may use it.
func (c *Channel) forgetIf(p *partition, match func(*entry) bool) {
	p.breakRuns()
	c.entries.each(func(e *entry) {
		if e.id.Partition() == p.number && match(e) {
			c.forget(e)
		}
	})
}
