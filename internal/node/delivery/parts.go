package delivery

import (
	"slices"

	"penstock/batch"
	"penstock/internal/node/fold"
	"penstock/segment"
)

// channelPart is the channel's state in one partition. Three invariants hold between Steps:
//
//	confirmed <= next.
//	Every id in [confirmed, next) is confirmed or has an entry.
//	next is not confirmed and has no entry, unless it is at or beyond end.
type channelPart struct {
	number    uint32
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

	// Entries for the log that no TakeControls has returned yet.
	resetTo        segment.MsgID // with resetUnlogged: where the last reset went
	resetUnlogged  bool
	unlogged       fold.IDSet      // confirmed ids
	deferrals      []segment.MsgID // ids of entries with listed set, and stale ids, whose entries are gone
	staleDeferrals int             // how many of deferrals are stale
	loggedPaused   bool            // the pause that the log has, or will have with the takes so far; likewise below
	loggedSkipped  bool
	loggedSettings uint64 // a version, or notLogged

	// Order: see lane.
	fence      *entry          // nil: no fence; see fence
	lane       lane            // of all messages; in an OrderKey channel, of those whose keys are not known
	settling   laneList        // lanes whose last confirmation is not committed; those with a take come first
	takes      uint64          // number of the last take, see TakeControls
	committed  uint64          // number of the last take that is committed
	remembered []fold.Deferral // sorted; recovered delays of an ordered channel's messages at or above next

	// Dead letters.
	outbox  []outboxEntry // sorted by ID
	untaken int           // how many of outbox were not taken yet
	moved   fold.IDSet    // ids that left the outbox; their DeadLetterMoved was not taken yet
	doomed  entryList     // entries that wait for room in the outbox

	// Memory that the last TakeControls lent to its caller.
	takenRanges    []fold.IDRange
	takenDeferrals []fold.Deferral
	takenDead      []fold.DeadMessage
	takenMoved     []fold.IDRange
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
	p := &channelPart{
		number: ev.Part, start: ev.Start, end: ev.End,
		confirmed: cur.Confirmed, next: cur.Confirmed, ranges: cur.Ranges.Clone(),
		loggedPaused: cur.Paused, loggedSkipped: cur.Skipped, loggedSettings: cur.Settings.Version,
	}
	c.parts[ev.Part] = p
	c.addSources(p)
	for _, d := range cur.Dead {
		p.outbox = append(p.outbox, outboxEntry{DeadMessage: d, wasTaken: notTaken})
	}
	for _, d := range cur.Requeued {
		if c.remember(p, d, ev.Deferred) {
			continue
		}
		e := c.addEntry(p, d.ID)
		e.attempts = min(d.Attempts, fold.MaxAttempts)
		e.at, e.hasAt = d.At, d.At != 0
		c.wait(e, d.DueMs)
	}
	c.special = c.isSpecial()
	if c.settings.Order != fold.OrderNone && (ev.Flag || p.loggedSettings != c.settings.Version) {
		// The log may still lose confirmations that are in the fold but not committed. So the settings are written once
		// more: when that entry is committed, all entries before it are, and until then the partition's lane waits. The
		// same happens if another partition had newer settings; see adopt.
		p.loggedSettings = notLogged
		c.settleLane(p, &p.lane)
	}
	c.fence(p, ev.HoldMs)
	c.addDeferred(p, ev.Deferred)
	c.dropTo(p, ev.Start)
	c.settle(p)
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
func (c *Channel) removePartition(p *channelPart) {
	c.forgetIf(p, func(*entry) bool { return true })
	for _, l := range c.lanes {
		l.behind = slices.DeleteFunc(l.behind, func(q *channelPart) bool { return q == p })
	}
	for l := p.settling.first; l != nil; l = p.settling.first {
		c.settled(p, l)
	}
	c.liftFence(p)
	c.removeSources(p)
	c.parts[p.number] = nil
	c.special = c.isSpecial()
}

// addEntry creates an entry for an id that is not confirmed and has no entry.
func (c *Channel) addEntry(p *channelPart, m segment.MsgID) *entry {
	e := c.pool.get(batch.MakeID(p.number, m))
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

// addDeferred makes messages wait for their time. A message that has an entry gets the new place. It gets the new due
// time, too, if it still waits for its first delivery (B51).
func (c *Channel) addDeferred(p *channelPart, ds []fold.DeferredMessage) {
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
			e = c.addEntry(p, d.ID)
			e.outside = true
			c.wait(e, d.DueMs)
		}
		e.at, e.hasAt, e.index = d.At, true, NoIndex
	}
}

// settle moves the reading cursor past messages that are confirmed or have an entry, so that it is at a message to
// offer.
func (c *Channel) settle(p *channelPart) {
	for {
		p.next = p.ranges.NextGap(max(p.next, p.confirmed))
		if p.holes == 0 || p.next >= p.end || c.entries.get(batch.MakeID(p.number, p.next)) == nil {
			return
		}
		p.next++
		p.holes--
	}
}

// visible raises the visible end. Messages that were due, and held because they were not visible, are queued.
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
	c.settle(p)
	if c.skipped {
		c.skipTo(p, end)
	}
}

// discardTo confirms the unread messages below to and moves the reading cursor there.
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
			c.confirm(p, fold.IDRange{From: from, To: m})
			from = m + 1
		}
	}
	c.confirm(p, fold.IDRange{From: from, To: to})
	p.next = to
	c.settle(p)
	c.passed(p)
}

// passed makes an ordered channel wait for a commit after it confirmed messages without delivering them, or after a
// reset or new settings. A leader that does not know of these would deliver messages that precede this channel's next
// one.
func (c *Channel) passed(p *channelPart) {
	if c.settings.Order != fold.OrderNone {
		c.settleLane(p, &p.lane)
	}
}

// entriesIn returns, in order, the ids in [from, to) that have an entry. It iterates over the ids or over the table,
// whichever is smaller.
func (c *Channel) entriesIn(p *channelPart, from, to segment.MsgID) (ids []segment.MsgID) {
	if from >= to {
		return nil
	}
	if uint64(to-from) <= uint64(len(c.entries.slots)) {
		for m := from; m < to; m++ {
			if c.entries.get(batch.MakeID(p.number, m)) != nil {
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
	if c.parked > 0 { // first, because discarding the entries in front of them would let them go on
		c.entries.each(func(e *entry) {
			if e.state == entryParked {
				c.skip(e)
			}
		})
	}
	for _, s := range c.sources {
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
func (c *Channel) skipTo(p *channelPart, to segment.MsgID) {
	c.skippedCount += c.unreadBelow(p, to)
	c.discardTo(p, to)
}

// skip discards an entry's message, because the channel skips.
func (c *Channel) skip(e *entry) {
	c.skippedCount++
	c.discard(e)
}

// dropped confirms a range that the log dropped for every channel. It notes the range for the log, although the log has
// dropped it: a reset of this channel may be on its way there and would undo the drop.
func (c *Channel) dropped(p *channelPart, r fold.IDRange) {
	c.forgetIf(p, func(e *entry) bool { return r.From <= e.id.MsgID() && e.id.MsgID() < r.To })
	c.confirm(p, r)
	c.settle(p)
	c.passed(p)
}

// reset sets the confirmed state to "everything below Msg, nothing else". Messages in flight are forgotten: a late FIN
// for one is refused (B56). Messages that were published with a delay and never delivered keep waiting, because the log
// still has their delay. A reset to the start of the log, or before it, keeps whatever has an entry below the start: it
// exists only as a carried copy, nothing else would deliver it, and nobody has finished it.
func (c *Channel) reset(p *channelPart, ev *Event) {
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
	c.forgetDead(p, to)
	kept, from := c.entriesIn(p, p.confirmed, to), to
	if len(kept) > 0 {
		from = kept[0]
	}
	c.restart(p, from)
	p.holes = len(c.entriesIn(p, p.next, p.end))
	for _, m := range kept {
		c.keepWaiting(p, c.entries.get(batch.MakeID(p.number, m)))
	}
	c.discardTo(p, to)
	c.addDeferred(p, ev.Deferred)
	c.settle(p)
	if c.skipped {
		c.skipTo(p, p.end)
	}
}

// keepWaiting is for an entry that a reset keeps below the start of the log. If it is in flight, the client loses it,
// and it comes again at once, unless its bytes are gone. The log, in which the reset ends all delays of messages that
// came before, learns of it.
func (c *Channel) keepWaiting(p *channelPart, e *entry) {
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
		c.noteDeferral(p, e)
	}
}

// restart sets the confirmed state to "everything below to" and notes the reset for the log.
func (c *Channel) restart(p *channelPart, to segment.MsgID) {
	p.confirmed, p.next = to, to
	p.ranges.Clear()
	p.unlogged.Clear()
	p.remembered = nil
	c.sweepDeferrals(p)
	if !c.cfg.Ephemeral {
		p.resetUnlogged, p.resetTo = true, to
	}
	c.labelSettling(p)
	c.releaseSettled(p)
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
func (c *Channel) emptyPartition(p *channelPart) {
	c.forgetIf(p, func(e *entry) bool { return e.id.MsgID() < p.end })
	to := max(p.end, p.confirmed)
	above := p.ranges.Clone()
	above.CutBelow(to)
	c.forgetDead(p, to)
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

// forgetIf forgets the partition's entries that match. It iterates over all entries of the channel, so only rare events
// may use it.
func (c *Channel) forgetIf(p *channelPart, match func(*entry) bool) {
	c.breakRuns(p)
	c.entries.each(func(e *entry) {
		if e.id.Partition() == p.number && match(e) {
			c.forget(e)
		}
	})
}
