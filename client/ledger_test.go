package client

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// leaderSim is a leader's side of one subscription: it delivers, redelivers, and does what it is told, by the rules of
// internal/server/native/wire/FORMAT.md.
type leaderSim struct {
	t        testing.TB
	draw     func(n int) int
	timeout  time.Duration
	now      time.Duration // the leader's time is the consumer's
	messages int           // that were made
	attempts map[ID]int
	again    []ID // to be delivered again
	flight   []simDelivery
	number   uint64
	credit   int
	done     map[ID]bool

	l        ledger
	arriving []simDelivery // on their way to the consumer
	waiting  []simDelivery // that have arrived
	saying   []sayings     // on their way to the leader
	syncs    []int         // how many sayings were sent before each
	said     int           // sayings that the leader has handled
	sent     int
	granted  []int
	seq      uint64
	got      []simDelivery // by index
}

type simDelivery struct {
	id      ID
	attempt int
	number  uint64
	bytes   int
	due     time.Duration
	began   time.Duration
	arrived time.Duration
	ended   bool // for the application
	done    bool // it has said that the message is done
}

const simMost = 5

func (s *leaderSim) deliver() {
	var id ID
	switch {
	case s.credit <= 0:
		return
	case len(s.again) > 0:
		id, s.again = s.again[0], s.again[1:]
	default:
		id = ID(s.messages)
		s.messages++
	}
	s.attempts[id]++
	s.number += 1 + uint64(s.draw(2))
	d := simDelivery{
		id: id, attempt: s.attempts[id], number: s.number, bytes: 1 + s.draw(50), due: s.now + s.timeout, began: s.now,
	}
	s.credit -= d.bytes
	s.flight = append(s.flight, d)
	s.arriving = append(s.arriving, d)
}

// expire delivers again whose time is over. late: the leader may notice that only later.
func (s *leaderSim) expire(late bool) {
	for i := 0; i < len(s.flight); i++ {
		if s.flight[i].due <= s.now && (!late || s.draw(3) > 0) {
			s.again = append(s.again, s.flight[i].id)
			s.flight = slices.Delete(s.flight, i, i+1)
			i--
		}
	}
}

func (s *leaderSim) find(h wire.Handle) int {
	return slices.IndexFunc(s.flight, func(d simDelivery) bool { return d.id == ID(h.ID) && d.number == h.Number })
}

// hear handles the oldest sayings that are on their way.
func (s *leaderSim) hear() {
	if len(s.saying) == 0 {
		return
	}
	say := s.saying[0]
	s.saying = s.saying[1:]
	s.said++
	for _, x := range say.requeue {
		i := s.find(x.Handle)
		switch {
		case i >= 0 && s.draw(4) == 0: // there is no room for it
			s.l.refusedRequeue(s.now, x.Number, netproto.StatusFull)
		case i >= 0:
			s.flight = slices.Delete(s.flight, i, i+1)
			s.again = append(s.again, ID(x.ID))
		default:
			s.l.refusedRequeue(s.now, x.Number, netproto.StatusRejected)
		}
	}
	for _, h := range say.touch {
		if i := s.find(h); i >= 0 {
			s.flight[i].due = min(s.now+s.timeout, s.flight[i].began+simMost*s.timeout)
		} else {
			s.l.refusedTouch(s.now, h, netproto.StatusRejected)
		}
	}
	for _, h := range say.finish {
		if i := s.find(h); i >= 0 {
			s.done[ID(h.ID)] = true
			s.flight = slices.Delete(s.flight, i, i+1)
		}
	}
	for i := 0; i < len(s.flight); i++ {
		if d := s.flight[i]; d.number <= say.through {
			s.done[d.id] = true
			s.flight = slices.Delete(s.flight, i, i+1)
			i--
		}
	}
}

// arrive lets what was sent first arrive.
func (s *leaderSim) arrive() {
	if len(s.arriving) > 0 {
		d := s.arriving[0]
		s.arriving = s.arriving[1:]
		d.arrived = s.now
		s.l.arrive(d.bytes)
		s.waiting = append(s.waiting, d)
	}
}

// next is the application's Next.
func (s *leaderSim) next() {
	for len(s.waiting) > 0 {
		d := s.waiting[0]
		s.waiting = s.waiting[1:]
		if s.now-d.arrived >= s.timeout {
			s.l.skip(d.bytes)
			s.l.giveUp(s.now, d.number)
			continue
		}
		s.seq += 1 + uint64(s.draw(3)) // other leaders' deliveries have numbers, too
		e := entry{id: d.id, number: d.number, seq: s.seq, arrived: d.arrived, bytes: d.bytes}
		if index := s.l.deliver(s.now, e, d.attempt > 1); index != uint64(len(s.got)) {
			s.t.Fatalf("index %d for delivery %d", index, len(s.got))
		}
		s.got = append(s.got, d)
		return
	}
}

// say sends what is to be said.
func (s *leaderSim) say() {
	s.granted = append(s.granted, s.l.grant(s.now))
	if say := &s.l.say; len(say.requeue)+len(say.touch)+len(say.finish) > 0 || say.through != 0 {
		s.saying = append(s.saying, s.l.say)
		s.sent++
	}
	s.l.say = sayings{}
	if s.l.sync(s.now) {
		s.syncs = append(s.syncs, s.sent)
	}
	if len(s.syncs) > 0 && s.said >= s.syncs[0] {
		s.syncs = s.syncs[1:]
		s.expire(false) // the leader looks at the time before it answers
		s.l.synced(true)
	}
	s.credit += s.granted[0]
	s.granted = s.granted[1:]
}

// settle is what the application does with a delivery.
func (s *leaderSim) settle() {
	if len(s.got) == 0 {
		return
	}
	i := max(0, len(s.got)-1-s.draw(6))
	d := &s.got[i]
	switch s.draw(8) {
	case 0:
		if s.l.requeue(s.now, uint64(i), 0) {
			s.end(d)
		}
	case 1:
		if s.l.touch(s.now, uint64(i)) && d.ended {
			s.t.Fatalf("%+v was touched after its end", d)
		}
	case 2, 3, 4:
		if s.l.finish(s.now, uint64(i)) {
			s.end(d)
			d.done = true
		}
	default:
		s.l.through(s.now, s.seqOf(uint64(i)))
		for j := range i + 1 {
			s.got[j].done = s.got[j].done || !s.got[j].ended
			s.got[j].ended = true
		}
	}
}

func (s *leaderSim) seqOf(index uint64) uint64 {
	if index < s.l.first {
		return 0
	}
	return s.l.at(index).seq
}

func (s *leaderSim) end(d *simDelivery) {
	if d.ended {
		s.t.Fatalf("%+v was finished or requeued twice", d)
	}
	d.ended = true
}

func (s *leaderSim) check() {
	held := 0
	for i := s.l.first; i < s.l.end; i++ {
		if e := s.l.at(i); !e.gone {
			held += e.bytes
		}
	}
	waiting := 0
	for _, d := range s.waiting {
		waiting += d.bytes
	}
	onWay := 0
	for _, d := range s.arriving {
		onWay += d.bytes
	}
	if held != s.l.held || waiting != s.l.waiting || s.l.credit != s.credit+onWay {
		s.t.Fatalf("held %d, waiting %d, credit %d; it is %d, %d, %d", s.l.held, s.l.waiting, s.l.credit, held, waiting,
			s.credit+onWay)
	}
	if sum := held + waiting + s.l.credit; sum > s.l.share+50 {
		s.t.Fatalf("%d bytes for a share of %d", sum, s.l.share)
	}
}

func simulateLedger(t testing.TB, draw func(n int) int, events int) *leaderSim {
	s := &leaderSim{
		t: t, draw: draw, timeout: 100 * time.Millisecond, attempts: map[ID]int{}, done: map[ID]bool{},
	}
	s.l.timeout, s.l.most = s.timeout, simMost*s.timeout
	s.l.share = 200 + draw(500)
	s.l.credit = s.l.share
	s.credit = s.l.share
	for range events {
		switch draw(12) {
		case 0, 1, 2:
			s.deliver()
		case 3, 4:
			s.arrive()
		case 5, 6:
			s.next()
		case 7, 8:
			s.settle()
		case 9:
			s.hear()
		case 10:
			s.say()
		case 11:
			s.now += time.Duration(draw(20)) * time.Millisecond
			if draw(10) == 0 {
				s.now += lapseMargin / 2
			}
			if draw(20) == 0 {
				s.l.promise()
			}
			s.expire(true)
		}
		s.check()
	}
	return s
}

// quiesce lets the leader deliver all there is, and the application finish it.
func (s *leaderSim) quiesce() {
	messages := s.messages
	for n := 0; len(s.done) < messages; n++ {
		if n > 20*messages+1000 {
			s.t.Fatalf("%d of %d messages are finished; %d in flight, %d again, credit %d", len(s.done), messages,
				len(s.flight), len(s.again), s.credit)
		}
		if len(s.again) > 0 {
			s.deliver()
		}
		s.arrive()
		s.next()
		s.l.through(s.now, s.seq)
		s.say()
		s.hear()
		s.now += time.Millisecond
		s.expire(false)
	}
}

// A FinishThrough names deliveries one by one behind one that the application did not get, and together again when a
// Sync has said that the leader has noticed its end.
func TestFinishThroughTogetherAgain(t *testing.T) {
	l := &ledger{timeout: time.Second, most: time.Minute, share: 1000}
	seq := uint64(0)
	through := func(now time.Duration) (together bool) {
		for range 3 {
			seq++
			l.deliver(now, entry{id: ID(seq), number: seq, seq: seq, arrived: now, bytes: 1}, false)
		}
		l.say.clear()
		if !l.through(now, seq) || l.say.through != 0 && (l.say.through != seq || len(l.say.finish) > 0) {
			t.Fatalf("it says %+v of 3 deliveries", l.say)
		}
		return l.say.through != 0
	}
	answer := func(now time.Duration, ok bool) {
		l.promise()
		if !l.sync(now) {
			t.Fatal("no Sync is sent")
		}
		l.synced(ok)
	}
	if !through(0) {
		t.Error("at first, they are named one by one")
	}
	for _, stick := range []struct {
		how  func(now time.Duration)
		ends time.Duration
	}{
		{func(now time.Duration) { l.giveUp(now, seq+1) }, lapseMargin},
		{func(now time.Duration) { l.refusedRequeue(now, seq+1, netproto.StatusFull) }, l.most + lapseMargin},
	} {
		now := time.Hour * time.Duration(seq)
		seq++
		stick.how(now)
		if through(now) {
			t.Error("they are named together at once")
		}
		answer(now+stick.ends-1, true)
		if through(now + stick.ends) {
			t.Error("the leader may have answered before it noticed")
		}
		answer(now+stick.ends, false)
		if through(now + stick.ends) {
			t.Error("the leader did not know")
		}
		if !l.wantSync {
			t.Error("nobody asks the leader")
		}
		answer(now+stick.ends, true)
		if !through(now + stick.ends) {
			t.Error("they are named one by one for ever")
		}
	}
}

// Whatever the application does, and however late things are said: every message is finished in the end, none that the
// application did not finish, and the leader's credit comes back.
func TestLedgerRandom(t *testing.T) {
	finished, again := 0, 0
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 3))
		t.Run("", func(t *testing.T) {
			s := simulateLedger(t, r.IntN, 400)
			handled := map[ID]bool{}
			for _, d := range s.got {
				handled[d.id] = handled[d.id] || d.done
			}
			for id := range s.done {
				if !handled[id] {
					t.Fatalf("message %v is finished, and the application did not finish it", id)
				}
			}
			finished += len(s.done)
			s.quiesce()
			for _, n := range s.attempts {
				again += n - 1
			}
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if finished < 1000 || again < 1000 {
		t.Errorf("%d messages were finished, %d were delivered again: this tests little", finished, again)
	}
}

// A Sync is answered for what was said before it, and the next one is asked for only when it is needed.
func TestLedgerSync(t *testing.T) {
	l := &ledger{share: 100}
	if l.promise() != 0 || l.sync(0) {
		t.Error("a Sync without need")
	}
	for i := range 3 {
		l.deliver(0, entry{id: ID(i), number: uint64(i + 1), seq: uint64(i + 1)}, false)
	}
	l.finish(0, 0)
	if n := l.promise(); n != 1 || !l.sync(0) || l.sync(0) || !l.unconfirmed() {
		t.Errorf("the first Sync is %d", n)
	}
	if n := l.promise(); n != 1 {
		t.Errorf("the same is confirmed by Sync %d", n)
	}
	if !l.through(0, 2) || l.promise() != 2 || l.sync(0) {
		t.Error("the second Sync waits for the first one's answer")
	}
	if l.synced(true); l.answered != 1 || !l.sync(0) {
		t.Error("the second Sync is not sent")
	}
	if l.synced(true); l.answered != 2 || l.unconfirmed() || l.promise() != 0 {
		t.Error("all is confirmed")
	}
}

// An old delivery of a message that has come again cannot finish the new one.
func TestLedgerStaleFinish(t *testing.T) {
	l := &ledger{timeout: time.Second, most: time.Minute, share: 100}
	old := l.deliver(0, entry{id: 7, number: 1, seq: 1}, false)
	now := 999 * time.Millisecond // the leader's time is over; here a millisecond is left
	again := l.deliver(now, entry{id: 7, number: 2, seq: 2, arrived: now}, true)
	if l.finish(now, old) || l.touch(now, old) || l.requeue(now, old, 0) {
		t.Error("the old delivery counts as in flight")
	}
	if !l.finish(now, again) || l.finish(now, again) {
		t.Error("the new delivery is finished once")
	}
	if l.finish(now, 99) {
		t.Error("a delivery that was never there")
	}
	late := l.deliver(now, entry{id: 8, number: 3, seq: 3, arrived: now}, false)
	if now += time.Second; l.finish(now, late) || l.touch(now, late) || l.requeue(now, late, 0) {
		t.Error("a delivery whose time is over counts as in flight")
	}
}

// Deliveries that the application leaves alone give their credit back when they are over, those behind one that is
// touched, too.
func TestLedgerCreditComesBack(t *testing.T) {
	l := &ledger{timeout: time.Second, most: time.Minute, share: 20}
	l.arrive(20)
	first := l.deliver(0, entry{id: 1, number: 1, seq: 1, bytes: 10}, false)
	l.deliver(0, entry{id: 2, number: 2, seq: 2, bytes: 10}, false)
	now := 500 * time.Millisecond
	l.touch(now, first)
	if n := l.grant(now); n != 20 { // what the leader has sent without credit
		t.Errorf("%d bytes", n)
	}
	l.arrive(20)
	l.skip(0)
	if n := l.grant(now); n != 0 || l.starves(now) != time.Second {
		t.Errorf("%d bytes, to be looked at after %v", n, l.starves(now))
	}
	now = time.Second
	if n := l.grant(now); n != 10 || l.starves(now) != 1500*time.Millisecond {
		t.Errorf("%d bytes, to be looked at after %v", n, l.starves(now))
	}
}

// What is finished through covers neither what was requeued nor what came later.
func TestLedgerThrough(t *testing.T) {
	l := &ledger{timeout: time.Second, most: time.Minute, share: 100}
	for i := range 4 {
		l.deliver(0, entry{id: ID(i), number: uint64(10 + i), seq: uint64(2 * i)}, false)
	}
	l.requeue(0, 1, 5)
	l.finish(0, 2)
	if !l.through(0, 5) || l.say.through != 10 || l.say.throughID != 0 {
		t.Errorf("%+v", l.say)
	}
	if len(l.say.requeue) != 1 || l.say.requeue[0].DelayMs != 5 || len(l.say.finish) != 1 {
		t.Errorf("%+v", l.say)
	}
	if l.through(0, 5) || l.live(0, 3) == nil || l.live(0, 0) != nil {
		t.Error("the last one is still in flight")
	}
	if l.through(time.Second, 6) || l.first != l.end || l.held != 0 {
		t.Error("its time is over")
	}
}

// A FinishThrough does not cover a delivery that the application was told is over, because the leader may hold it yet:
// its time is over here, or its Touch was refused.
func TestLedgerThroughBehindWhatIsOver(t *testing.T) {
	for name, over := range map[string]func(l *ledger, now time.Duration){
		"its time is over": func(l *ledger, now time.Duration) {
			if l.requeue(now, 0, 0) {
				t.Error("it counts as in flight")
			}
		},
		"a sweep has seen that": func(l *ledger, now time.Duration) { l.sweep(now) },
		"a look for credit has": func(l *ledger, now time.Duration) { l.nextDue(now) },
		"the node had no room for its Touch": func(l *ledger, now time.Duration) {
			l.touch(now/2, 0)
			l.refusedTouch(now/2, wire.Handle{Number: 10}, netproto.StatusFull)
		},
	} {
		l := &ledger{timeout: time.Second, most: time.Minute, share: 100}
		now := time.Second
		l.deliver(0, entry{number: 10, seq: 1}, false)
		l.deliver(now/2, entry{id: 1, number: 11, seq: 2, arrived: now / 2}, false)
		over(l, now)
		if !l.through(now, 2) || l.say.through != 0 || len(l.say.finish) != 1 || l.say.finish[0].Number != 11 {
			t.Errorf("%s: %+v", name, l.say)
		}
		later := now + time.Hour // then a Sync is certain that the leader does not hold it any more
		l.wantSync = true
		l.sync(later)
		l.synced(true)
		l.deliver(later, entry{id: 2, number: 12, seq: 3, arrived: later}, false)
		if !l.through(later, 3) || l.say.through != 12 {
			t.Errorf("%s: an hour later: %+v", name, l.say)
		}
	}
}

// deliver notes a delivery as Consumer.takeFrom does. again: the message was delivered before.
func (l *ledger) deliver(now time.Duration, e entry, again bool) uint64 {
	l.sweep(now)
	if again {
		l.supersede(now, e.id)
	}
	e.due = l.dueOf(e.arrived)
	return l.add(&e)
}
