package core

import (
	"cmp"
	"slices"

	"penstock/segment"
)

// noteDeferral remembers that the log must learn of an entry's delay.
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

// sweepDeferrals removes the stale ids: their entries are gone. The list is thus
// bounded by twice the entries, however long the log takes no controls.
func (c *Channel) sweepDeferrals(p *channelPart) {
	p.deferrals = slices.DeleteFunc(p.deferrals, func(m segment.MsgID) bool {
		e := c.entries.get(MakeID(p.number, m))
		return e == nil || !e.listed
	})
	p.staleDeferrals = 0
}

// HasControls says whether TakeControls may have something for the partition's log.
func (c *Channel) HasControls(part uint32) bool {
	p := c.part(part)
	return !c.cfg.Ephemeral && (p.resetUnlogged || p.unlogged.Len() > 0 || len(p.deferrals) > 0 ||
		p.loggedPaused != c.paused || p.loggedSkipped != c.skipped || p.loggedSettings != c.settings.Version ||
		p.untaken > 0 || p.moved.Len() > 0)
}

// TakeControls appends to dst what must be written to the partition's log, in this
// order, and from then on takes it as written. If it could not be written, messages
// may be delivered again after a crash, nothing is lost. One call returns at most
// MaxTakenRanges ranges (twice: Confirmed and DeadLetterMoved), MaxTakenDeferrals deferrals and
// MaxTakenDead dead letters; HasControls tells whether there is more. Ranges, Deferrals and Dead are borrowed
// until the next TakeControls of the same partition. An ephemeral channel has nothing to write.
//
// Each call that returns something is a take, numbered from 1 (LastTake). When the batch that holds
// it is committed, EvConfirmsCommitted has to say so: ordered channels and dead letters wait for it.
func (c *Channel) TakeControls(part uint32, dst []Control) []Control {
	if !c.HasControls(part) {
		return dst
	}
	p := c.parts[part]
	p.takes++
	if p.loggedSettings != c.settings.Version {
		p.loggedSettings = c.settings.Version
		settings := c.settings
		dst = append(dst, Control{Kind: ChannelConfigured, Channel: c.cfg.Name, Settings: &settings})
	}
	if p.loggedPaused != c.paused {
		p.loggedPaused = c.paused
		dst = append(dst, Control{Kind: ChannelPaused, Channel: c.cfg.Name, Flag: c.paused})
	}
	if p.loggedSkipped != c.skipped {
		p.loggedSkipped = c.skipped
		dst = append(dst, Control{Kind: ChannelSkipped, Channel: c.cfg.Name, Flag: c.skipped})
	}
	if p.resetUnlogged {
		p.resetUnlogged = false
		dst = append(dst, Control{Kind: ChannelReset, Channel: c.cfg.Name, ID: p.resetTo})
	}
	if ds := c.takeDeferrals(p); len(ds) > 0 {
		dst = append(dst, Control{Kind: Deferred, Channel: c.cfg.Name, Deferrals: ds})
	}
	p.takenRanges = takeRanges(&p.unlogged, p.takenRanges)
	if len(p.takenRanges) > 0 {
		dst = append(dst, Control{Kind: Confirmed, Channel: c.cfg.Name, Ranges: p.takenRanges})
	}
	p.takenMoved = takeRanges(&p.moved, p.takenMoved)
	if len(p.takenMoved) > 0 {
		dst = append(dst, Control{Kind: DeadLetterMoved, Channel: c.cfg.Name, Ranges: p.takenMoved})
	}
	// After all that was moved: a message that came again by a reset may have died a second time, and the end of its
	// first dead letter must not take the second one out of the log.
	if p.untaken > 0 && p.moved.Len() == 0 {
		dst = append(dst, Control{Kind: DeadLettered, Channel: c.cfg.Name, Dead: p.takeDead()})
	}
	c.labelSettling(p)
	return dst
}

// takeDeferrals returns the delays noted since the last call. A message that was
// delivered again meanwhile is in it too: its time has come, its count is kept.
func (c *Channel) takeDeferrals(p *channelPart) []Deferral {
	n := min(len(p.deferrals), MaxTakenDeferrals)
	p.takenDeferrals = p.takenDeferrals[:0]
	for _, m := range p.deferrals[:n] {
		if e := c.entries.get(MakeID(p.number, m)); e != nil && e.listed {
			e.listed = false
			p.takenDeferrals = append(p.takenDeferrals, Deferral{ID: m, DueMs: e.dueMs, Attempts: e.attempts})
		}
	}
	p.deferrals = slices.Delete(p.deferrals, 0, n)
	p.staleDeferrals -= n - len(p.takenDeferrals)
	slices.SortFunc(p.takenDeferrals, func(a, b Deferral) int { return cmp.Compare(a.ID, b.ID) })
	return p.takenDeferrals
}

// takeRanges moves the lowest ranges of from to a list whose memory it reuses.
func takeRanges(from *IDSet, taken []IDRange) []IDRange {
	rs := from.Ranges()
	rs = rs[:min(len(rs), MaxTakenRanges)]
	taken = append(taken[:0], rs...)
	if len(rs) > 0 {
		from.CutBelow(rs[len(rs)-1].To)
	}
	return taken
}
