package delivery

import (
	"slices"

	"penstock/batch"
	"penstock/internal/node/fold"
	"penstock/segment"
)

// The model of the judgement: what the filter and the samples leave out, and what passes them.

// ownOf says whether a simulated message is for the channel only, and unwanted whether the filter rejects it now.
func ownOf(id segment.MsgID) bool { return id%6 == 5 }

func (s *sim) unwanted(id segment.MsgID) bool { return s.filter && id%7 == 3 }

// offer offers a message that was read, and checks that the filter and the channel's sample decide as they must.
func (s *sim) offer(p *simPart, at segment.MsgID, queued bool) *Result {
	s.t.Helper()
	id := batch.MakeID(p.number, at)
	before, inFlight := s.c.pace, s.c.clients.inFlight
	attempts := p.attempts[at]
	res := s.step(Event{
		Kind: EvOffer, Flag: queued, Part: p.number, Msg: at, At: segment.Offset(at), Index: 1, Key: keyOf(at),
		Bytes: int(at) % 700,
		Tag:   tagOf(at), Unwanted: s.unwanted(at), Own: ownOf(at),
	})
	out := s.unwanted(at) || s.c.outOfSample(id)
	switch {
	case res.Decision == Deliver && out && !ownOf(at):
		s.t.Fatalf("message %d is left out by the filter or the sample, and was delivered", at)
	case res.Decision == Skip && ownOf(at) && attempts == 0 && p.isDone(s, at):
		s.t.Fatalf("message %d is for this channel only, and was left out", at)
	case res.Decision == Skip && !out && attempts > 0 && p.isDone(s, at) && !p.isDead(s, at):
		s.t.Fatalf("message %d was delivered %d times, and was left out", at, attempts)
	case res.Decision != Deliver && (before.messages != s.c.pace.messages || inFlight != s.c.clients.inFlight):
		s.t.Fatalf("message %d was not delivered, and has used up the rate or a place in flight", at)
	}
	return res
}

// isDone says whether the channel has confirmed a message, and isDead whether it is in the outbox.
func (p *simPart) isDone(s *sim, id segment.MsgID) bool {
	cp := s.c.part(p.number)
	return id < cp.confirmed || cp.ranges.Contains(id)
}

func (p *simPart) isDead(s *sim, id segment.MsgID) bool {
	return fold.HasID(s.c.part(p.number).outbox.letters, id, outboxEntry.id)
}

// pumpNext offers the message whose turn it is. With queued, it does as if nothing could be read at the reading
// cursors.
func (s *sim) pumpNext(p *simPart, queued bool) Decision {
	stay := s.busy && s.next()%2 == 0
	switch {
	case queued:
		for _, p := range s.parts {
			s.step(Event{Kind: EvStall, Part: p.number})
		}
	case !stay:
		s.c.turns.changes++ // the engine has read something meanwhile
	}
	var may []*source
	for _, src := range s.c.turns.sources {
		if s.c.clients.hasCredit() && !s.c.paused && s.c.mayGo(src) {
			may = append(may, src)
		}
	}
	next := *s.step(Event{Kind: EvNext, Flag: stay})
	if next.Decision == Hold {
		if next.Why == HoldEmpty {
			s.checkIdle(!queued && !stay)
		} else {
			s.checkHold(p, next.Why)
		}
		return Hold
	}
	now := s.c.turns.sources[s.c.turns.at]
	p = s.parts[slices.IndexFunc(s.parts, func(p *simPart) bool { return p.number == next.Part })]
	id := next.ID.MsgID()
	if e := s.c.entries.get(next.ID); !next.Queued {
		id = s.c.ReadFrom(p.number)
	} else if e == nil || e.state != entryQueued || e.source.queue.first != e {
		s.t.Fatalf("message %v has its turn, and is not the first of a queue: %+v", next.ID, e)
	}
	res := s.offer(p, id, next.Queued)
	s.checkTurn(may, now, res.Decision != Hold)
	switch res.Decision {
	case Deliver:
		if res.ID != batch.MakeID(p.number, id) {
			s.t.Fatalf("delivers %v, offered %v", res.ID, id)
		}
		s.delivered(res)
	case Skip:
		if !s.died(p, id) && s.c.look(batch.MakeID(p.number, id)) == nil {
			p.confirmed[id] = true
		}
	case Hold:
		if res.Why != HoldNoCredit || s.eligible(p, id) {
			s.checkHold(p, res.Why)
		}
	}
	return res.Decision
}

// wait is how long a source waits for its turn.
type wait struct {
	behind map[*source]int // messages of other sources that had their turns, while this one might have had it
	round  uint64          // source.round and source.given: they change when the source is served, by a run for example
	given  int
}

// checkTurn checks that no source that may have its turn waits for more than two turns, of TurnSize messages, of
// another one. now is the source that had its turn; with counts, its message was delivered or dropped.
func (s *sim) checkTurn(may []*source, now *source, counts bool) {
	s.t.Helper()
	if !slices.Contains(may, now) {
		s.t.Fatalf("partition %d has its turn, source %d, and must not", now.part, now.kind)
	}
	waits := map[*source]wait{}
	for _, src := range may {
		if src == now {
			continue
		}
		w, ok := s.waits[src]
		if !ok || w.round != src.round || w.given != src.given {
			w = wait{map[*source]int{}, src.round, src.given}
		}
		if waits[src] = w; counts {
			w.behind[now]++
		}
		if n := w.behind[now]; n > 2*s.cfg.TurnSize {
			s.t.Fatalf("partition %d, source %d: %d messages of another had their turns, and a turn has %d",
				src.part, src.kind, n, s.cfg.TurnSize)
		}
	}
	s.waits = waits
}

// checkIdle checks that no queued message could be delivered: whatever stands before it, no client with credit takes
// it. With unread, nor could a message at a reading cursor.
func (s *sim) checkIdle(unread bool) {
	s.t.Helper()
	if s.paused || s.skipped {
		return
	}
	for _, p := range s.parts {
		for id := range p.visible {
			e := s.c.entries.get(batch.MakeID(p.number, id))
			if e != nil && e.state == entryQueued && s.eligible(p, id) {
				s.t.Fatalf("message %d of partition %d is queued, a client waits, and it has no turn", id, p.number)
			}
		}
		if at := s.c.ReadFrom(p.number); unread && at < p.visible && s.settings.Order == fold.OrderNone &&
			!s.c.part(p.number).full() && s.eligible(p, at) {
			s.t.Fatalf("message %d of partition %d can be read, a client waits, and it has no turn", at, p.number)
		}
	}
}

// checkAttempts checks that the log knows how often each message was delivered that waits to come again, if the channel
// has a limit of attempts: the next leader goes on counting.
func (s *sim) checkAttempts(p *simPart, cur *fold.Cursor) {
	s.t.Helper()
	for id, n := range p.attempts {
		e := s.c.entries.get(batch.MakeID(p.number, id))
		if e == nil || n == 0 || e.state == entryInFlight || s.settings.MaxAttempts == 0 {
			continue
		}
		i := fold.SearchID(cur.Requeued, id, requeuedID)
		if i == len(cur.Requeued) || cur.Requeued[i].ID != id || int(cur.Requeued[i].Attempts) != n {
			s.t.Fatalf("message %d was delivered %d times, state %d, and the log does not know that: %+v",
				id, n, e.state, cur.Requeued)
		}
	}
}

func (s *sim) dropOne(p *simPart) {
	if p.visible == 0 {
		return
	}
	id := segment.MsgID(s.next()) % p.visible
	s.step(Event{Kind: EvDrop, ID: batch.MakeID(p.number, id)})
	if _, flying := p.flight[id]; flying {
		p.confirm(id)
	}
	delete(p.flight, id)
	p.confirmed[id] = true
	if e := s.c.look(batch.MakeID(p.number, id)); e != nil {
		s.t.Fatalf("message %d was dropped and is in state %d", id, e.state)
	}
}
