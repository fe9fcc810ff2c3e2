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
		p.loggedPaused != c.paused || p.loggedSkipped != c.skipped)
}

// TakeControls appends to dst what must be written to the partition's log, in this
// order, and from then on takes it as written. If it could not be written, messages
// may be delivered again after a crash, nothing is lost. One call returns at most
// MaxTakenRanges ranges and MaxTakenDeferrals deferrals; HasControls tells whether
// there is more. Ranges and Deferrals are borrowed until the next TakeControls of
// the same partition. An ephemeral channel has nothing to write.
func (c *Channel) TakeControls(part uint32, dst []Control) []Control {
	if !c.HasControls(part) {
		return dst
	}
	p := c.parts[part]
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
	if rs := p.takeRanges(); len(rs) > 0 {
		dst = append(dst, Control{Kind: Confirmed, Channel: c.cfg.Name, Ranges: rs})
	}
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

func (p *channelPart) takeRanges() []IDRange {
	rs := p.unlogged.Ranges()
	rs = rs[:min(len(rs), MaxTakenRanges)]
	p.takenRanges = append(p.takenRanges[:0], rs...)
	if len(rs) > 0 {
		p.unlogged.CutBelow(rs[len(rs)-1].To)
	}
	return p.takenRanges
}
