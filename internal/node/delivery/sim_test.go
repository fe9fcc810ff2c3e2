package delivery

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"penstock/batch"
	"penstock/internal/node/fold"
	"penstock/segment"
)

// sim drives a Channel with a sequence of events that the input's bytes choose. Beside it, sim keeps a naive model of
// every message, and the fold of the controls that the channel hands out. After every event it compares the state of
// every message with the model.
type sim struct {
	t       *testing.T
	next    func() int // the next byte; 0 at the end
	now     int64      // ns
	cfg     ChannelConfig
	c       *Channel
	res     Result
	parts   []*simPart
	clients []*simClient
	lastID  ClientID
	paused  bool
	skipped bool
	ev      []EventKind // the events so far, for the text of a failure

	settings fold.ChannelSettings // configured last, or recovered
	partsAll uint32               // partitions of the topic; 0: the channel does not know
	filter   bool                 // every seventh message is unwanted
	lastAt   segment.Offset       // of the last control batch that carries messages
	calm     bool                 // runs are common: see run_test.go
	busy     bool                 // see simbusy_test.go
	runs     int                  // deliveries of them
	waits    map[*source]wait     // see checkTurn
}

type simClient struct {
	id               ClientID
	ready            int
	stopped, blocked bool
	sample           int
	timeoutMs        int64
	tag              uint64
	only             uint32 // the one partition whose messages it wants, plus one; 0: all
}

type simPart struct {
	number    uint32
	log       *fold.Cursors
	start     segment.MsgID
	border    fold.Border   // the last place where the channel was told that the log begins there
	end       segment.MsgID // of the log
	visible   segment.MsgID // the visible end that the channel was told
	confirmed map[segment.MsgID]bool
	flight    map[segment.MsgID]ClientID
	attempts  map[segment.MsgID]int
	due       map[segment.MsgID]int64  // ns: no delivery before this time
	began     map[segment.MsgID]int64  // ns: when the delivery in flight began
	deadline  map[segment.MsgID]int64  // ns: when it times out
	numbers   map[segment.MsgID]uint64 // of the delivery in flight

	delayed    map[segment.MsgID]bool           // published with a delay: outside of the order
	legacy     map[segment.MsgID]bool           // had an entry when the order changed: the order is not checked
	unsafe     map[segment.MsgID]uint64         // delivered and confirmed by this take (or notTaken), not committed yet
	dead       map[segment.MsgID]uint64         // in the outbox; the take, or notTaken
	deadBefore map[segment.MsgID]uint64         // the take of a dead letter whose message has a newer one, not taken yet
	place      map[segment.MsgID]segment.Offset // offset of the batch that carries it
	batch      map[segment.MsgID]segment.Offset // offset of the batch in which it was delivered in a run
}

func newSim(t *testing.T, busy bool, next func() int) *sim {
	s := &sim{t: t, next: next, busy: busy, now: 1_700_000_000_000 * nsPerMs}
	s.cfg = ChannelConfig{Name: "c", MaxMsgTimeoutMs: 5000, MaxReqTimeoutMs: 9000}
	s.cfg.MaxInFlight = next() % 8
	s.cfg.MaxRanges = 2 + next()%30
	s.cfg.MaxDeferred = 1 + next()%20
	s.cfg.MaxKeyWaiting = 1 + next()%12
	s.cfg.MaxOutbox = 1 + next()%4
	s.cfg.TurnSize = 1 + next()%4
	s.beCalm()
	for i := range 1 + next()%3 {
		p := &simPart{
			number: s.number(i), log: &fold.Cursors{}, confirmed: map[segment.MsgID]bool{}, flight: map[segment.MsgID]ClientID{},
			attempts: map[segment.MsgID]int{}, due: map[segment.MsgID]int64{},
			began: map[segment.MsgID]int64{}, deadline: map[segment.MsgID]int64{},
			numbers: map[segment.MsgID]uint64{},
			delayed: map[segment.MsgID]bool{}, legacy: map[segment.MsgID]bool{}, unsafe: map[segment.MsgID]uint64{},
			dead: map[segment.MsgID]uint64{}, deadBefore: map[segment.MsgID]uint64{}, place: map[segment.MsgID]segment.Offset{},
			batch: map[segment.MsgID]segment.Offset{},
		}
		s.apply(p, fold.Control{Kind: fold.ChannelCreated, Channel: "c"})
		if i == 0 {
			s.apply(p, fold.Control{Kind: fold.ChannelCreated, Channel: "other"})
		}
		s.parts = append(s.parts, p)
	}
	s.recover()
	for range next() % 6 {
		s.configure()
	}
	return s
}

// apply encodes a control and folds the bytes, as the log does.
func (s *sim) apply(p *simPart, ct fold.Control) {
	s.t.Helper()
	if err := p.log.ApplyBodyAt(fold.AppendControl(nil, &ct), p.end, s.lastAt); err != nil {
		s.t.Fatalf("fold: %v", err)
	}
}

func (s *sim) step(ev Event) *Result {
	s.ev = append(s.ev, ev.Kind)
	s.c.Step(s.now, &ev, &s.res)
	return &s.res
}

// expectDiscarded confirms in the model all messages below to that have no entry. The caller calls it after the channel
// did the same.
func (s *sim) expectDiscarded(p *simPart, to segment.MsgID) {
	for id := range min(to, p.end) {
		if s.c.look(batch.MakeID(p.number, id)) == nil {
			p.confirmed[id] = true
		}
	}
}

// states returns the channel's state of every message of the partition.
func (s *sim) states(p *simPart) []entryState {
	out := make([]entryState, p.end)
	for id := range p.end {
		if e := s.c.look(batch.MakeID(p.number, id)); e != nil {
			out[id] = e.state
		}
	}
	return out
}

func (s *sim) pickPart() *simPart { return s.parts[s.next()%len(s.parts)] }

func (s *sim) pickClient() *simClient {
	if len(s.clients) == 0 {
		return nil
	}
	return s.clients[s.next()%len(s.clients)]
}

func (s *sim) pickFlight(p *simPart) (segment.MsgID, ClientID, bool) {
	ids := slices.Sorted(maps.Keys(p.flight))
	if len(ids) == 0 {
		return 0, 0, false
	}
	id := ids[s.next()%len(ids)]
	return id, p.flight[id], true
}

// op does one step, which the next byte chooses.
func (s *sim) op() {
	p := s.pickPart()
	if s.busy && s.next()%2 == 0 {
		s.work(p)
		s.check()
		return
	}
	switch s.next() % 45 {
	case 43, 44:
		s.finishThrough()
	case 42:
		s.giveAway(p)
	case 32, 33, 40:
		s.configure()
	case 41:
		s.crash()
	case 34, 35, 36:
		s.commit(p)
	case 37:
		s.moveDead(p, 1+s.next()%4)
	case 38, 39:
		s.carry(p)
	case 0, 1, 2:
		s.publish(p)
	case 3:
		s.newClient()
	case 4:
		s.clientEvent()
	case 5, 6, 7, 8, 9, 10:
		s.pump(p)
	case 11, 12, 13, 14:
		s.finish(p)
	case 15, 16:
		s.requeue(p)
	case 17:
		if id, owner, ok := s.pickFlight(p); ok {
			if err := s.step(Event{Kind: EvTouch, Client: owner, ID: batch.MakeID(p.number, id)}).Err; err != nil {
				s.t.Fatalf("touch: %v", err)
			}
			p.deadline[id] = min(s.now+s.client(owner).timeoutMs*nsPerMs, p.began[id]+s.cfg.MaxMsgTimeoutMs*nsPerMs) // B48
		}
	case 18, 19:
		s.tick(int64(s.next()*s.next()) * nsPerMs / 4)
	case 20: // an engine whose timer fires on time
		if at, ok := s.c.NextDue(); ok {
			s.tick(max(0, at*nsPerMs-s.now))
		}
	case 21:
		s.paused = !s.paused
		s.step(Event{Kind: EvPause, Flag: s.paused})
	case 22:
		s.skip(!s.skipped)
	case 23:
		s.empty()
	case 24:
		s.reset(p)
	case 25, 26:
		s.take()
	case 27:
		if s.next()%2 == 0 {
			s.take()
		}
		s.recover()
	case 28:
		s.trim(p)
	case 29:
		s.dropOne(p)
	case 30, 31:
		s.topic()
	}
	s.check()
}

func (s *sim) publish(p *simPart) {
	count := s.publishCount()
	first := p.end
	p.end += segment.MsgID(count)
	p.log.Publish(first, uint32(count))
	if s.next()%3 == 0 {
		var ds []fold.DeferredMessage
		for id := first; id < p.end; id++ {
			d := fold.DeferredMessage{ID: id, DueMs: s.now/nsPerMs + int64(s.next()*30), At: segment.Offset(id)}
			p.due[id] = d.DueMs * nsPerMs
			p.delayed[id] = true
			ds = append(ds, d)
		}
		p.log.PublishDeferred(ds)
		s.step(Event{Kind: EvDeferredPublished, Part: p.number, Deferred: ds})
	}
	s.show(p)
}

// show tells the channel a new visible end.
func (s *sim) show(p *simPart) {
	if p.log.TopicPaused {
		return
	}
	p.visible = p.end
	s.step(Event{Kind: EvVisible, Part: p.number, End: p.end})
	if s.skipped {
		s.expectDiscarded(p, p.end)
	}
}

func (s *sim) subscribe(ready, sample int) *simClient {
	s.lastID++
	cl := &simClient{id: s.lastID, ready: ready, timeoutMs: int64(1 + sample*30)}
	if sample%4 == 0 {
		cl.sample = 1 + sample%99
	}
	if sample%8 == 2 {
		cl.tag = uint64(1 + sample%2 + sample/8%2)
	}
	if sample%16 == 11 {
		cl.only = s.parts[sample%len(s.parts)].number + 1
	}
	s.clients = append(s.clients, cl)
	s.step(Event{
		Kind: EvSubscribe, Client: cl.id, MsgTimeoutMs: cl.timeoutMs, SampleRate: cl.sample, Tag: cl.tag, Only: cl.only,
	})
	s.step(Event{Kind: EvReady, Client: cl.id, Count: ready})
	cl.timeoutMs = min(cl.timeoutMs, s.cfg.MaxMsgTimeoutMs)
	return cl
}

func (s *sim) client(id ClientID) *simClient {
	return s.clients[slices.IndexFunc(s.clients, func(cl *simClient) bool { return cl.id == id })]
}

func (s *sim) clientEvent() {
	cl := s.pickClient()
	if cl == nil {
		return
	}
	switch s.next() % 4 {
	case 0:
		s.unsubscribe(cl)
	case 1:
		if cl.ready = s.next() % 8; cl.stopped {
			cl.ready = 0
		}
		s.step(Event{Kind: EvReady, Client: cl.id, Count: cl.ready})
	case 2:
		cl.stopped, cl.ready = true, 0
		s.step(Event{Kind: EvStop, Client: cl.id})
	case 3:
		cl.blocked = !cl.blocked
		s.step(Event{Kind: EvBlocked, Client: cl.id, Flag: cl.blocked})
	}
}

func (s *sim) unsubscribe(cl *simClient) {
	s.step(Event{Kind: EvUnsubscribe, Client: cl.id})
	for _, p := range s.parts {
		for _, id := range slices.Sorted(maps.Keys(p.flight)) {
			if p.flight[id] == cl.id {
				s.returned(p, id)
			}
		}
	}
	s.clients = slices.DeleteFunc(s.clients, func(other *simClient) bool { return other == cl })
}

// returned notes that a message in flight went to the redelivery queue.
func (s *sim) returned(p *simPart, id segment.MsgID) {
	delete(p.flight, id)
	if s.skipped || p.lost(id) {
		p.confirm(id)
		return
	}
	s.died(p, id)
}

func (s *sim) finish(p *simPart) {
	id, owner, ok := s.pickFlight(p)
	if ok && s.busy {
		s.actOnEarlier(p, id, owner)
	}
	switch s.next() % 8 {
	case 0: // B47: not the owner
		if ok {
			if err := s.step(Event{Kind: EvFinish, Client: owner + 1, ID: batch.MakeID(p.number, id)}).Err; !errors.Is(err,
				ErrNotOwner) {
				s.t.Fatalf("a stranger's FIN: %v", err)
			}
		}
	case 1: // B47: not in flight
		id = segment.MsgID(s.next())
		if _, flying := p.flight[id]; !flying {
			err := s.step(Event{Kind: EvFinish, Client: 1, ID: batch.MakeID(p.number, id)}).Err
			if !errors.Is(err, ErrNotInFlight) {
				s.t.Fatalf("FIN of a message not in flight: %v", err)
			}
		}
	default:
		if ok {
			s.finishOne(p, id, owner)
		}
	}
}

func (s *sim) finishOne(p *simPart, id segment.MsgID, owner ClientID) {
	if err := s.step(Event{Kind: EvFinish, Client: owner, ID: batch.MakeID(p.number, id)}).Err; err != nil {
		s.t.Fatalf("FIN: %v", err)
	}
	delete(p.flight, id)
	p.confirm(id)
}

// finishThrough finishes through a delivery that is in flight, or through one that may not be.
func (s *sim) finishThrough() {
	cl := s.pickClient()
	if cl == nil {
		return
	}
	through := uint64(s.next() % 40)
	if id, owner, ok := s.pickFlight(s.parts[0]); ok && s.next()%4 > 0 {
		cl, through = s.client(owner), s.parts[0].numbers[id]
	}
	res := s.step(Event{Kind: EvFinishThrough, Client: cl.id, Seen: through})
	count, found := 0, false
	for _, p := range s.parts {
		for _, id := range slices.Sorted(maps.Keys(p.flight)) {
			if p.flight[id] == cl.id && p.numbers[id] <= through {
				count++
				found = found || p.numbers[id] == through
				delete(p.flight, id)
				p.confirm(id)
			}
		}
	}
	if res.Count != count || found != (res.Err == nil) || !found && !errors.Is(res.Err, ErrNotInFlight) {
		s.t.Fatalf("finished %d through %d, want %d, which is in flight: %v: %v", res.Count, through, count, found, res.Err)
	}
}

func (s *sim) requeue(p *simPart) {
	id, owner, ok := s.pickFlight(p)
	if !ok {
		return
	}
	delay := int64(s.next()%4) * int64(s.next()) * 20
	full := s.c.waiting >= s.cfg.MaxDeferred
	gaps := s.c.part(p.number).ranges.Len() >= s.cfg.MaxRanges-s.cfg.MaxRanges/4
	if s.settings.MaxAttempts != 0 && p.attempts[id] >= int(s.settings.MaxAttempts) || p.lost(id) {
		delay = 0
	}
	err := s.step(Event{Kind: EvRequeue, Client: owner, ID: batch.MakeID(p.number, id), DelayMs: delay}).Err
	switch {
	case delay > 0 && full:
		if !errors.Is(err, ErrTooManyDeferred) {
			s.t.Fatalf("REQ beyond the limit: %v", err)
		}
	case delay > 0 && gaps:
		if !errors.Is(err, ErrTooManyGaps) {
			s.t.Fatalf("REQ with too many gaps: %v", err)
		}
	case err != nil:
		s.t.Fatalf("REQ: %v", err)
	case delay == 0:
		s.returned(p, id)
	default:
		delete(p.flight, id)
		p.due[id] = s.now + min(delay, s.cfg.MaxReqTimeoutMs)*nsPerMs
	}
}

// tick lets time pass. It reads from the channel which messages come back, and checks that only messages in flight or
// waiting do, and none early.
func (s *sim) tick(ns int64) {
	before := make([][]entryState, len(s.parts))
	for i, p := range s.parts {
		before[i] = s.states(p)
	}
	s.now += ns
	s.step(Event{Kind: EvTick})
	if at, ok := s.c.NextDue(); ok && at <= s.now/nsPerMs {
		s.t.Fatalf("after a tick at %d something is due at %d", s.now/nsPerMs, at)
	}
	for i, p := range s.parts {
		for id, was := range before[i] {
			id := segment.MsgID(id)
			e := s.c.look(batch.MakeID(p.number, id))
			switch {
			case was == entryInFlight && e != nil && e.state == entryInFlight:
				if s.now > p.deadline[id]+2*nsPerMs {
					s.t.Fatalf("message %d is %d ns late to time out", id, s.now-p.deadline[id])
				}
			case was == entryInFlight:
				if s.now < p.deadline[id] {
					s.t.Fatalf("message %d timed out %d ns early", id, p.deadline[id]-s.now)
				}
				s.returned(p, id)
			case was == entryWaiting && e != nil && e.state == entryWaiting:
				if s.now > p.due[id]+2*nsPerMs {
					s.t.Fatalf("message %d is %d ns late", id, s.now-p.due[id])
				}
			case was == entryWaiting && s.died(p, id):
			case was == entryDoomed:
			case was == entryWaiting && e == nil:
				if !s.skipped && !p.lost(id) || s.now < p.due[id] {
					s.t.Fatalf("message %d vanished while it waited", id)
				}
				p.confirmed[id] = true
			}
		}
	}
}

func (s *sim) skip(on bool) {
	s.skipped = on
	before := make([][]entryState, len(s.parts))
	for i, p := range s.parts {
		before[i] = s.states(p)
	}
	s.step(Event{Kind: EvSkip, Flag: on})
	for i, p := range s.parts {
		for id, was := range before[i] {
			if on && segment.MsgID(id) < p.visible && (was == 0 || was == entryQueued || was == entryParked) {
				p.confirmed[segment.MsgID(id)] = true
			}
		}
	}
}

func (s *sim) empty() {
	s.step(Event{Kind: EvEmpty})
	for _, p := range s.parts {
		for id := range p.visible {
			p.confirmed[id] = true
			delete(p.flight, id)
			delete(p.due, id)
			delete(p.unsafe, id)
			delete(p.legacy, id)
		}
	}
}

func (s *sim) reset(p *simPart) {
	to := segment.MsgID(s.next()) % (p.end + 3)
	toStart := to < p.start || to == p.start && to < p.visible
	kept := map[segment.MsgID]bool{} // B51: no other place of the log has them
	for id := range p.end {
		e := s.c.look(batch.MakeID(p.number, id))
		switch _, flying := p.flight[id]; {
		case e != nil && e.lane == nil && toStart && id < p.start:
			if kept[id] = !flying || !p.lost(id); flying {
				p.due[id] = s.now
			}
		case e == nil || e.attempts > 0 || !e.outside:
			delete(p.due, id)
		}
	}
	s.forgetModes(p, max(min(to, p.visible), p.start))
	ev := Event{Kind: EvReset, Part: p.number, Msg: to, Start: p.start}
	to = max(min(to, p.visible), p.start) // B67, B56: clamped
	if s.next()%2 == 0 {
		ev.Deferred = p.log.Deferred
		for _, d := range p.log.Deferred {
			if d.ID >= to {
				p.due[d.ID] = d.DueMs * nsPerMs
			}
		}
	}
	s.step(ev)
	clear(p.flight)
	for id := range p.end {
		if delete(p.confirmed, id); id < to && !kept[id] {
			p.confirmed[id] = true
		}
		if !kept[id] {
			delete(p.attempts, id)
		}
	}
	if s.skipped {
		s.expectDiscarded(p, p.visible)
	}
}

// take writes all entries that the channel has for the log. Then the log and the channel must agree on every message.
func (s *sim) take() {
	for _, p := range s.parts {
		s.noteDead(p)
		for s.c.HasControls(p.number) {
			var body []byte
			for _, ct := range s.c.TakeControls(p.number, nil) {
				body = fold.AppendControl(body, &ct)
			}
			p.took(s.c.LastTake(p.number))
			if err := p.log.ApplyBodyAt(body, p.end, 0); err != nil {
				s.t.Fatalf("fold: %v", err)
			}
		}
		if cp := s.c.part(p.number); cp.log.staleDeferrals != 0 || len(cp.log.deferrals) != 0 {
			s.t.Fatalf("after all was taken: %d delays, %d stale", len(cp.log.deferrals), cp.log.staleDeferrals)
		}
		cur := p.log.Channel("c")
		for id := range p.end {
			if cur.IsConfirmed(id) != p.confirmed[id] {
				s.t.Fatalf("message %d: confirmed %v in the log, %v in the channel", id, cur.IsConfirmed(id), p.confirmed[id])
			}
		}
		if cur.Paused != s.paused || cur.Skipped != s.skipped {
			s.t.Fatalf("the log has paused %v, skipped %v; the channel %v, %v", cur.Paused, cur.Skipped, s.paused, s.skipped)
		}
		for _, d := range cur.Requeued {
			if e := s.c.look(batch.MakeID(p.number, d.ID)); (e == nil || e.attempts < d.Attempts) &&
				!fold.HasID(s.c.part(p.number).remembered, d.ID, requeuedID) {
				s.t.Fatalf("the log has a delay %+v that the channel does not know", d)
			}
		}
		s.checkOutbox(p)
		s.checkAttempts(p, cur)
		checkFold(s.t, p.log)
	}
}
