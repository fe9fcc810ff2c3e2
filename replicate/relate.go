package replicate

import (
	"errors"

	"penstock/segment"
)

// report is what a replica's last MsgReport says of its log, and how that log relates to the leader's. Two logs are
// equal below common and differ from there on, because a batch is identified by its epoch and position, and names the
// checksum of the batch before it.
type report struct {
	start, end   segment.Position
	endEpoch     segment.Epoch    // of its last batch
	endCRC       uint32           // of its last batch
	committed    segment.Position // the Committed that it knows; 0 below feature level 4
	durable      segment.Position // everything below is on its stable storage; 0 below feature level 4
	generation   uint64
	damaged      bool
	shortened    bool // it may lack what it acknowledged, so it proves nothing about what it lacks
	bare         bool // its log is given up; see anew.go
	related      bool // common is known
	common       segment.Position
	hollow       bool // behind common it has only first batches of epochs, in which nothing is acknowledged
	apart        bool // nothing that both logs still have is common
	beyond       bool // it begins behind this log's end, and knows as committed what this log lacks
	overruled    bool // an operator has chosen a leader since: what only this log has is given up
	unidentified bool // the tables do not tell: this log is asked for the batch with which the other ends (identify)
}

// relate compares a report with this log.
func (l *Leader) relate(m *Message) report {
	r := report{
		start: m.Start, end: m.Log.Next, endEpoch: m.Log.Epoch, endCRC: m.Log.LastCRC, committed: m.Committed,
		durable: m.Until, generation: m.Generation, damaged: m.Damaged, shortened: m.Shortened, bare: m.isBare(),
	}
	forced := l.isr.forced
	r.overruled = forced > r.endEpoch && (l.epoch == forced || l.begun.Epoch >= forced)
	to, err := l.table.Common(l.log.End.Next, m.Epochs, m.Log.Next)
	switch {
	case err == nil:
		r.related, r.common = true, to
	case r.bare || !errors.Is(err, ErrNoCommon):
	case complete(m.Epochs, m.Start, m.Log.Next) && complete(l.table.Entries(), l.log.Start.Next, l.log.End.Next):
		// Both tables tell everything, and they share no epoch. If both logs begin at the beginning, the empty log is
		// common; otherwise retention has removed what they may share.
		r.related = m.Start == 0 && l.log.Start.Next == 0
		r.apart = !r.related
	default:
		r.unidentified = m.Log.Next > l.log.Start.Next && m.Log.Next <= l.log.End.Next
	}
	r.hollow = r.related && hollow(m.Epochs, r.common, r.end)
	r.beyond = !r.related && r.start >= l.begun.Next && r.committed > l.begun.Next
	return r
}

// complete says whether a table tells the epoch of each batch of the log [start, end): a full table has forgotten the
// oldest epochs.
func complete(epochs []EpochStart, start, end segment.Position) bool {
	return start == end || len(epochs) > 0 && epochs[0].Position <= start
}

// hollow says whether a log with this table has nothing in [from, end) but the first batches of epochs.
func hollow(epochs []EpochStart, from, end segment.Position) bool {
	count := segment.Position(0)
	for _, e := range epochs {
		if e.Position >= from && e.Position < end {
			count++
		}
	}
	return count == end-from
}

// identify asks for the batch of this log at which p's log ends. The tables share no epoch because at least one of them
// has forgotten its oldest ones, but if this log has p's last batch, p's whole log is a prefix of it.
func (l *Leader) identify(p *Progress, acts *Actions) {
	a := acts.add(ActRead)
	a.Node, a.Request, a.Position, a.Bytes, a.Count = p.Node, p.request, p.report.end-1, 1, 1
	a.Purpose = ReadCompare
}

// identified takes the answer to identify. If the read failed, p is probed again, and then this log is read again.
func (l *Leader) identified(p *Progress, ev *Event, now int64, acts *Actions) {
	r := &p.report
	if p.State != Probe && p.State != Snapshot || !p.compared || !r.unidentified || ev.Position != r.end-1 ||
		ev.Until == ev.Position {
		return
	}
	r.unidentified = false
	if ev.Epoch == r.endEpoch && ev.CRC == r.endCRC {
		r.related, r.common = true, r.end
	}
	l.answer(p, now, acts)
}

// committedMore says whether batches that only the other log has, or had, are known to be committed.
func (r *report) committedMore() bool {
	return !r.overruled && (r.beyond || r.related && r.committed > r.common && r.end > r.common)
}

// splitFrom says whether both logs are known to have committed what the other lacks. Then neither may be cut: an
// operator has to choose.
func (l *Leader) splitFrom(r *report) bool {
	common := r.common
	if r.beyond {
		common = l.begun.Next // what is committed below is part of the other log's past
	}
	return r.committedMore() && l.log.Committed > common
}

// hasMore says whether p's log has batches that this log lacks and that may be committed. If only one of two logs goes
// on behind the common part, it has all of the other. If both do, the marks decide: what is known to be committed is
// kept. If no mark tells, a member's log that goes on with nothing but first batches of epochs has no more than one
// that goes on with others: a node that came back with an older disk may have led some epochs alone. If that does not
// tell, either, the newer epoch counts, because its leader came from the ISR and began with everything that was
// committed. A shortened log may belong to a leader that did not begin so. A member that is not shortened has
// everything that was committed, so its log counts. Below feature level 4 reports do not say whether a log is
// shortened. What this leader has appended in its own epoch does not count.
func (l *Leader) hasMore(p *Progress) bool {
	r := &p.report
	if r.overruled {
		return false
	}
	if !r.related {
		switch {
		case r.start >= l.begun.Next:
			return r.end > l.begun.Next
		case r.end <= l.log.Start.Next:
			return false
		}
		return l.newer(r)
	}
	theirs, ours := r.end > r.common, l.begun.Next > r.common
	switch {
	case !theirs || !ours:
		return theirs
	case r.committedMore() != (l.log.Committed > r.common):
		return r.committedMore()
	case l.isr.member(p.member()) && r.hollow != hollow(l.table.Entries(), r.common, l.begun.Next):
		return !r.hollow
	case r.shortened != l.log.Shortened && (l.cfg.ListShort || r.shortened) && (r.shortened || l.isr.member(p.member())):
		return l.log.Shortened
	}
	return l.newer(r)
}

// newer says whether r's log ends in a newer epoch than this one began with, or further on in the same epoch.
func (l *Leader) newer(r *report) bool {
	return r.endEpoch > l.begun.Epoch || r.endEpoch == l.begun.Epoch && r.end > l.begun.Next
}
