package replicate

import (
	"slices"

	"github.com/google/uuid"
)

// message handles a message from a replica. A newer epoch in any message ends this incarnation (P7). Messages of older
// epochs are late and dropped, except a call for an exchange (MsgResync).
func (l *Leader) message(now int64, from NodeID, m *Message, acts *Actions) {
	p := l.peer(from)
	switch {
	case m.Epoch > l.epoch:
		acts.add(ActRefresh)
		l.log.Epoch = m.Epoch
		l.stop(ErrFenced, acts)
		return
	case p == nil:
		return
	}
	p.Down = false
	if m.Kind == MsgReject && m.Code == RejectAbsent {
		if m.Epoch == l.epoch && m.Request == p.request {
			l.notHere(p, now, acts)
		}
		return
	}
	if m.Kind == MsgResync {
		p.absent = absence{}
		l.resync(p, m, now, acts)
		return
	}
	if m.Epoch != l.epoch || m.Request != p.request {
		return
	}
	p.heardAt, p.absent = now, absence{}
	switch m.Kind {
	case MsgReport:
		l.report(p, m, now, acts)
	case MsgAck:
		l.ack(p, m, now, acts)
	case MsgGap:
		l.gap(p, m, now, acts)
	case MsgReject:
		if m.Code == RejectDamaged {
			p.Damaged, p.matched = true, false // acks that it sent before do not count any more
		}
		if p.State == Replicate || p.State == CatchUp {
			l.probe(p, now, acts)
		}
	case MsgFetch:
		l.fetch(p, m, now, acts)
	case MsgRange:
		l.takeRange(m, acts)
	}
}

// resync begins a new exchange, unless a recent Probe may still be on its way to the follower.
func (l *Leader) resync(p *Progress, m *Message, now int64, acts *Actions) {
	if m.Epoch == l.epoch && m.Request != 0 && m.Request != p.request {
		return // it concerns an older exchange
	}
	switch {
	case p.State != Probe || now-p.probeAt >= l.cfg.HeartbeatNs:
		l.probe(p, now, acts)
	case m.Request == 0:
		// The follower has heard of no exchange. The first Probe for a new partition often arrives before the copy is
		// open, and is lost. Probing twice does no harm, and such a follower calls only once per RetryNs.
		l.askAgain(p, now, acts)
	}
}

// report finds the end of the common part of the two logs and tells the follower.
func (l *Leader) report(p *Progress, m *Message, now int64, acts *Actions) {
	if p.State != Probe && p.State != Snapshot {
		return
	}
	if p.boot != m.Boot && p.boot != (uuid.UUID{}) {
		// Two processes have reported in one exchange, perhaps from two disks, and either report may be the late one.
		// An ack names its exchange but not its process, so this exchange ends and a new one begins.
		l.probe(p, now, acts)
		return
	}
	p.boot = m.Boot
	if p.heard && p.Store != m.Store || !p.heard {
		// Another disk: it has nothing of what the old one acknowledged.
		p.Match, p.matchOffset, p.Next, p.nextOffset, p.committed, p.stuck = 0, 0, 0, 0, 0, false
	}
	p.Store, p.heard, p.Damaged = m.Store, true, m.Damaged
	p.committed = 0 // a restarted process knows less than its predecessor; its next ack says what
	if m.Log.Next < p.Match {
		// The follower had acknowledged more, and its disk lost it: see short.go. It counts from Match 0 again.
		p.Match, p.matchOffset, p.Next, p.nextOffset, p.lost = 0, 0, 0, 0, true
	}
	p.compared, p.report = true, l.relate(m)
	l.answer(p, now, acts)
}

// answer answers p's report, if enough is known. Otherwise p keeps its log as it is, and is asked again.
func (l *Leader) answer(p *Progress, now int64, acts *Actions) {
	m := &p.report
	switch {
	case m.unidentified:
		l.identify(p, acts)
		return
	case l.comparing.open:
		return // until this log is known to lack nothing
	case l.toBeWritten(p):
		return // until the row says that it is short
	case l.overtaken(p, now):
		return
	case m.committedMore(): // p refuses a match, but not a reset behind what retention has removed here
	case !m.related || m.common < m.start || m.common < l.log.Start.Next || m.bare:
		if !l.damage.any() || !m.bare {
			l.snapshot(p, now, acts)
		}
		return
	}
	p.State, p.matched = Probe, true
	r := l.send(p, MsgMatch, now, acts)
	r.Position, r.Boot, r.Generation = m.common, p.boot, m.generation
}

// snapshot makes p begin anew at this log's first batch. A member of the ISR may be the last copy of a committed batch,
// so it is first proposed for removal, and probed again when the store has accepted. Where the ISR cannot shrink, a
// member that lost the end of its log would wait for ever. So it begins anew as a member if all that the two logs share
// lies below this log's beginning, where retention removed the batches: it would have to cut the rest anyway.
func (l *Leader) snapshot(p *Progress, now int64, acts *Actions) {
	m := &p.report
	stuck := (len(l.isr.members) <= l.isr.minISR || l.blocked) && !slices.Contains(l.isr.proposed, p.member()) &&
		(m.end <= l.log.Start.Next || m.apart || m.related && m.common < l.log.Start.Next)
	if !stuck && (l.isr.member(p.member()) || slices.Contains(l.isr.proposed, p.member())) {
		p.Damaged = true
		return
	}
	p.State, p.matched, p.Damaged = Snapshot, true, m.damaged
	// Outside the ISR nothing waits for p. A member that could not be removed holds Committed back until it has caught
	// up.
	p.Match, p.matchOffset = 0, 0
	p.Next, p.nextOffset = 0, 0
	r := l.send(p, MsgReset, now, acts)
	r.Log, r.Epochs, r.Boot, r.Generation = l.log.Start, l.table.before(l.log.Start.Next), p.boot, m.generation
}

// ack takes a cumulative acknowledgement: the follower durably holds everything below Position, in this epoch.
func (l *Leader) ack(p *Progress, m *Message, now int64, acts *Actions) {
	first := p.State == Probe || p.State == Snapshot // of this exchange: it follows the report
	if first {
		if !p.matched || m.Position > l.log.End.Next {
			return
		}
		// The follower has cut its log. Batches that it holds but has not synced are sent again; it recognises
		// duplicates.
		l.catchUp(p, now)
		p.Next, p.nextOffset = m.Position, m.Offset
		p.movedAt, p.markEnd, p.markAt = now, l.log.End.Next, now
	}
	if p.Damaged && !m.Damaged && !first {
		// The ack may be older than the one that told of the damage, on another connection. Only a report ends damage.
		l.probe(p, now, acts)
		return
	}
	p.Damaged = m.Damaged
	if m.Position > p.Next {
		l.probe(p, now, acts) // it claims batches that were never sent to it
		return
	}
	p.committed = max(p.committed, m.Committed)
	l.moveMatch(p, m, now)
	l.pump(p, now, acts)
}

func (l *Leader) moveMatch(p *Progress, m *Message, now int64) {
	if m.Position > p.Match {
		p.Match, p.matchOffset, p.movedAt = m.Position, m.Offset, now
	}
	if p.Next < p.Match {
		p.Next, p.nextOffset = p.Match, p.matchOffset
	}
	if p.lost && p.Match >= max(l.log.Committed, l.joinFloor) {
		p.lost = false
	}
	// As with Kafka's lag, a follower is not behind as long as each answer reaches the end that the log had at its
	// previous answer.
	switch {
	case p.Match == l.log.End.Next:
		p.caughtUpAt = now
	case p.Match >= p.markEnd:
		p.caughtUpAt = max(p.caughtUpAt, p.markAt)
	default:
		return
	}
	p.markEnd, p.markAt = l.log.End.Next, now
}

// gap goes back to the batches that the follower lacks, once per gap: the frames behind the hole cause MsgGap as well.
func (l *Leader) gap(p *Progress, m *Message, now int64, acts *Actions) {
	if p.State != Replicate && p.State != CatchUp || m.Position >= p.Next {
		return
	}
	if m.Position < p.Match { // it had acknowledged more: its report says what is left
		l.probe(p, now, acts)
		return
	}
	if p.rewound == m.Position && now-p.rewoundAt < l.cfg.HeartbeatNs {
		return
	}
	p.rewound, p.rewoundAt = m.Position, now
	p.Next, p.nextOffset, p.reading = m.Position, m.Offset, false
	l.pump(p, now, acts)
}
