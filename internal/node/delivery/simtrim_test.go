package delivery

import (
	"penstock/batch"
	"penstock/internal/node/fold"
	"penstock/segment"
)

// trim moves the start of a partition's log, as retention does.
func (s *sim) trim(p *simPart) {
	p.start = max(p.start, segment.MsgID(s.next())%(p.end+1))
	ev := Event{Kind: EvTrimmed, Part: p.number, Start: p.start}
	switch s.next() % 4 {
	case 0:
		ev.At = segment.Offset(p.start)
	case 1:
		ev.At = max(s.lastAt+1, segment.Offset(p.start)) // the carried copies went, too
	}
	before := s.states(p)
	s.stepTrimmed(p, ev)
	if ev.At > p.border.At {
		p.border = fold.Border{At: ev.At, ID: p.start}
	}
	for id, was := range before {
		if id := segment.MsgID(id); was != 0 && was != entryInFlight && was != entryDoomed && p.lost(id) {
			p.confirm(id)
			delete(p.due, id)
		}
	}
	s.expectDiscarded(p, p.start)
	s.loseGone(p)
}

// stepTrimmed checks that a trim counts the messages that it takes, and no others: those that nobody has finished or
// has in flight, whether they are visible yet or not.
func (s *sim) stepTrimmed(p *simPart, ev Event) {
	var waits []segment.MsgID
	for id := range p.end {
		if _, flying := p.flight[id]; !flying && !p.isDone(s, id) && !s.skipped {
			waits = append(waits, id)
		}
	}
	was, taken := s.c.Stats().DroppedCount, uint64(0)
	s.step(ev)
	for _, id := range waits {
		if p.isDone(s, id) {
			taken++
		}
	}
	if n := s.c.Stats().DroppedCount - was; n != taken {
		s.t.Fatalf("a trim to %d takes %d messages that nobody has finished, and counts %d", ev.Start, taken, n)
	}
}

// lost says that the channel knows of a message that its bytes are gone.
func (p *simPart) lost(id segment.MsgID) bool {
	return id < p.border.ID && p.place[id] < p.border.At
}

// loseGone removes the messages that wait below the start of the log. Sometimes their carried copies are gone as well.
func (s *sim) loseGone(p *simPart) {
	start := fold.Border{At: segment.Offset(p.start), ID: p.start}
	if p.start%2 == 1 {
		start.At = s.lastAt + 1
	}
	s.take()
	for _, id := range p.log.Gone(nil, start, 1+int(p.start%4)) {
		before := s.c.look(batch.MakeID(p.number, id))
		_, flying := p.flight[id]
		doomed := before != nil && before.state == entryDoomed
		res := s.step(Event{Kind: EvGone, ID: batch.MakeID(p.number, id)})
		if lost := before != nil && !flying && !doomed; lost != (res.Decision == Skip) {
			s.t.Fatalf("message %d is gone: in flight %v, doomed %v, decision %d", id, flying, doomed, res.Decision)
		} else if lost {
			p.confirmed[id] = true
			delete(p.due, id)
		}
	}
}
