package delivery

import (
	"cmp"
	"slices"

	"penstock/batch"
	"penstock/internal/node/fold"
	"penstock/segment"
)

// journal is what the log of a partition does not have yet, and how far the log has what was taken (TakeControls). A
// crash loses it: messages come again, but none is lost.
type journal struct {
	resetTo          segment.MsgID // with resetUnlogged: where the last reset went
	resetUnlogged    bool
	settingsUnlogged bool
	loggedPaused     bool // the pause that the log has, or will have with the takes so far; likewise below
	loggedSkipped    bool
	unlogged         fold.IDSet      // confirmed ids
	deferrals        []segment.MsgID // ids of entries with listed set, and stale ids, whose entries are gone
	staleDeferrals   int             // how many of deferrals are stale
	takes            uint64          // number of the last take, see TakeControls
	committed        uint64          // number of the last take that is committed

	// Memory that the last TakeControls lent to its caller.
	takenRanges    []fold.IDRange
	takenDeferrals []fold.Deferral
	takenMoved     []fold.IDRange
}

// noteDelay notes that the due time and attempts of an entry must be written to the log.
func (p *partition) noteDelay(e *entry) {
	if p.ephemeral || e.listed {
		return
	}
	if len(p.log.deferrals) == cap(p.log.deferrals) && p.log.staleDeferrals > len(p.log.deferrals)/2 {
		p.sweepDelays()
	}
	e.listed = true
	p.log.deferrals = append(p.log.deferrals, e.id.MsgID())
}

// sweepDelays removes stale ids, whose entries are gone. This bounds the list by twice the number of entries, even
// if TakeControls is not called for a long time.
func (p *partition) sweepDelays() {
	p.log.deferrals = slices.DeleteFunc(p.log.deferrals, func(m segment.MsgID) bool {
		e := p.entries.get(batch.MakeID(p.number, m))
		return e == nil || !e.listed
	})
	p.log.staleDeferrals = 0
}

// takeDelays returns the delays noted since the last call. They include messages that were delivered again
// meanwhile: their due time has passed, but the log still learns their number of attempts.
func (p *partition) takeDelays() []fold.Deferral {
	n := min(len(p.log.deferrals), MaxTakenDeferrals)
	p.log.takenDeferrals = p.log.takenDeferrals[:0]
	for _, m := range p.log.deferrals[:n] {
		if e := p.entries.get(batch.MakeID(p.number, m)); e != nil && e.listed {
			e.listed = false
			p.log.takenDeferrals = append(p.log.takenDeferrals, fold.Deferral{ID: m, DueMs: e.dueMs, Attempts: e.attempts})
		}
	}
	p.log.deferrals = slices.Delete(p.log.deferrals, 0, n)
	p.log.staleDeferrals -= n - len(p.log.takenDeferrals)
	slices.SortFunc(p.log.takenDeferrals, func(a, b fold.Deferral) int { return cmp.Compare(a.ID, b.ID) })
	return p.log.takenDeferrals
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
	c.part(e.id.Partition()).noteDelay(e)
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

// HasControls says whether TakeControls may have entries for the partition's log.
func (c *Channel) HasControls(part uint32) bool {
	p := c.part(part)
	return !c.cfg.Ephemeral && (p.log.resetUnlogged || p.log.unlogged.Len() > 0 || len(p.log.deferrals) > 0 ||
		p.log.loggedPaused != c.paused || p.log.loggedSkipped != c.skipped || p.log.settingsUnlogged ||
		p.outbox.untaken > 0 || p.outbox.moved.Len() > 0)
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
	p.log.takes++
	if p.log.settingsUnlogged {
		p.log.settingsUnlogged = false
		settings := c.settings
		dst = append(dst, fold.Control{Kind: fold.ChannelConfigured, Channel: c.cfg.Name, Settings: &settings})
	}
	if p.log.loggedPaused != c.paused {
		p.log.loggedPaused = c.paused
		dst = append(dst, fold.Control{Kind: fold.ChannelPaused, Channel: c.cfg.Name, Flag: c.paused})
	}
	if p.log.loggedSkipped != c.skipped {
		p.log.loggedSkipped = c.skipped
		dst = append(dst, fold.Control{Kind: fold.ChannelSkipped, Channel: c.cfg.Name, Flag: c.skipped})
	}
	if p.log.resetUnlogged {
		p.log.resetUnlogged = false
		dst = append(dst, fold.Control{Kind: fold.ChannelReset, Channel: c.cfg.Name, ID: p.log.resetTo})
	}
	if ds := p.takeDelays(); len(ds) > 0 {
		dst = append(dst, fold.Control{Kind: fold.Deferred, Channel: c.cfg.Name, Deferrals: ds})
	}
	p.log.takenRanges = takeRanges(&p.log.unlogged, p.log.takenRanges)
	if len(p.log.takenRanges) > 0 {
		dst = append(dst, fold.Control{Kind: fold.Confirmed, Channel: c.cfg.Name, Ranges: p.log.takenRanges})
	}
	p.log.takenMoved = takeRanges(&p.outbox.moved, p.log.takenMoved)
	if len(p.log.takenMoved) > 0 {
		dst = append(dst, fold.Control{Kind: fold.DeadLetterMoved, Channel: c.cfg.Name, Ranges: p.log.takenMoved})
	}
	// DeadLettered is taken only when no DeadLetterMoved is left to take. After a reset a message may have died a
	// second time: the DeadLetterMoved of its first dead letter must not remove the second one from the fold's outbox.
	if p.outbox.untaken > 0 && p.outbox.moved.Len() == 0 {
		dst = append(dst, fold.Control{Kind: fold.DeadLettered, Channel: c.cfg.Name, Dead: p.outbox.take(p.log.takes)})
	}
	c.lanes.label(p)
	return dst
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
