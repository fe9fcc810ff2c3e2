package core

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"penstock/segment"
)

// sim drives a Channel with a sequence of events that bytes decide, beside a naive
// model of every message and beside the fold of the controls that the channel hands
// out. After every event it looks at the state of every message.
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
	ev      []EventKind // what happened, for failures
}

type simClient struct {
	id               ClientID
	ready            int
	stopped, blocked bool
	sample           int
}

type simPart struct {
	number    uint32
	log       *Cursors
	start     segment.MsgID
	end       segment.MsgID // of the log
	visible   segment.MsgID // where the channel was told that it is
	confirmed map[segment.MsgID]bool
	flight    map[segment.MsgID]ClientID
	attempts  map[segment.MsgID]int
	due       map[segment.MsgID]int64 // ms: not to be delivered before
}

func newSim(t *testing.T, next func() int) *sim {
	s := &sim{t: t, next: next, now: 1_700_000_000_000 * nsPerMs}
	s.cfg = ChannelConfig{Name: "c", MaxMsgTimeoutMs: 5000, MaxReqTimeoutMs: 9000}
	s.cfg.MaxInFlight = next() % 8
	s.cfg.MaxRanges = 2 + next()%30
	s.cfg.MaxDeferred = 1 + next()%20
	for i := range 1 + next()%2 {
		p := &simPart{
			number: uint32(3 * i), log: &Cursors{}, confirmed: map[segment.MsgID]bool{}, flight: map[segment.MsgID]ClientID{},
			attempts: map[segment.MsgID]int{}, due: map[segment.MsgID]int64{},
		}
		s.apply(p, Control{Kind: ChannelCreated, Channel: "c"})
		if i == 0 {
			s.apply(p, Control{Kind: ChannelCreated, Channel: "other"})
		}
		s.parts = append(s.parts, p)
	}
	s.recover()
	return s
}

// apply sends a control through its bytes into the fold, as the log does.
func (s *sim) apply(p *simPart, ct Control) {
	s.t.Helper()
	if err := p.log.ApplyBody(AppendControl(nil, &ct), p.end); err != nil {
		s.t.Fatalf("fold: %v", err)
	}
}

func (s *sim) step(ev Event) *Result {
	s.ev = append(s.ev, ev.Kind)
	s.c.Step(s.now, &ev, &s.res)
	return &s.res
}

// recover starts a new channel from the folds, as after a crash.
func (s *sim) recover() {
	s.c = NewChannel(s.cfg)
	s.clients, s.paused, s.skipped = nil, false, false
	for _, p := range s.parts {
		cur := p.log.Channel("c")
		p.visible = p.end
		if p.log.TopicPaused {
			p.visible = p.log.HeldFrom
		}
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
			p.due[d.ID] = d.DueMs
		}
		for _, d := range cur.Requeued {
			p.due[d.ID], p.attempts[d.ID] = d.DueMs, int(d.Attempts)
		}
		s.paused, s.skipped = s.paused || cur.Paused, s.skipped || cur.Skipped
		s.step(Event{Kind: EvAddPartition, Part: p.number, Cursor: cur, Start: p.start, End: p.visible, Deferred: p.log.Deferred})
	}
	for _, p := range s.parts {
		s.expectDiscarded(p, p.start) // what retention took, and what the skip takes
		if s.skipped {
			s.expectDiscarded(p, p.visible)
		}
	}
	s.check()
}

// expectDiscarded notes in the model that what is below to and has no entry is
// confirmed. It is called when the channel has done so.
func (s *sim) expectDiscarded(p *simPart, to segment.MsgID) {
	for id := range min(to, p.end) {
		if s.c.entries.get(MakeID(p.number, id)) == nil {
			p.confirmed[id] = true
		}
	}
}

// states returns how the channel holds every message of the partition.
func (s *sim) states(p *simPart) []entryState {
	out := make([]entryState, p.end)
	for id := range p.end {
		if e := s.c.entries.get(MakeID(p.number, id)); e != nil {
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

// op does one thing.
func (s *sim) op() {
	p := s.pickPart()
	switch s.next() % 32 {
	case 0, 1, 2:
		s.publish(p)
	case 3:
		s.subscribe(1+s.next()%8, s.next())
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
			if err := s.step(Event{Kind: EvTouch, Client: owner, ID: MakeID(p.number, id)}).Err; err != nil {
				s.t.Fatalf("touch: %v", err)
			}
		}
	case 18, 19, 20:
		s.tick(int64(s.next()*s.next()) * nsPerMs / 4)
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
	count := 1 + s.next()%6
	first := p.end
	p.end += segment.MsgID(count)
	p.log.Publish(first, uint32(count))
	if s.next()%3 == 0 {
		var ds []DeferredMessage
		for id := first; id < p.end; id++ {
			d := DeferredMessage{ID: id, DueMs: s.now/nsPerMs + int64(s.next()*30), At: segment.Offset(id)}
			p.due[id] = d.DueMs
			ds = append(ds, d)
		}
		p.log.PublishDeferred(ds)
		s.step(Event{Kind: EvDeferredPublished, Part: p.number, Deferred: ds})
	}
	s.show(p)
}

// show tells the channel how far it may read.
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
	cl := &simClient{id: s.lastID, ready: ready}
	if sample%4 == 0 {
		cl.sample = 1 + sample%99
	}
	s.clients = append(s.clients, cl)
	s.step(Event{Kind: EvSubscribe, Client: cl.id, MsgTimeoutMs: int64(1 + sample*10), SampleRate: cl.sample})
	s.step(Event{Kind: EvReady, Client: cl.id, Count: ready})
	return cl
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

// returned notes that a message went from in flight to the redelivery queue.
func (s *sim) returned(p *simPart, id segment.MsgID) {
	delete(p.flight, id)
	if s.skipped {
		p.confirmed[id] = true
	}
}

// pump offers or redelivers, and holds every answer against the model.
func (s *sim) pump(p *simPart) Decision {
	if s.next()%2 == 0 && s.c.queue.count > 0 {
		head := s.c.queue.first.id
		res := s.step(Event{Kind: EvRedeliver})
		switch res.Decision {
		case Deliver:
			if res.ID != head {
				s.t.Fatalf("redelivers %v, %v is first", res.ID, head)
			}
			s.delivered(res)
		case Skip:
			s.partOf(head).confirmed[head.MsgID()] = true
		case Hold:
			s.checkHold(p, res.Why)
		}
		return res.Decision
	}
	at := s.c.ReadFrom(p.number)
	res := s.step(Event{Kind: EvOffer, Part: p.number, Msg: at, At: segment.Offset(at), Index: 1})
	switch res.Decision {
	case Deliver:
		if res.ID != MakeID(p.number, at) {
			s.t.Fatalf("delivers %v, offered %d", res.ID, at)
		}
		s.delivered(res)
	case Skip:
		p.confirmed[at] = true
	case Hold:
		if res.Why == HoldEnd && at >= p.visible {
			break
		}
		s.checkHold(p, res.Why)
	}
	return res.Decision
}

func (s *sim) partOf(id ID) *simPart {
	for _, p := range s.parts {
		if p.number == id.Partition() {
			return p
		}
	}
	s.t.Fatalf("message %v of no partition", id)
	return nil
}

func (s *sim) flightOf(cl ClientID) (n int) {
	for _, p := range s.parts {
		for _, owner := range p.flight {
			if owner == cl {
				n++
			}
		}
	}
	return n
}

// anyCredit is the model's word on whether somebody could take a message.
func (s *sim) anyCredit() bool {
	total, any := 0, false
	for _, cl := range s.clients {
		n := s.flightOf(cl.id)
		total += n
		any = any || !cl.stopped && !cl.blocked && n < cl.ready
	}
	return any && (s.cfg.MaxInFlight == 0 || total < s.cfg.MaxInFlight)
}

func (s *sim) checkHold(p *simPart, why HoldReason) {
	s.t.Helper()
	ok := false
	switch why {
	case HoldPaused:
		ok = s.paused
	case HoldNoCredit:
		ok = !s.anyCredit()
	case HoldRanges:
		ok = s.c.part(p.number).ranges.Len() >= s.cfg.MaxRanges && s.c.part(p.number).next > s.c.part(p.number).confirmed
	}
	if !ok {
		s.t.Fatalf("holds for reason %d without cause", why)
	}
}

// delivered checks a delivery against everything a client may rely on.
func (s *sim) delivered(res *Result) {
	s.t.Helper()
	p, id := s.partOf(res.ID), res.ID.MsgID()
	i := slices.IndexFunc(s.clients, func(cl *simClient) bool { return cl.id == res.Client })
	switch {
	case i < 0:
		s.t.Fatalf("message %d goes to client %d, which is gone", id, res.Client)
	case s.clients[i].stopped || s.clients[i].blocked || s.flightOf(res.Client) >= s.clients[i].ready:
		s.t.Fatalf("message %d goes to client %d, which has no credit", id, res.Client)
	case !s.anyCredit() || s.paused || s.skipped:
		s.t.Fatalf("message %d was delivered; paused %v, skipped %v, credit %v", id, s.paused, s.skipped, s.anyCredit())
	case p.confirmed[id] || id >= p.visible:
		s.t.Fatalf("message %d was delivered; confirmed %v, visible end %d", id, p.confirmed[id], p.visible)
	case s.now < p.due[id]*nsPerMs:
		s.t.Fatalf("message %d was delivered %d ms early", id, p.due[id]-s.now/nsPerMs)
	case int(res.Attempts) != p.attempts[id]+1:
		s.t.Fatalf("message %d: attempts %d, delivered %d times before", id, res.Attempts, p.attempts[id])
	case res.HasAt && res.At != segment.Offset(id):
		s.t.Fatalf("message %d lies at %d, not at %d", id, id, res.At)
	}
	if _, twice := p.flight[id]; twice {
		s.t.Fatalf("message %d is in flight twice", id)
	}
	p.flight[id] = res.Client
	p.attempts[id]++
	delete(p.due, id)
}

func (s *sim) finish(p *simPart) {
	id, owner, ok := s.pickFlight(p)
	switch s.next() % 8 {
	case 0: // B47: not the owner
		if ok {
			if err := s.step(Event{Kind: EvFinish, Client: owner + 1, ID: MakeID(p.number, id)}).Err; !errors.Is(err, ErrNotOwner) {
				s.t.Fatalf("a stranger's FIN: %v", err)
			}
		}
	case 1: // B47: not in flight
		id = segment.MsgID(s.next())
		if _, flying := p.flight[id]; !flying {
			if err := s.step(Event{Kind: EvFinish, Client: 1, ID: MakeID(p.number, id)}).Err; !errors.Is(err, ErrNotInFlight) {
				s.t.Fatalf("FIN of a message not in flight: %v", err)
			}
		}
	default:
		if ok {
			if err := s.step(Event{Kind: EvFinish, Client: owner, ID: MakeID(p.number, id)}).Err; err != nil {
				s.t.Fatalf("FIN: %v", err)
			}
			delete(p.flight, id)
			p.confirmed[id] = true
		}
	}
}

func (s *sim) requeue(p *simPart) {
	id, owner, ok := s.pickFlight(p)
	if !ok {
		return
	}
	delay := int64(s.next()%4) * int64(s.next()) * 20
	full := s.c.waiting >= s.cfg.MaxDeferred
	err := s.step(Event{Kind: EvRequeue, Client: owner, ID: MakeID(p.number, id), DelayMs: delay}).Err
	switch {
	case delay > 0 && full:
		if !errors.Is(err, ErrTooManyDeferred) {
			s.t.Fatalf("REQ beyond the limit: %v", err)
		}
	case err != nil:
		s.t.Fatalf("REQ: %v", err)
	case delay == 0:
		s.returned(p, id)
	default:
		delete(p.flight, id)
		p.due[id] = s.now/nsPerMs + min(delay, s.cfg.MaxReqTimeoutMs)
	}
}

// tick lets time pass; which messages come back is read from the channel and
// checked: only from in flight or waiting, and never before their time.
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
			e := s.c.entries.get(MakeID(p.number, id))
			switch {
			case was == entryInFlight && (e == nil || e.state != entryInFlight):
				s.returned(p, id)
			case was == entryWaiting && e == nil:
				if !s.skipped || s.now < p.due[id]*nsPerMs {
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
			if on && segment.MsgID(id) < p.visible && (was == 0 || was == entryQueued) {
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
		}
	}
}

func (s *sim) reset(p *simPart) {
	to := segment.MsgID(s.next()) % (p.end + 3)
	for id := range p.end {
		if e := s.c.entries.get(MakeID(p.number, id)); e == nil || e.attempts > 0 || e.state == entryQueued {
			delete(p.due, id)
		}
	}
	ev := Event{Kind: EvReset, Part: p.number, Msg: to, Start: p.start}
	to = max(min(to, p.visible), p.start) // B67, B56: clamped
	if s.next()%2 == 0 {
		ev.Deferred = p.log.Deferred
		for _, d := range p.log.Deferred {
			if d.ID >= to {
				p.due[d.ID] = d.DueMs
			}
		}
	}
	s.step(ev)
	clear(p.flight)
	clear(p.attempts)
	for id := range p.end {
		if delete(p.confirmed, id); id < to {
			p.confirmed[id] = true
		}
	}
	if s.skipped {
		s.expectDiscarded(p, p.visible)
	}
}

// take writes everything the channel has for the log; then log and channel agree on
// every message.
func (s *sim) take() {
	for _, p := range s.parts {
		for s.c.HasControls(p.number) {
			var body []byte
			for _, ct := range s.c.TakeControls(p.number, nil) {
				body = AppendControl(body, &ct)
			}
			if err := p.log.ApplyBody(body, p.end); err != nil {
				s.t.Fatalf("fold: %v", err)
			}
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
			if e := s.c.entries.get(MakeID(p.number, d.ID)); e == nil || e.attempts < d.Attempts {
				s.t.Fatalf("the log has a delay %+v that the channel does not know", d)
			}
		}
		checkFold(s.t, p.log)
	}
}

func (s *sim) trim(p *simPart) {
	p.start = max(p.start, segment.MsgID(s.next())%(p.visible+1))
	s.step(Event{Kind: EvTrimmed, Part: p.number, Start: p.start})
	s.expectDiscarded(p, p.start)
}

func (s *sim) dropOne(p *simPart) {
	if p.visible == 0 {
		return
	}
	id := segment.MsgID(s.next()) % p.visible
	s.step(Event{Kind: EvDrop, ID: MakeID(p.number, id)})
	delete(p.flight, id)
	p.confirmed[id] = true
}

// topic pauses, unpauses or empties the topic: in all partitions, through the log.
func (s *sim) topic() {
	what := s.next() % 3
	for _, p := range s.parts {
		switch {
		case p.log.TopicPaused && what == 0:
			from := p.log.HeldFrom
			s.apply(p, Control{Kind: TopicEmptied, ID: p.end})
			s.step(Event{Kind: EvDropped, Part: p.number, Msg: from, End: p.end})
			for id := from; id < p.end; id++ {
				p.confirmed[id] = true
				delete(p.flight, id)
			}
		case p.log.TopicPaused:
			s.apply(p, Control{Kind: TopicPaused})
			s.show(p)
		default:
			s.apply(p, Control{Kind: TopicPaused, Flag: true, ID: p.end})
		}
	}
}

// check asserts that every message is in exactly one state, that the channel and
// the model agree on it, and that every number is the sum of what it counts.
func (s *sim) check() {
	s.t.Helper()
	var unread, entries, flying, waiting int
	for _, p := range s.parts {
		cp := s.c.part(p.number)
		checkRanges(s.t, &cp.ranges)
		if first, ok := cp.ranges.First(); ok && first.From <= cp.confirmed {
			s.t.Fatalf("ranges %v touch confirmed %d", cp.ranges.Ranges(), cp.confirmed)
		}
		if cp.end != p.visible {
			s.t.Fatalf("visible end %d, want %d", cp.end, p.visible)
		}
		for id := range p.end {
			e := s.c.entries.get(MakeID(p.number, id))
			done := id < cp.confirmed || cp.ranges.Contains(id)
			_, inFlight := p.flight[id]
			switch {
			case done != p.confirmed[id]:
				s.t.Fatalf("message %d: confirmed %v, want %v", id, done, p.confirmed[id])
			case e != nil && done:
				s.t.Fatalf("message %d is confirmed and in state %d", id, e.state)
			case inFlight != (e != nil && e.state == entryInFlight):
				s.t.Fatalf("message %d: in flight %v in the model, entry %+v", id, inFlight, e)
			case e == nil && !done && id < cp.next:
				s.t.Fatalf("message %d is lost: below the cursor %d, not confirmed, no entry", id, cp.next)
			case e == nil && !done && id < p.visible:
				unread++
			case e != nil:
				entries++
				if e.state == entryInFlight {
					flying++
				} else if e.state != entryQueued {
					waiting++
				}
				if e.timer.Scheduled() != (e.state == entryInFlight || e.state == entryWaiting) {
					s.t.Fatalf("message %d in state %d: timer %v", id, e.state, e.timer.Scheduled())
				}
			}
		}
		if cp.next < cp.end && (p.confirmed[cp.next] || s.c.entries.get(MakeID(p.number, cp.next)) != nil) {
			s.t.Fatalf("the cursor stands at %d, which needs no reading", cp.next)
		}
	}
	if s.c.entries.count != entries || s.c.inFlight != flying || s.c.waiting != waiting || s.c.queue.count != entries-flying-waiting {
		s.t.Fatalf("%d entries, %d in flight, %d waiting, %d queued; counted %d, %d, %d",
			s.c.entries.count, s.c.inFlight, s.c.waiting, s.c.queue.count, entries, flying, waiting)
	}
	if want := uint64(unread + s.c.queue.count); s.c.Depth() != want {
		s.t.Fatalf("depth %d, want %d", s.c.Depth(), want) // B66
	}
	if s.c.Hungry() != (s.anyCredit() && !s.paused) {
		s.t.Fatalf("hungry %v, credit %v, paused %v", s.c.Hungry(), s.anyCredit(), s.paused)
	}
}

// drain takes all obstacles away: every message must then be delivered to the last
// client and be confirmed (B44), and the log must know.
func (s *sim) drain() {
	for len(s.clients) > 0 {
		s.unsubscribe(s.clients[0])
	}
	s.paused = false
	s.step(Event{Kind: EvPause})
	s.skip(false)
	for _, p := range s.parts {
		s.apply(p, Control{Kind: TopicPaused})
		s.show(p)
	}
	s.tick(3600_000 * nsPerMs)
	cl := s.subscribe(1<<20, 1)
	for idle := 0; idle < 20*len(s.parts); {
		p := s.pickPart()
		if s.pump(p) == Hold {
			s.nextPump(&idle, p)
		}
		for _, p := range s.parts {
			for _, id := range slices.Sorted(maps.Keys(p.flight)) {
				if err := s.step(Event{Kind: EvFinish, Client: cl.id, ID: MakeID(p.number, id)}).Err; err != nil {
					s.t.Fatalf("FIN at the end: %v", err)
				}
				delete(p.flight, id)
				p.confirmed[id] = true
			}
		}
	}
	s.check()
	s.take()
	for _, p := range s.parts {
		if s.c.OldestUnconfirmed(p.number) != p.end || s.c.entries.count != 0 {
			s.t.Fatalf("drained: confirmed up to %d of %d, %d entries are left", s.c.OldestUnconfirmed(p.number), p.end, s.c.entries.count)
		}
	}
}

// nextPump changes what the bytes decide once they have run out, so that drain
// alternates between partitions and doors.
func (s *sim) nextPump(idle *int, p *simPart) {
	*idle++
	turn := *idle
	calls := 0
	s.next = func() int {
		calls++
		if calls%2 == 1 {
			return turn
		}
		return turn / len(s.parts)
	}
}

func runSim(t *testing.T, next func() int, more func() bool) {
	s := newSim(t, next)
	defer func() {
		if t.Failed() {
			t.Logf("events: %v", s.ev[max(0, len(s.ev)-40):])
		}
	}()
	for more() {
		s.op()
	}
	s.drain()
}

// Bytes drive the machine (B44 to B56, B66, B67 all at once).
func FuzzChannel(f *testing.F) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		data := make([]byte, 400)
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 3000 {
			return
		}
		i := 0
		next := func() int {
			if i >= len(data) {
				return 0
			}
			i++
			return int(data[i-1])
		}
		runSim(t, next, func() bool { return i < len(data) })
	})
}

func TestChannelRandom(t *testing.T) {
	seeds := uint64(400)
	if testing.Short() {
		seeds = 50
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 4))
		ops := 0
		runSim(t, func() int { return rng.IntN(256) }, func() bool { ops++; return ops < 400 })
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
