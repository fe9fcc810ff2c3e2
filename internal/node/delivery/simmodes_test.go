package delivery

import (
	"slices"

	"penstock/batch"
	"penstock/internal/node/fold"
	"penstock/segment"
)

// The model of order, dead letters, tags and carried messages.

// keyOf and tagOf return the key and the tag of a simulated message.
func keyOf(id segment.MsgID) uint64 {
	if id%5 == 0 {
		return 0
	}
	return uint64(1 + id*7%3)
}

func tagOf(id segment.MsgID) uint64 { return uint64(id % 4 % 3) }

// confirm notes the confirmation of a message that a client had. An ordered channel waits until it is committed.
func (p *simPart) confirm(id segment.MsgID) {
	p.confirmed[id] = true
	p.unsafe[id] = notTaken
}

func (p *simPart) took(take uint64) {
	for id, at := range p.unsafe {
		if at == notTaken {
			p.unsafe[id] = take
		}
	}
	for id, at := range p.dead {
		if at == notTaken {
			p.dead[id] = take
			delete(p.deadBefore, id)
		}
	}
}

// commit says that the takes so far are committed, sometimes all but the last.
func (s *sim) commit(p *simPart) {
	take := s.c.LastTake(p.number)
	if s.next()%2 == 0 && take > 0 && s.next()%2 == 0 {
		take--
	}
	s.committed(p, take)
}

func (s *sim) committed(p *simPart, take uint64) {
	s.step(Event{Kind: EvConfirmsCommitted, Part: p.number, Take: take})
	for id, at := range p.unsafe {
		if at <= take {
			delete(p.unsafe, id)
		}
	}
}

// died says whether a message that would be redelivered went to the outbox instead, or waits for room in it.
func (s *sim) died(p *simPart, id segment.MsgID) bool {
	limit := int(s.settings.MaxAttempts)
	cp := s.c.part(p.number)
	if e := s.c.look(batch.MakeID(p.number, id)); e != nil {
		if e.state == entryDoomed && (limit == 0 || p.attempts[id] < limit || len(cp.outbox.letters) < s.cfg.MaxOutbox) {
			s.t.Fatalf("message %d with %d attempts of %d is doomed; the outbox has %d of %d",
				id, p.attempts[id], limit, len(cp.outbox.letters), s.cfg.MaxOutbox)
		}
		return e.state == entryDoomed
	}
	i := fold.SearchID(cp.outbox.letters, id, outboxEntry.id)
	if i == len(cp.outbox.letters) || cp.outbox.letters[i].ID != id || cp.outbox.letters[i].take != notTaken ||
		p.dead[id] == notTaken {
		return false
	}
	if limit == 0 || p.attempts[id] < limit || int(cp.outbox.letters[i].Attempts) != p.attempts[id] {
		s.t.Fatalf("message %d with %d attempts of %d is in the outbox with %d",
			id, p.attempts[id], limit, cp.outbox.letters[i].Attempts)
	}
	p.confirm(id)
	if was, ok := p.dead[id]; ok {
		p.deadBefore[id] = was
	}
	p.dead[id] = notTaken
	return true
}

// noteDead finds dead letters whose making the model did not see, because their messages were parked.
func (s *sim) noteDead(p *simPart) {
	for _, o := range slices.Clone(s.c.part(p.number).outbox.letters) {
		s.died(p, o.ID)
	}
}

// checkOutbox compares the outboxes of the log and of the channel with the model: each must have every dead letter
// once.
func (s *sim) checkOutbox(p *simPart) {
	cp, cur := s.c.part(p.number), p.log.Channel("c")
	if len(cp.outbox.letters) != len(p.dead) || len(cur.Dead) != len(p.dead) || cp.outbox.untaken != 0 {
		s.t.Fatalf("%d dead letters; the outbox has %d, the log %d; %d are not taken",
			len(p.dead), len(cp.outbox.letters), len(cur.Dead), cp.outbox.untaken)
	}
	for i, o := range cp.outbox.letters {
		if _, ok := p.dead[o.ID]; !ok || cur.Dead[i] != o.DeadMessage || i > 0 && cp.outbox.letters[i-1].ID >= o.ID {
			s.t.Fatalf("dead letter %d: in the model %v; the log has %v", o.ID, ok, cur.Dead[i])
		}
	}
}

// moveDead moves some of the committed outbox to the dead-letter topic.
func (s *sim) moveDead(p *simPart, count int) {
	out := s.c.Outbox(p.number, nil)
	if len(out) == 0 {
		return
	}
	out = out[:min(count, len(out))]
	before := s.c.part(p.number).doomed.count
	var set fold.IDSet
	for _, d := range out {
		if at := p.dead[d.ID]; at == notTaken || at > s.c.part(p.number).log.committed {
			s.t.Fatalf("dead letter %d is shown before it is committed", d.ID)
		}
		set.Add(d.ID)
		delete(p.dead, d.ID)
	}
	s.step(Event{Kind: EvDeadMoved, Part: p.number, Ranges: set.Ranges()})
	if before > 0 {
		for id := range p.end {
			s.died(p, id)
		}
	}
}

// configure changes the settings. Messages that have an entry when the order changes may end in any order.
func (s *sim) configure() {
	if s.calm {
		return
	}
	old := s.settings
	s.settings.Version++
	ev := Event{Kind: EvConfigure}
	if n := s.next() % 4; n > 0 {
		ev.PartsAll = s.number(2) + uint32(n) // more than the last number of a partition
	}
	s.partsAll = ev.PartsAll
	switch s.next() % 9 {
	case 7, 8: // only the number of partitions changes
		s.settings = old
		s.step(ev)
		return
	case 0, 1, 6:
		s.settings.Order = fold.Order(s.next() % 3)
	case 2:
		s.settings.MaxAttempts = uint16(s.next() % 4)
	case 3:
		s.settings.RatePerSecond = uint32(s.next()%2) * uint32(1+s.next())
		s.settings.RateBytes = uint64(s.settings.RatePerSecond&3) * 500
		if s.settings.RatePerSecond == 0 {
			s.settings.SampleRate = uint8(s.next() % 2 * 90)
		}
	case 4:
		s.settings.MaxInFlight = uint32(s.next() % 12)
	case 5:
		s.filter = !s.filter
		s.settings.KeyHeader = string(rune('a' + s.next()%2))
	}
	if s.settings.Order != old.Order || s.settings.Order == fold.OrderKey && s.settings.Key() != old.Key() {
		for _, p := range s.parts {
			s.markLegacy(p)
		}
	}
	settings := s.settings
	ev.Settings = &settings
	before := make([][]entryState, len(s.parts))
	for i, p := range s.parts {
		before[i] = s.states(p)
	}
	if err := s.step(ev).Err; err != nil {
		s.t.Fatalf("configure: %v", err)
	}
	for i, p := range s.parts {
		for id, was := range before[i] {
			id := segment.MsgID(id)
			if again := !s.died(p, id) && was == entryDoomed; again && (s.skipped || p.lost(id)) &&
				s.c.look(batch.MakeID(p.number, id)) == nil {
				p.confirm(id)
			}
		}
	}
}

func (s *sim) markLegacy(p *simPart) {
	for id := range p.end {
		if e := s.c.look(batch.MakeID(p.number, id)); e != nil && !p.delayed[id] {
			p.legacy[id] = true
		}
	}
}

// recover starts a new channel from the folds, as after a crash.
func (s *sim) recover() {
	old := s.c
	s.c = NewChannel(s.cfg)
	s.clients, s.paused, s.skipped = nil, false, false
	s.settings, s.partsAll = fold.ChannelSettings{}, 0
	for _, p := range s.parts {
		s.addFromLog(p, old != nil && old.part(p.number).log.resetUnlogged)
	}
	for _, p := range s.parts {
		s.expectAdded(p)
	}
	s.check()
}

// addFromLog adds a partition to the channel, and to the model, in the state that its log has.
func (s *sim) addFromLog(p *simPart, resetLost bool) {
	cur := p.log.Channel("c")
	p.visible = p.end
	if p.log.TopicPaused {
		p.visible = p.log.HeldFrom
	}
	p.border = fold.Border{}
	clear(p.flight)
	clear(p.attempts)
	clear(p.due)
	clear(p.confirmed)
	for id := range p.end {
		if cur.IsConfirmed(id) {
			p.confirmed[id] = true
		}
	}
	for _, d := range p.log.Deferred {
		p.due[d.ID] = d.DueMs * nsPerMs
	}
	for _, d := range cur.Requeued {
		p.due[d.ID], p.attempts[d.ID] = d.DueMs*nsPerMs, int(d.Attempts)
	}
	s.paused, s.skipped = s.paused || cur.Paused, s.skipped || cur.Skipped
	s.recoverModes(p, cur, resetLost)
	s.step(Event{
		Kind: EvAddPartition, Part: p.number, Cursor: cur, Start: p.start, End: p.visible, Deferred: p.log.Deferred,
	})
}

// expectAdded updates the model for a partition that was added to the channel.
func (s *sim) expectAdded(p *simPart) {
	s.expectDiscarded(p, p.start) // removed by retention, or skipped
	if s.skipped {
		s.expectDiscarded(p, p.visible)
	}
	if cur := p.log.Channel("c"); s.settings.Order == fold.OrderNone || cur.Settings.Version != s.settings.Version {
		s.markLegacy(p)
	} else {
		for _, d := range cur.Requeued { // carried messages come when they are due
			p.delayed[d.ID] = p.delayed[d.ID] || d.At != 0
		}
	}
}

// giveAway removes a partition and adds it again in the state that its log has. The clients stay, and the other
// partition must not change.
func (s *sim) giveAway(p *simPart) {
	cur := p.log.Channel("c")
	if s.next()%2 == 0 || cur.Paused != s.paused || cur.Skipped != s.skipped ||
		cur.Settings.Version != s.settings.Version {
		s.take()
	}
	s.noteDead(p)
	resetLost := s.c.part(p.number).log.resetUnlogged
	s.step(Event{Kind: EvRemovePartition, Part: p.number})
	s.addFromLog(p, resetLost)
	s.expectAdded(p)
}

// recoverModes sets the model to what the log still has after a crash. B64: a dead letter belongs to the channel or is
// in the outbox; it is never lost.
func (s *sim) recoverModes(p *simPart, cur *fold.Cursor, resetLost bool) {
	for id, at := range p.dead {
		if resetLost && at == notTaken {
			continue // the log never got the reset, and has the confirmation from before it
		}
		if cur.IsConfirmed(id) && !fold.HasID(cur.Dead, id, func(d fold.DeadMessage) segment.MsgID { return d.ID }) {
			s.t.Fatalf("dead letter %d is lost: confirmed, and not in the outbox", id)
		}
	}
	clear(p.dead)
	clear(p.deadBefore)
	clear(p.unsafe)
	clear(p.legacy)
	for _, d := range cur.Dead {
		p.dead[d.ID] = 0
	}
	if cur.Settings.Version >= s.settings.Version {
		s.settings = cur.Settings
	}
}

// forgetModes undoes in the model what a reset to an id undoes.
func (s *sim) forgetModes(p *simPart, to segment.MsgID) {
	clear(p.unsafe)
	clear(p.legacy)
	for id, at := range p.dead {
		if was, ok := p.deadBefore[id]; at == notTaken && id >= to && ok {
			p.dead[id] = was
		} else if at == notTaken && id >= to {
			delete(p.dead, id)
		}
		delete(p.deadBefore, id)
	}
}

// eligible says whether some client may take a message. A client without a tag may only if no client with the message's
// tag is subscribed (B59).
func (s *sim) eligible(p *simPart, id segment.MsgID) bool {
	tag := tagOf(id)
	wants := func(cl *simClient) bool { return !cl.stopped && (cl.only == 0 || cl.only-1 == p.number) }
	awaited := tag != 0 && slices.ContainsFunc(s.clients, func(cl *simClient) bool { return wants(cl) && cl.tag == tag })
	return s.anyCredit() && slices.ContainsFunc(s.clients, func(cl *simClient) bool {
		return wants(cl) && !cl.blocked && s.flightOf(cl.id) < cl.ready && (cl.tag == tag || cl.tag == 0 && !awaited)
	})
}

// checkOrder checks a message that was just delivered: every message before it in its order is confirmed, and the
// confirmation is committed (B57). A client with a tag gets only messages with that tag (B59).
func (s *sim) checkOrder(p *simPart, id segment.MsgID, cl *simClient) {
	s.t.Helper()
	if cl.only != 0 && cl.only-1 != p.number {
		s.t.Fatalf("message %d of partition %d goes to client %d, which wants another", id, p.number, cl.id)
	}
	if cl.tag != 0 && cl.tag != tagOf(id) {
		s.t.Fatalf("message %d of tag %d goes to client %d of tag %d", id, tagOf(id), cl.id, cl.tag)
	}
	order := s.settings.Order
	if order == fold.OrderNone || p.delayed[id] || p.legacy[id] || order == fold.OrderKey && keyOf(id) == 0 {
		return
	}
	for _, other := range s.parts {
		for before := range other.end {
			same := other == p && (order == fold.OrderPartition || other.legacy[before] || keyOf(before) == keyOf(id)) ||
				other != p && s.settings.Order == fold.OrderKey && keyOf(before) == keyOf(id) && !other.legacy[before]
			if !same || other.delayed[before] || other == p && before == id {
				continue
			}
			_, flying := other.flight[before]
			switch {
			case flying:
				s.t.Fatalf("message %d is delivered while %d of partition %d is in flight", id, before, other.number)
			case other == p && before < id && !p.confirmed[before]:
				s.t.Fatalf("message %d is delivered before %d", id, before)
			case other == p && before < id && p.unsafe[before] != 0:
				s.t.Fatalf("message %d is delivered before the confirmation of %d is committed", id, before)
			}
		}
	}
}

// checkLanes counts the entries of all lanes and compares the numbers with those that the lanes keep.
func (s *sim) checkLanes() {
	busy, parked := map[*lane]int{}, map[*lane]int{}
	s.c.entries.each(func(e *entry) {
		switch {
		case e.lane == nil && e.state == entryParked:
			s.t.Fatalf("message %v is parked behind nothing", e.id)
		case e.lane == nil:
		case e.outside:
			s.t.Fatalf("message %v comes by its time and is ordered", e.id)
		case e.state == entryParked:
			parked[e.lane]++
		default:
			busy[e.lane]++
		}
	})
	all := map[*lane]bool{}
	for key, l := range s.c.lanes.byKey {
		if all[l] = true; l.key != key || l.free() {
			s.t.Fatalf("lane of key %d: %+v", key, l)
		}
	}
	for _, p := range s.parts {
		all[&s.c.part(p.number).lane] = true
	}
	for l := range all {
		if l.busy != busy[l] || l.parked.count != parked[l] || l.isFreed ||
			l.parked.count > 0 && l.busy == 0 && l.settling == nil {
			s.t.Fatalf("lane of key %d: busy %d, counted %d; parked %d, counted %d; freed %v, settling %v",
				l.key, l.busy, busy[l], l.parked.count, parked[l], l.isFreed, l.settling != nil)
		}
		delete(busy, l)
		delete(parked, l)
	}
	if len(busy)+len(parked) > 0 {
		s.t.Fatalf("entries stand in %d lanes that are not there", len(busy)+len(parked))
	}
	for _, p := range s.parts {
		if l := s.c.part(p.number).settling.last; l != nil && l.take == notTaken && !s.c.HasControls(p.number) {
			s.t.Fatalf("lane of key %d waits for a take of nothing", l.key)
		}
	}
}

// crash recovers the channel while messages wait in whatever mode it has, and subscribes consumers at once.
func (s *sim) crash() {
	for _, p := range s.parts {
		for range 4 {
			s.requeue(p)
		}
	}
	s.take()
	s.recover()
	s.subscribe(4, 1+s.next()%2)
	for _, p := range s.parts {
		for range 4 {
			s.pump(p)
		}
	}
}

// carry copies the messages that still wait below a place in the log, and then removes everything below that place.
func (s *sim) carry(p *simPart) {
	s.take()
	below := segment.MsgID(s.next()) % (p.end + 1)
	if p.log.Channel("other") != nil && s.next()%4 != 0 {
		all := []fold.IDRange{{To: p.end}}[:min(1, int(p.end))]
		s.apply(p, fold.Control{Kind: fold.Confirmed, Channel: "other", Ranges: all})
	}
	s.lastAt = 1_000_000 + s.lastAt%1_000_000 + 1
	at := s.lastAt
	for round := 0; ; round++ {
		src, ok := p.log.ToCarry(nil, fold.Border{}, fold.Border{At: at, ID: below}, 1+s.next()%3)
		if !ok {
			return
		}
		if len(src) == 0 {
			break
		}
		if round > int(p.end) {
			s.t.Fatalf("still %v to carry below %d", src, below)
		}
		ct := fold.Control{Kind: fold.DeferredCarried}
		var ds []fold.DeferredMessage
		for _, m := range src {
			if want := p.place[m.ID]; m.At != want && (m.At != segment.Offset(m.ID) || want != 0) && m.At != 0 {
				s.t.Fatalf("message %d to carry lies at %d, not at %d", m.ID, m.At, want)
			}
			ct.Carried = append(ct.Carried, fold.CarriedMessage{ID: m.ID})
			d := fold.DeferredMessage{ID: m.ID, At: at}
			if i := fold.SearchID(p.log.Deferred, m.ID, deferredID); fold.HasID(p.log.Deferred, m.ID, deferredID) {
				d.DueMs = p.log.Deferred[i].DueMs
			}
			ds = append(ds, d)
			p.place[m.ID] = at
		}
		s.apply(p, ct)
		s.step(Event{Kind: EvCarried, Part: p.number, Deferred: ds})
		for _, d := range ds {
			if e := s.c.look(batch.MakeID(p.number, d.ID)); d.DueMs != 0 && e != nil && e.state == entryWaiting &&
				e.attempts == 0 {
				p.due[d.ID] = d.DueMs * nsPerMs
			}
		}
	}
	if needed := p.log.Needed(0, p.end); needed < below {
		s.t.Fatalf("everything below %d is carried, and %d is needed", below, needed)
	}
	if from, ok := p.log.CarriedFrom(0); ok && from != at {
		for _, c := range p.log.CarriedBelow(nil, 0, fold.Border{ID: below}, 1<<30) {
			if c.At < at {
				s.t.Fatalf("message %d is still at %d", c.ID, c.At)
			}
		}
	}
	cp := s.c.part(p.number)
	for id := range below {
		if !p.confirmed[id] && s.c.look(batch.MakeID(p.number, id)) == nil && !fold.HasID(cp.remembered, id, requeuedID) {
			s.t.Fatalf("message %d is not read, and its segment may go", id)
		}
	}
	p.start = max(p.start, below)
	s.step(Event{Kind: EvTrimmed, Part: p.number, Start: p.start})
	s.expectDiscarded(p, p.start)
}

// topic pauses, unpauses or empties the topic: in all partitions, through the log.
func (s *sim) topic() {
	what := s.next() % 3
	for _, p := range s.parts {
		switch {
		case p.log.TopicPaused && what == 0:
			from := p.log.HeldFrom
			s.apply(p, fold.Control{Kind: fold.TopicEmptied, ID: p.end})
			s.step(Event{Kind: EvDropped, Part: p.number, Msg: from, End: p.end})
			for id := from; id < p.end; id++ {
				p.confirmed[id] = true
				delete(p.flight, id)
			}
		case p.log.TopicPaused:
			s.apply(p, fold.Control{Kind: fold.TopicPaused})
			s.show(p)
		default:
			s.apply(p, fold.Control{Kind: fold.TopicPaused, Flag: true, ID: p.end})
		}
	}
}
