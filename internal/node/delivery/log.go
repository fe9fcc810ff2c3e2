package delivery

import (
	"cmp"
	"slices"

	"penstock/batch"
	"penstock/internal/node/fold"
	"penstock/segment"
)

// noteDeferral notes that the due time and attempts of an entry must be written to the log.
func (c *Channel) noteDeferral(p *channelPart, e *entry) {
	if c.cfg.Ephemeral || e.listed {
		return
	}
	if len(p.deferrals) == cap(p.deferrals) && p.staleDeferrals > len(p.deferrals)/2 {
		c.sweepDeferrals(p)
	}
	e.listed = true
	p.deferrals = append(p.deferrals, e.id.MsgID())
}

// oftenFailed is the number of deliveries after which a message is noted although attempts are not limited.
const oftenFailed = 16

// noteFailure notes the attempts of a message whose delivery has ended without a FIN, if they are limited: the next
// leader goes on counting, so a message that always fails ends, whatever happens to nodes. In the log it is a delay
// that is over. Without a limit, what fails costs the log nothing, unless it fails often: then it is noted once, so
// that it can be carried, and does not keep its segment and all later ones (Cursors.ToCarry).
func (c *Channel) noteFailure(e *entry) {
	if e.attempts == 0 || c.settings.MaxAttempts == 0 && e.attempts != oftenFailed {
		return
	}
	e.dueMs = c.nowNs / nsPerMs
	c.noteDeferral(c.part(e.id.Partition()), e)
}

// noteFailures notes the attempts so far, because they are limited now.
func (c *Channel) noteFailures() {
	c.entries.each(func(e *entry) {
		switch e.state {
		case entryQueued, entryParked, entryRecalled:
			c.noteFailure(e)
		}
	})
}

// sweepDeferrals removes stale ids, whose entries are gone. This bounds the list by twice the number of entries, even
// if TakeControls is not called for a long time.
func (c *Channel) sweepDeferrals(p *channelPart) {
	p.deferrals = slices.DeleteFunc(p.deferrals, func(m segment.MsgID) bool {
		e := c.entries.get(batch.MakeID(p.number, m))
		return e == nil || !e.listed
	})
	p.staleDeferrals = 0
}

// HasControls says whether TakeControls may have entries for the partition's log.
func (c *Channel) HasControls(part uint32) bool {
	p := c.part(part)
	return !c.cfg.Ephemeral && (p.resetUnlogged || p.unlogged.Len() > 0 || len(p.deferrals) > 0 ||
		p.loggedPaused != c.paused || p.loggedSkipped != c.skipped || p.loggedSettings != c.settings.Version ||
		p.untaken > 0 || p.moved.Len() > 0)
}

// TakeControls appends to dst the entries that must be written to the partition's log, in this order. From then on the
// machine considers them written. If they are not written after all, a crash or a change of leader makes messages come
// again, but loses none. One call returns at most MaxTakenRanges ranges (in each of Confirmed and DeadLetterMoved),
// MaxTakenDeferrals deferrals and MaxTakenDead dead letters; HasControls says whether there are more. Ranges, Deferrals
// and Dead are borrowed until the next TakeControls of the same partition. An ephemeral channel has no entries.
//
// A call that returns entries is a take. The takes of a partition are numbered from 1 (LastTake). When the batch with a
// take's entries is committed, the caller must send EvConfirmsCommitted: ordered channels and dead letters wait for it.
func (c *Channel) TakeControls(part uint32, dst []fold.Control) []fold.Control {
	if !c.HasControls(part) {
		return dst
	}
	p := c.parts[part]
	p.takes++
	if p.loggedSettings != c.settings.Version {
		p.loggedSettings = c.settings.Version
		settings := c.settings
		dst = append(dst, fold.Control{Kind: fold.ChannelConfigured, Channel: c.cfg.Name, Settings: &settings})
	}
	if p.loggedPaused != c.paused {
		p.loggedPaused = c.paused
		dst = append(dst, fold.Control{Kind: fold.ChannelPaused, Channel: c.cfg.Name, Flag: c.paused})
	}
	if p.loggedSkipped != c.skipped {
		p.loggedSkipped = c.skipped
		dst = append(dst, fold.Control{Kind: fold.ChannelSkipped, Channel: c.cfg.Name, Flag: c.skipped})
	}
	if p.resetUnlogged {
		p.resetUnlogged = false
		dst = append(dst, fold.Control{Kind: fold.ChannelReset, Channel: c.cfg.Name, ID: p.resetTo})
	}
	if ds := c.takeDeferrals(p); len(ds) > 0 {
		dst = append(dst, fold.Control{Kind: fold.Deferred, Channel: c.cfg.Name, Deferrals: ds})
	}
	p.takenRanges = takeRanges(&p.unlogged, p.takenRanges)
	if len(p.takenRanges) > 0 {
		dst = append(dst, fold.Control{Kind: fold.Confirmed, Channel: c.cfg.Name, Ranges: p.takenRanges})
	}
	p.takenMoved = takeRanges(&p.moved, p.takenMoved)
	if len(p.takenMoved) > 0 {
		dst = append(dst, fold.Control{Kind: fold.DeadLetterMoved, Channel: c.cfg.Name, Ranges: p.takenMoved})
	}
	// DeadLettered is taken only when no DeadLetterMoved is left to take. After a reset a message may have died a
	// second time: the DeadLetterMoved of its first dead letter must not remove the second one from the fold's outbox.
	if p.untaken > 0 && p.moved.Len() == 0 {
		dst = append(dst, fold.Control{Kind: fold.DeadLettered, Channel: c.cfg.Name, Dead: p.takeDead()})
	}
	c.labelSettling(p)
	return dst
}

// takeDeferrals returns the delays noted since the last call. They include messages that were delivered again
// meanwhile: their due time has passed, but the log still learns their number of attempts.
func (c *Channel) takeDeferrals(p *channelPart) []fold.Deferral {
	n := min(len(p.deferrals), MaxTakenDeferrals)
	p.takenDeferrals = p.takenDeferrals[:0]
	for _, m := range p.deferrals[:n] {
		if e := c.entries.get(batch.MakeID(p.number, m)); e != nil && e.listed {
			e.listed = false
			p.takenDeferrals = append(p.takenDeferrals, fold.Deferral{ID: m, DueMs: e.dueMs, Attempts: e.attempts})
		}
	}
	p.deferrals = slices.Delete(p.deferrals, 0, n)
	p.staleDeferrals -= n - len(p.takenDeferrals)
	slices.SortFunc(p.takenDeferrals, func(a, b fold.Deferral) int { return cmp.Compare(a.ID, b.ID) })
	return p.takenDeferrals
}

// takeRanges moves the lowest ranges of from to taken, whose memory it reuses.
func takeRanges(from *fold.IDSet, taken []fold.IDRange) []fold.IDRange {
	rs := from.Ranges()
	rs = rs[:min(len(rs), MaxTakenRanges)]
	taken = append(taken[:0], rs...)
	if len(rs) > 0 {
		from.CutBelow(rs[len(rs)-1].To)
	}
	return taken
}
