package delivery

import (
	"math/bits"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"penstock/batch"
	"penstock/internal/node/fold"
	"penstock/segment"
)

// beCalm decides whether the simulation is calm: a channel without settings and with few clients, which take many
// messages, so that most of them come in runs.
func (s *sim) beCalm() {
	if s.calm = s.next()%2 == 0; s.calm {
		s.cfg.MaxInFlight = s.next() % 4 * 40
		s.cfg.MaxRanges = 2 + s.next()
	}
}

func (s *sim) newClient() {
	switch {
	case !s.calm:
		s.subscribe(1+s.next()%8, s.next())
	case len(s.clients) < 2:
		s.subscribe(8+s.next()%120, 1+2*(s.next()%120)) // odd: without a sample or a tag
	}
}

func (s *sim) publishCount() int {
	if s.calm {
		return 1 + s.next()%30
	}
	return 1 + s.next()%6
}

// pumpRun delivers a run, as long as NextRun allows or shorter. It returns false if none was delivered.
func (s *sim) pumpRun(p *simPart) bool {
	at := s.c.ReadFrom(p.number)
	r := s.c.NextRun(p.number)
	n := 0
	for n < r.Count && tagOf(at+segment.MsgID(n)) == tagOf(at) && !(s.filter && (at+segment.MsgID(n))%7 == 3) {
		n++
	}
	if s.calm {
		n = r.Count
	}
	if n == 0 || s.next()%4 == 0 {
		return false
	}
	if s.next()%2 == 0 {
		n = 1 + s.next()%n
	}
	ev := Event{Kind: EvOfferRun, Part: p.number, Msg: at, Count: n, At: segment.Offset(at), Index: 1, Tag: tagOf(at)}
	if res := s.step(ev); res.Decision != Deliver || res.Client != r.Client || res.Count != n {
		s.t.Fatalf("a run of %d to client %d: %+v", n, r.Client, res)
	}
	for i := range n {
		id := at + segment.MsgID(i)
		p.batch[id] = segment.Offset(at)
		s.delivered(&Result{
			Client: r.Client, ID: batch.MakeID(p.number, id), Number: r.Number + uint64(i), Attempts: 1, HasAt: true,
			At: segment.Offset(at),
		})
	}
	s.runs++
	return true
}

// ranAt says whether a message was delivered in a run out of the batch at an offset.
func (p *simPart) ranAt(id segment.MsgID, at segment.Offset) bool {
	was, ok := p.batch[id]
	return ok && was == at
}

// entryCount is how many messages have an entry, or are in flight in a run.
func (s *sim) entryCount() int {
	n := s.c.entries.count
	for _, p := range s.parts {
		for _, e := range s.c.part(p.number).runs.r[s.c.part(p.number).runs.head:] {
			n += bits.OnesCount64(e.run)
		}
	}
	return n
}

// checkRuns checks the invariants of runs, and that the deliveries of each client are in the order of their numbers.
func (s *sim) checkRuns() {
	s.t.Helper()
	for _, p := range s.parts {
		cp := s.c.part(p.number)
		end := batch.MakeID(p.number, 0)
		for _, e := range cp.runs.r[cp.runs.head:] {
			if e.id < end || e.run == 0 || e.state != entryInFlight || e.id.MsgID() >= cp.next {
				s.t.Fatalf("a run %x from %v on, below %d, behind one that ends at %v", e.run, e.id, cp.next, end)
			}
			end = e.id + batch.ID(bits.Len64(e.run))
		}
	}
	for _, cl := range s.c.clients.all {
		last, n := uint64(0), 0
		for e := cl.flight.first; e != nil; e = e.next {
			e.each(func(id batch.ID, number uint64) {
				if p := s.partOf(id); number <= last || number != p.numbers[id.MsgID()] {
					s.t.Fatalf("delivery %d of %v stands behind %d", number, id, last)
				}
				last = number
				n++
			})
		}
		if n != cl.inFlight || n != s.flightOf(cl.id) {
			s.t.Fatalf("client %d has %d in flight, counted %d", cl.id, n, cl.inFlight)
		}
	}
}

// twins are two channels that get the same events, but for runs: singles gets their messages one by one. All answers
// must be equal. Times are even for deliveries and odd for delays, and no two steps happen at the same time, because
// messages that are due in the same millisecond may come in any order.
type twins struct {
	t             *testing.T
	rng           *rand.Rand
	runs, singles *Channel
	now           int64 // ms
	end           segment.MsgID
	clients       []ClientID
	lastID        ClientID
	settings      fold.ChannelSettings
	was           []Event
	ran, gone     int
}

func (w *twins) step(ev Event) Result {
	w.t.Helper()
	w.was = append(w.was, ev)
	var a, b Result
	w.runs.Step(w.now*nsPerMs, &ev, &a)
	w.singles.Step(w.now*nsPerMs, &ev, &b)
	if a != b {
		w.t.Fatalf("event %d of kind %d:\nruns    %+v\nsingles %+v", len(w.was), ev.Kind, a, b)
	}
	return a
}

// offer delivers a run to one, and its messages one by one to the other.
func (w *twins) offer() bool {
	at := w.runs.ReadFrom(0)
	r := w.runs.NextRun(0)
	ev := Event{Kind: EvOffer, Msg: at, At: segment.Offset(at), Index: 3, Tag: uint64(at / 50 % 2)}
	if r.Count == 0 {
		return w.step(ev).Decision != Hold
	}
	n := 1 + w.rng.IntN(r.Count)
	for i := range n {
		var res Result
		w.singles.Step(w.now*nsPerMs, &ev, &res)
		if res.Decision != Deliver || res.Client != r.Client || res.Number != r.Number+uint64(i) {
			w.t.Fatalf("message %d of a run %+v: %+v", i, r, res)
		}
		ev.Msg, ev.Index = ev.Msg+1, ev.Index+1
	}
	run := Event{Kind: EvOfferRun, Msg: at, Count: n, At: ev.At, Index: 3, Tag: ev.Tag}
	w.was = append(w.was, run)
	var res Result
	w.runs.Step(w.now*nsPerMs, &run, &res)
	w.ran++
	return true
}

// redeliver offers a queued message, or finds that it cannot be read.
func (w *twins) redeliver() {
	w.step(Event{Kind: EvStall})
	next := w.step(Event{Kind: EvNext, Flag: w.rng.IntN(2) == 0})
	switch {
	case next.Decision != Read:
	case w.rng.IntN(4) == 0:
		w.step(Event{Kind: EvUnread, ID: next.ID, DelayMs: 101})
	default:
		at := next.ID.MsgID()
		w.step(Event{Kind: EvOffer, Flag: true, Msg: at, Tag: uint64(at / 50 % 2), Unwanted: w.rng.IntN(20) == 0})
	}
}

func (w *twins) client() ClientID {
	if len(w.clients) == 0 {
		return 1
	}
	return w.clients[w.rng.IntN(len(w.clients))]
}

// id is one of a message that is mostly in flight.
func (w *twins) id() batch.ID {
	var all []batch.ID
	w.singles.EachInFlight(func(m InFlightMessage) { all = append(all, m.ID) })
	if len(all) == 0 || w.rng.IntN(20) == 0 {
		return batch.MakeID(0, segment.MsgID(w.rng.IntN(int(w.end)+1)))
	}
	return all[w.rng.IntN(len(all))]
}

// number is mostly 0, and sometimes the number of some delivery.
func (w *twins) number() uint64 {
	if w.rng.IntN(3) > 0 || len(w.clients) == 0 {
		return 0
	}
	var all []uint64
	for _, e := range w.singles.clients.byID[w.client()].flight.list() {
		all = append(all, e.number)
	}
	if len(all) == 0 {
		return 1
	}
	return all[w.rng.IntN(len(all))]
}

// list returns the entries.
func (l *entryList) list() (all []*entry) {
	for e := l.first; e != nil; e = e.next {
		all = append(all, e)
	}
	return all
}

func (w *twins) subscribe() {
	if len(w.clients) == 2 {
		return
	}
	w.lastID++
	w.clients = append(w.clients, w.lastID)
	ev := Event{Kind: EvSubscribe, Client: w.lastID, MsgTimeoutMs: 2000}
	if w.rng.IntN(30) == 0 {
		ev.Tag = 1
	}
	if w.rng.IntN(12) == 0 {
		ev.SampleRate = 60
	}
	w.step(ev)
	w.step(Event{Kind: EvReady, Client: w.lastID, Count: 1 + w.rng.IntN(300)})
}

func (w *twins) op() {
	w.now += 2 * int64(1+w.rng.IntN(50))
	if w.rng.IntN(20) == 0 {
		w.now += 2000
	}
	had := len(w.runs.parts[0].runs.r)
	w.act()
	if len(w.runs.parts[0].runs.r) < had {
		w.gone++
	}
	w.compare()
}

func (w *twins) act() {
	switch w.rng.IntN(32) {
	case 0, 1, 2:
		w.end += segment.MsgID(1 + w.rng.IntN(200))
		if w.rng.IntN(10) == 0 {
			d := fold.DeferredMessage{ID: w.end - 1, DueMs: w.now + 1 + 2*w.rng.Int64N(2000), At: 7}
			w.step(Event{Kind: EvDeferredPublished, Deferred: []fold.DeferredMessage{d}})
		}
		w.step(Event{Kind: EvVisible, End: w.end})
	case 3, 4:
		w.subscribe()
	case 5:
		if w.rng.IntN(4) == 0 && len(w.clients) > 0 {
			w.step(Event{Kind: EvUnsubscribe, Client: w.clients[0]})
			w.clients = w.clients[1:]
		}
	case 6:
		w.step(Event{Kind: EvReady, Client: w.client(), Count: w.rng.IntN(300)})
	case 7:
		w.step(Event{Kind: EvBlocked, Client: w.client(), Flag: w.rng.IntN(3) == 0})
	case 8, 9, 10, 11, 12:
		for range 1 + w.rng.IntN(5) {
			w.offer()
			w.now += 2
		}
	case 13, 14, 15:
		w.redeliver()
	case 16, 17, 18:
		for range 1 + w.rng.IntN(20) {
			w.step(Event{Kind: EvFinish, Client: w.client(), ID: w.id(), Number: w.number()})
		}
	case 19, 20:
		var numbers []uint64
		w.singles.EachClient(func(s ClientStats) { numbers = append(numbers, s.MessageCount) })
		if len(numbers) > 0 {
			seen := numbers[w.rng.IntN(len(numbers))]
			seen -= min(seen, uint64(w.rng.IntN(200)))
			w.checkThrough(w.client(), seen)
			w.step(Event{Kind: EvFinishThrough, Client: w.client(), Seen: seen})
		}
	case 21, 22:
		delay := w.rng.Int64N(2) * (2*w.rng.Int64N(500) + 1)
		w.step(Event{Kind: EvRequeue, Client: w.client(), ID: w.id(), DelayMs: delay, Number: w.number()})
	case 23:
		w.step(Event{Kind: EvTouch, Client: w.client(), ID: w.id()})
	case 24, 25, 26:
		w.step(Event{Kind: EvTick})
	default:
		w.rare()
	}
}

// rare are events about the channel as a whole, and those that end deliveries without the client.
func (w *twins) rare() {
	switch w.rng.IntN(16) {
	case 0, 1:
		w.step(Event{Kind: EvDrop, ID: batch.MakeID(0, segment.MsgID(w.rng.IntN(int(w.end))))})
	case 2:
		w.step(Event{Kind: EvGone, ID: w.id()})
	case 3:
		w.step(Event{Kind: EvTrimmed, Start: segment.MsgID(w.rng.IntN(int(w.end)))})
	case 4:
		from := segment.MsgID(w.rng.IntN(int(w.end)))
		w.step(Event{Kind: EvDropped, Msg: from, End: min(from+9, w.end)})
	case 5:
		w.step(Event{Kind: EvReset, Msg: segment.MsgID(w.rng.IntN(int(w.end)))})
	case 6:
		if w.rng.IntN(4) == 0 {
			w.step(Event{Kind: EvEmpty})
		}
	case 7, 8:
		w.step(Event{Kind: EvPause, Flag: w.rng.IntN(8) == 0})
	case 9:
		w.step(Event{Kind: EvSkip, Flag: w.rng.IntN(8) == 0})
	case 10, 11:
		w.settings.Version++
		w.settings.Order = fold.OrderNone
		if w.settings.MaxAttempts = uint16(w.rng.IntN(6) / 5 * 3); w.rng.IntN(6) == 0 {
			w.settings.Order = fold.OrderPartition
		}
		s := w.settings
		w.step(Event{Kind: EvConfigure, Settings: &s})
	case 12:
		w.step(Event{Kind: EvReturn, Client: w.client(), ID: w.id(), Seen: 1})
	case 13:
		d := fold.DeferredMessage{ID: w.id().MsgID(), At: 9}
		w.step(Event{Kind: EvCarried, Deferred: []fold.DeferredMessage{d}})
	default:
		a, b := w.runs.TakeControls(0, nil), w.singles.TakeControls(0, nil)
		if !reflect.DeepEqual(a, b) {
			w.t.Fatalf("controls\nruns    %+v\nsingles %+v", a, b)
		}
		w.step(Event{Kind: EvConfirmsCommitted, Take: w.runs.LastTake(0)})
	}
}

// checkThrough checks that both name the same messages that a FinishThrough would finish.
func (w *twins) checkThrough(cl ClientID, number uint64) {
	var a, b []batch.ID
	w.runs.EachThrough(cl, number, func(id batch.ID) { a = append(a, id) })
	w.singles.EachThrough(cl, number, func(id batch.ID) { b = append(b, id) })
	if !slices.Equal(a, b) {
		w.t.Fatalf("through %d: runs %v, singles %v", number, a, b)
	}
}

// compare compares all that can be asked.
func (w *twins) compare() {
	w.t.Helper()
	if a, b := w.runs.Stats(), w.singles.Stats(); a != b {
		w.t.Fatalf("counts\nruns    %+v\nsingles %+v", a, b)
	}
	var a, b []InFlightMessage
	w.runs.EachInFlight(func(m InFlightMessage) { a = append(a, m) })
	w.singles.EachInFlight(func(m InFlightMessage) { b = append(b, m) })
	if !slices.Equal(a, b) {
		i := 0
		for i < min(len(a), len(b)) && a[i] == b[i] {
			i++
		}
		w.t.Fatalf("in flight, from %d on:\nruns    %+v\nsingles %+v\nafter %+v",
			i, a[i:min(len(a), i+4)], b[i:min(len(b), i+4)], w.was[max(0, len(w.was)-4):])
	}
	var c, d []ClientStats
	w.runs.EachClient(func(s ClientStats) { c = append(c, s) })
	w.singles.EachClient(func(s ClientStats) { d = append(d, s) })
	if !slices.Equal(c, d) {
		w.t.Fatalf("clients\nruns    %+v\nsingles %+v", c, d)
	}
	for _, cl := range w.clients {
		if x, y := w.runs.ClientInFlight(cl), w.singles.ClientInFlight(cl); x != y {
			w.t.Fatalf("client %d has %d in flight, or %d", cl, x, y)
		}
	}
	id := w.id()
	x, knownX := w.runs.Find(id)
	y, knownY := w.singles.Find(id)
	dueX, anyX := w.runs.NextDue()
	dueY, anyY := w.singles.NextDue()
	if x != y || knownX != knownY || dueX != dueY || anyX != anyY || w.runs.Hungry() != w.singles.Hungry() ||
		w.runs.ReadFrom(0) != w.singles.ReadFrom(0) || w.runs.OldestUnconfirmed(0) != w.singles.OldestUnconfirmed(0) {
		w.t.Fatalf("message %v: %+v and %+v; due %d and %d", id, x, y, dueX, dueY)
	}
}

// A channel that delivers runs answers everything as one that delivers the same messages one by one.
func TestRunsAreLikeSingles(t *testing.T) {
	seeds := uint64(400)
	if testing.Short() {
		seeds = 40
	}
	ran, gone := 0, 0
	for seed := range seeds {
		w := &twins{t: t, rng: rand.New(rand.NewPCG(seed, 5)), now: 1_700_000_000_000, end: 1}
		cfg := ChannelConfig{Name: "c", MaxRanges: 3 + w.rng.IntN(200), MaxInFlight: w.rng.IntN(3) * 100}
		w.runs, w.singles = NewChannel(cfg), NewChannel(cfg)
		w.step(Event{Kind: EvAddPartition, Cursor: &fold.Cursor{}, End: 1})
		for range 300 {
			w.op()
		}
		ran, gone = ran+w.ran, gone+w.gone
	}
	if n := int(seeds); ran < 8*n || gone < 2*n {
		t.Errorf("%d runs, of which %d ended while the test looked: too few to say anything", ran, gone)
	}
}
