package client

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// model is a leader with the rules of producers: an exact repeat of one of the last 8 batches is answered with its
// first id, what follows the newest message is stored, everything else is refused.
type model struct {
	id    uint64
	epoch uint32
	next  uint32
	last  []modelBatch
	log   []int // messages
}

type modelBatch struct {
	base, count uint32
	first       uint64
}

func (m *model) open(named bool) numbers {
	if named {
		m.epoch++
	} else {
		m.id, m.epoch, m.next = m.id+1, 1, 0
	}
	m.last = nil
	return numbers{id: m.id, epoch: m.epoch, base: m.next}
}

func (m *model) forget() { m.id, m.epoch, m.next, m.last = m.id+1000, 0, 0, nil }

func (m *model) judge(as numbers, count uint32) (v verdict, first uint64, repeat bool) {
	switch {
	case as.id != m.id || as.epoch > m.epoch:
		return verdictForgot, 0, false
	case as.epoch < m.epoch:
		return verdictFenced, 0, false
	case as.base == m.next:
		return verdictStored, uint64(len(m.log)), false
	}
	for _, b := range m.last {
		if b.base == as.base && b.count == count {
			return verdictStored, b.first, true
		}
	}
	return verdictGap, 0, false
}

func (m *model) store(as numbers, messages []int) (verdict, uint64) {
	v, first, repeat := m.judge(as, uint32(len(messages)))
	if v == verdictStored && !repeat {
		m.log = append(m.log, messages...)
		m.next += uint32(len(messages))
		m.last = append(m.last, modelBatch{as.base, uint32(len(messages)), first})
		m.last = m.last[max(len(m.last)-MaxInFlight, 0):]
	}
	return v, first
}

// attempt is a request on its way, and then its answer.
type attempt struct {
	p        *packet // nil: it opens the producer
	conn     int
	number   int
	as       numbers
	messages []int
	v        verdict
	err      error
	first    uint64
	opened   numbers
}

// flowSim runs a flow against the model, over a network that loses, repeats and delays.
type flowSim struct {
	t       testing.TB
	draw    func(n int) int
	f       flow
	m       model
	named   bool
	healthy bool
	calm    bool // no faults from the beginning
	now     time.Time
	conn    int // 0: not connected
	conns   int
	count   int // attempts so far
	as      numbers

	open     []int // messages of the open batch
	produced int
	messages map[*packet][]int
	newest   map[*packet]int // number of the newest attempt
	asked    int
	requests []attempt // in the order of each connection
	answers  []attempt
	told     []error      // by message
	large    map[int]bool // messages that the leader stores never, and no batch with them
}

func (s *flowSim) seal() {
	p := new(packet)
	s.messages[p], s.open = s.open, nil
	s.f.sealed(p)
}

func (s *flowSim) produce() {
	size := 1 + s.draw(40)
	if !s.f.fits(size) {
		s.seal()
	}
	s.f.added(s.now, size)
	s.open = append(s.open, s.produced)
	s.large[s.produced] = s.draw(200) == 1
	s.produced++
}

// steps takes steps until the flow waits, and returns until when.
func (s *flowSim) steps() time.Time {
	for n := 0; ; n++ {
		if n > 10000 {
			s.t.Fatal("the flow never waits")
		}
		switch a := s.f.step(s.now); a.do {
		case doWait:
			return a.until
		case doSeal:
			s.seal()
		case doOpen:
			s.count++
			s.asked = s.count
			s.requests = append(s.requests, attempt{conn: s.conn, number: s.count})
		case doSend:
			s.count++
			as := s.as
			as.base = a.base
			s.newest[a.p] = s.count
			s.requests = append(s.requests, attempt{
				p: a.p, conn: s.conn, number: s.count, as: as, messages: s.messages[a.p],
			})
		case doDivide:
			first, second, all := new(packet), new(packet), s.messages[a.p]
			s.messages[first], s.messages[second] = all[:len(all)/2], all[len(all)/2:]
			delete(s.messages, a.p)
			s.f.divided(a.p, first, second)
		case doTell:
			s.tell(a)
		case doDrop:
			delete(s.messages, a.p)
		}
	}
}

func (s *flowSim) tell(a action) {
	for i, m := range s.messages[a.p] {
		if m != len(s.told) {
			s.t.Fatalf("message %d was told after %d others", m, len(s.told))
		}
		s.told = append(s.told, a.err)
		if a.err == nil {
			if id := int(a.p.first) + i; id >= len(s.m.log) || s.m.log[id] != m {
				s.t.Fatalf("message %d was told to be stored as %d", m, id)
			}
		}
	}
}

// serve lets the model handle the oldest request of some connection, which may have ended: its bytes may arrive late.
func (s *flowSim) serve() {
	if len(s.requests) == 0 {
		return
	}
	at := s.draw(len(s.requests))
	for i := range s.requests {
		if s.requests[i].conn == s.requests[at].conn {
			at = i
			break
		}
	}
	r := s.requests[at]
	s.requests = append(s.requests[:at:at], s.requests[at+1:]...)
	whim := s.draw(40)
	if s.healthy || s.calm {
		whim = 39
	}
	switch {
	case r.p == nil && whim < 3:
		r.v = verdictAgain
	case r.p == nil:
		r.v, r.opened = verdictStored, s.m.open(s.named)
	case whim < 3:
		r.v = verdictAgain
	case whim < 5:
		r.v = verdictPerhaps
		if s.draw(2) == 0 && !slices.ContainsFunc(r.messages, func(m int) bool { return s.large[m] }) {
			s.m.store(r.as, r.messages)
		}
	case whim == 5 && s.draw(4) == 0:
		s.m.forget()
		r.v = verdictForgot
	case slices.ContainsFunc(r.messages, func(m int) bool { return s.large[m] }):
		r.v, r.err = verdictRefused, ErrTooLarge
	case (whim == 6 || whim == 7) && s.named:
		if v, _, repeat := s.m.judge(r.as, uint32(len(r.messages))); v == verdictStored && !repeat {
			r.v, r.err = verdictRefused, ErrRefused
			break
		}
		fallthrough
	default:
		r.v, r.first = s.m.store(r.as, r.messages)
	}
	s.answers = append(s.answers, r)
}

// hear gives the flow an answer: of the present connection, and of the newest attempt. A repeated one comes twice.
func (s *flowSim) hear() {
	if len(s.answers) == 0 {
		return
	}
	r := s.answers[0]
	if s.healthy || s.calm || s.draw(10) != 0 {
		s.answers = s.answers[1:]
	}
	switch {
	case r.conn != s.conn:
	case r.p == nil && r.number == s.asked && r.v == verdictStored:
		if s.f.producer == producerAsked {
			s.as = r.opened
		}
		s.f.opened(r.opened.base)
	case r.p == nil && r.number == s.asked:
		s.f.openRefused(s.now, r.v, nil)
	case r.p != nil && s.newest[r.p] == r.number:
		s.f.answered(s.now, r.p, r.v, r.first, false, r.err)
	}
}

func (s *flowSim) event() {
	switch n := s.draw(20); {
	case n < 6:
		s.produce()
	case n < 10:
		s.serve()
	case n < 14:
		s.hear()
	case n < 16:
		s.now = s.now.Add(time.Duration(s.draw(30)) * time.Millisecond)
	case n == 16 && !s.calm && s.draw(40) == 0:
		s.now = s.now.Add(2 * time.Second)
	case n == 17 && !s.calm && s.draw(3) == 0 && s.conn != 0:
		s.conn = 0
		s.f.disconnect()
	case n >= 18 && s.conn == 0:
		s.conns++
		s.conn = s.conns
		s.f.connect()
	}
}

func (s *flowSim) run(events int) {
	for range events {
		s.event()
		s.steps()
	}
	s.healthy = true
	if s.conn == 0 {
		s.conns++
		s.conn = s.conns
		s.f.connect()
	}
	s.f.flushing = true
	for range 10000 {
		until := s.steps()
		if s.f.idle() && len(s.f.queue) == 0 {
			break
		}
		if len(s.requests)+len(s.answers) == 0 && until.After(s.now) {
			s.now = until
		}
		s.serve()
		s.hear()
	}
	s.check()
}

// check: every message was told; what was told to be stored is, once; what was told not to be stored is not; and the
// log has the messages in their order.
func (s *flowSim) check() {
	if len(s.told) != s.produced || len(s.f.queue) != 0 {
		s.t.Fatalf("%d of %d messages were told, %d batches are left", len(s.told), s.produced, len(s.f.queue))
	}
	for len(s.requests) > 0 { // what is still under way arrives at last
		s.serve()
	}
	seen := make([]bool, s.produced)
	before := -1
	for _, m := range s.m.log {
		if seen[m] {
			s.t.Fatalf("message %d is stored twice: %v", m, s.m.log)
		}
		if seen[m] = true; m < before {
			s.t.Fatalf("message %d is stored behind %d", m, before)
		}
		before = m
	}
	for m, err := range s.told {
		switch {
		case err == nil && !seen[m]:
			s.t.Fatalf("message %d was told to be stored and is not", m)
		case err != nil && !errors.Is(err, ErrUnknown) && seen[m]:
			s.t.Fatalf("message %d is stored and was told not to be: %v", m, err)
		}
	}
}

func simulate(t testing.TB, draw func(n int) int, events int) *flowSim {
	s := newFlowSim(t, draw)
	s.run(events)
	return s
}

func newFlowSim(t testing.TB, draw func(n int) int) *flowSim {
	s := &flowSim{
		t: t, draw: draw, named: true, now: time.Unix(1000, 0), messages: map[*packet][]int{}, newest: map[*packet]int{},
		large: map[int]bool{},
	}
	s.m.id = 1
	s.f.o = flowOptions{
		linger: time.Duration(draw(3)*5) * time.Millisecond, timeout: time.Second, maxBytes: 100,
		inFlight: 1 + draw(MaxInFlight),
		pause:    func(fails int) time.Duration { return time.Duration(10*min(fails, 5)) * time.Millisecond },
	}
	return s
}

// Whatever the network and the leader do: each message is stored exactly once, in order, or told as unknown or as not
// stored, and that is true.
func TestFlowRandom(t *testing.T) {
	stored, others := 0, 0
	for seed := range uint64(600) {
		r := rand.New(rand.NewPCG(seed, 1))
		t.Run("", func(t *testing.T) {
			s := simulate(t, r.IntN, 400)
			for _, err := range s.told {
				if err == nil {
					stored++
				} else {
					others++
				}
			}
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if stored < 3*others || others == 0 {
		t.Errorf("%d messages were stored, %d were not: this tests little", stored, others)
	}
}

// Over a network and at a leader without faults, a message that is too large for the leader is refused, and no other.
func TestFlowRefusesOnlyTheLarge(t *testing.T) {
	refused := 0
	for seed := range uint64(200) {
		s := newFlowSim(t, rand.New(rand.NewPCG(seed, 2)).IntN)
		s.calm = true
		s.run(400)
		for m, err := range s.told {
			if errors.Is(err, ErrTooLarge) != s.large[m] || err != nil && errors.Is(err, ErrUnknown) {
				t.Fatalf("seed %d, message %d, too large: %v, was told: %v", seed, m, s.large[m], err)
			}
			if err != nil {
				refused++
			}
		}
	}
	if refused < 100 {
		t.Errorf("%d messages were refused: this tests little", refused)
	}
}

func FuzzFlow(f *testing.F) {
	f.Add([]byte{0, 7, 1, 2, 18, 7, 11, 0, 1, 17, 0, 18, 7, 11})
	f.Fuzz(func(t *testing.T, choices []byte) {
		draw := func(n int) int {
			if len(choices) == 0 {
				return n - 1
			}
			c := int(choices[0])
			choices = choices[1:]
			return c % n
		}
		simulate(t, draw, min(len(choices), 2000))
	})
}
