package client

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// flow decides what one producer does next at one partition: when a batch is sealed, which batch is sent, whether a
// batch is stored or must be repeated after an answer, and what the application is told. It does no I/O and reads no
// clock: the lane of the partition tells it what happened, asks for the next step, and carries that step out.
//
//	open ─sealed─► queue: | told, kept | on their way, at most inFlight | waiting |
//
// Invariants:
//
//   - Messages are told in the order in which they were produced, each once.
//   - A batch gets its sequence number when it is first sent, and is repeated with that number. It gives the number
//     back only when it is certain that the number was not used: every attempt was answered, and said that nothing was
//     stored.
//   - Only the first inFlight batches of the queue have numbers, so the leader still remembers each of them when it is
//     repeated. Batches leave the queue at its front; one without a number may leave anywhere.
//   - A batch that the leader refuses for its size is divided, and the halves take its place, without numbers.
//   - After the time for a batch is over, its messages are told as unknown, but the batch stays and is repeated:
//     nothing behind it is stored before it is stored, or certain never to be.
//
// lane.mu guards it. A program that ends loses it. Batches on their way may be stored; a producer with a name learns
// that when it is opened again.
type flow struct {
	o flowOptions

	open struct { // the batch that takes messages
		count uint32
		bytes int
		since time.Time // when it took the first one
	}
	flushing bool // seal the open batch without waiting for linger
	eager    bool // open the producer although there is nothing to send yet
	queue    []*packet

	connected bool // to the leader
	producer  producerState
	asked     time.Time // when doOpen was returned
	next      uint32    // sequence of the next batch that gets a number
	stored    uint32    // sequence behind the newest message that is known to be stored

	// After a batch was not stored, nothing is sent until all batches on their way are answered. Then they are sent
	// again. restart: with numbers of a producer that is opened anew.
	rewinding, restart bool
	back               struct { // the lowest number that refused batches gave back since the last rewind
		has  bool
		base uint32
	}
	notBefore time.Time // nothing is sent before
	fails     int       // refusals since the last success
	reason    error     // the newest refusal, or why the leader cannot be reached, for people
	refusal   error     // why the producer may not be opened, until the next attempt
	ended     error     // nothing is sent any more
}

type flowOptions struct {
	linger   time.Duration
	timeout  time.Duration                 // from the first message of a batch until the application is told
	maxBytes int                           // a batch of that size takes no more messages
	stop     bool                          // at the first message that is not stored, or of which that is unknown
	inFlight int                           // 1 .. MaxInFlight
	pause    func(fails int) time.Duration // before the next attempt
}

type producerState uint8

const (
	producerNone producerState = iota
	producerAsked
	producerOpen
)

// unit is what flow knows of a batch that is sealed.
type unit struct {
	count    uint32
	deadline time.Time
	numbered bool
	base     uint32    // sequence of its first message, if numbered
	sent     time.Time // when it was sent; zero: it is not on its way
	maybe    bool      // an attempt had no answer, or one that leaves open whether the batch was stored
	final    bool      // it is stored, or never will be
	told     bool      // the application knows
	err      error     // why it is not stored, if final
	first    uint64    // id of its first message, if final and err is nil
	repeated bool      // the leader said that an earlier attempt had stored it
	divide   error     // why the leader will not store it as it is, but may store some of its messages; nil: it may
}

func (u *unit) onWay() bool { return !u.sent.IsZero() }

// verdict is what an answer means for a batch.
type verdict uint8

const (
	verdictStored  verdict = iota
	verdictAgain           // nothing was stored; the same batch may be stored later
	verdictPerhaps         // it may have been stored, or may still be
	verdictGap             // nothing was stored: batches before it are missing, or it overlaps with one
	verdictForgot          // nothing was stored: the leader does not know the producer any more
	verdictFenced          // nothing was stored: a newer program uses the producer's name
	verdictRefused         // nothing was stored, and never will be
)

type verb uint8

const (
	doWait   verb = iota // until something happens, or until action.until if it is set
	doSeal               // close the open batch and call sealed
	doOpen               // open the producer, then call opened or openRefused
	doSend               // send the batch, then call answered; if it has left, the connection's end calls disconnected
	doDivide             // make two batches of the batch and call divided
	doTell               // tell the application what became of the batch: err, or the ids from first
	doDrop               // the batch has left the queue
)

type action struct {
	do    verb
	p     *packet
	base  uint32    // with doSend: sequence of the batch's first message
	err   error     // with doTell
	left  bool      // with doTell: the batch has left the queue
	lone  bool      // with doSend: nothing else is on its way or waits
	until time.Time // with doWait
}

// fits says whether the open batch takes a message of that many bytes more. Otherwise seal it first.
func (f *flow) fits(bytes int) bool { return f.open.count == 0 || f.open.bytes+bytes <= f.o.maxBytes }

// added notes a message in the open batch, and says whether that may change the next step.
func (f *flow) added(now time.Time, bytes int) bool {
	if f.open.count == 0 {
		f.open.since = now
	}
	f.open.count++
	f.open.bytes += bytes
	return f.open.count == 1 || f.open.bytes >= f.o.maxBytes
}

// sealed moves the open batch to the end of the queue, as p.
func (f *flow) sealed(p *packet) {
	p.unit = unit{count: f.open.count, deadline: f.open.since.Add(f.o.timeout)}
	f.open.count, f.open.bytes = 0, 0
	f.queue = append(f.queue, p)
	if f.ended != nil {
		p.give(f.ended)
	} else if f.refusal != nil {
		p.give(f.refusal)
	}
}

// connect notes that the leader can be reached.
func (f *flow) connect() { f.connected = true }

// unreachable notes why the leader cannot be reached.
func (f *flow) unreachable(why error) { f.reason = why }

// disconnect notes that the leader cannot be reached any more, or is another node now. Whether it stored the batches
// that it has not answered is unknown.
func (f *flow) disconnect() {
	f.connected = false
	if f.producer == producerAsked {
		f.producer = producerNone
	}
	for _, p := range f.queue {
		if p.onWay() {
			p.sent, p.maybe = time.Time{}, true
			f.rewinding = true
		}
	}
}

// opened notes the answer to doOpen. next is the sequence that the leader expects.
func (f *flow) opened(next uint32) {
	if f.producer != producerAsked {
		return
	}
	f.producer, f.next, f.stored, f.fails, f.reason = producerOpen, next, next, 0, nil
}

// openRefused notes that the producer could not be opened.
func (f *flow) openRefused(now time.Time, v verdict, err error) {
	if f.producer != producerAsked {
		return
	}
	f.producer = producerNone
	f.delay(now, err)
	switch v {
	case verdictFenced:
		f.end(ErrFenced)
	case verdictRefused:
		f.refusal = err
		for _, p := range f.queue {
			p.give(err)
		}
	}
}

func (f *flow) delay(now time.Time, err error) {
	f.fails++
	f.notBefore, f.reason = now.Add(f.o.pause(f.fails)), err
}

// answered notes the answer to an attempt to store p. err says more about it, for people or, with verdictRefused, for
// the application.
func (f *flow) answered(now time.Time, p *packet, v verdict, first uint64, repeated bool, err error) {
	if !p.onWay() {
		return
	}
	p.sent = time.Time{}
	switch v {
	case verdictStored:
		p.final, p.first, p.repeated = true, first, repeated
		f.fails, f.reason = 0, nil
		if end := p.base + p.count; int32(end-f.stored) > 0 {
			f.stored = end
		}
		return
	case verdictGap:
		behind := f.back.has && int32(p.base-f.back.base) > 0 // a batch that was refused
		if f.firstOpen() == p && !f.restart && !behind {
			p.give(because(ErrSequence, err))
			f.restart = true
		}
	case verdictForgot:
		f.restart = true
		f.delay(now, err)
	case verdictFenced:
		f.end(ErrFenced)
	case verdictRefused:
		switch {
		case p.maybe:
			p.give(err)
			f.restart = true
		case p.count > 1 && !p.told && errors.Is(err, ErrTooLarge): // one message may be the reason
			p.divide = err
			f.giveBack(p)
		default:
			p.give(err)
			f.giveBack(p)
		}
	case verdictPerhaps:
		p.maybe = true
		f.delay(now, err)
	case verdictAgain:
		f.delay(now, err)
	}
	f.rewinding = true
}

// giveBack notes that the numbers of a batch that never will be stored were not used. The producer is not opened anew
// for them: if another program had opened it meanwhile, that one would be fenced.
func (f *flow) giveBack(p *packet) {
	if !f.back.has || int32(p.base-f.back.base) < 0 {
		f.back.has, f.back.base = true, p.base
	}
	p.numbered = false
}

// give makes err the fate of the batch.
func (u *unit) give(err error) {
	if u.final {
		return
	}
	if u.maybe && !errors.Is(err, ErrUnknown) {
		err = fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	u.final, u.err, u.sent = true, err, time.Time{}
}

// end stops the producer at this partition. Nothing more is sent; batches on their way have an unknown fate.
func (f *flow) end(err error) {
	if f.ended != nil {
		return
	}
	f.ended = err
	for _, p := range f.queue {
		p.maybe = p.maybe || p.onWay()
		p.give(err)
	}
}

// abandoned counts the messages that were not told and have no other fate than that the producer was closed.
func (f *flow) abandoned() (a abandoned) {
	for _, p := range f.queue {
		switch {
		case p.told:
		case errors.Is(p.err, ErrUnknown):
			a.unknown += int(p.count)
		case errors.Is(p.err, ErrClosed):
			a.unsent += int(p.count)
		}
	}
	if errors.Is(f.ended, ErrClosed) {
		a.unsent += int(f.open.count)
	}
	return a
}

// firstOpen is the first batch of the queue whose fate is open, or nil.
func (f *flow) firstOpen() *packet {
	for _, p := range f.queue {
		if !p.final {
			return p
		}
	}
	return nil
}

// idle says that every message was told.
func (f *flow) idle() bool { return f.open.count == 0 && f.firstUntold() < 0 }

func (f *flow) firstUntold() int {
	for i, p := range f.queue {
		if !p.told {
			return i
		}
	}
	return -1
}

// step returns what to do next. The caller does it and calls step again; after doWait it first waits.
func (f *flow) step(now time.Time) action {
	if len(f.queue) > 0 && f.queue[0].told && f.queue[0].final {
		return action{do: doDrop, p: f.remove(0)}
	}
	f.expire(now)
	if i := f.firstUntold(); i >= 0 {
		if p := f.queue[i]; p.final || !now.Before(p.deadline) {
			return f.tell(i)
		}
	}
	refused := f.refusal != nil && now.Before(f.notBefore)
	if f.open.count > 0 && (f.ended != nil || refused || !now.Before(f.open.since.Add(f.o.timeout))) {
		return action{do: doSeal}
	}
	if f.rewinding && f.rewind() {
		return f.step(now) // it may have given up batches
	}
	if p := f.toDivide(); p != nil && !f.rewinding {
		return action{do: doDivide, p: p}
	}
	if f.ended != nil || !f.connected || f.rewinding {
		return f.wait(time.Time{})
	}
	if now.Before(f.notBefore) {
		return f.wait(f.notBefore)
	}
	return f.forward(now)
}

// toDivide is the first batch that is to be divided, or nil.
func (f *flow) toDivide() *packet {
	for _, p := range f.queue {
		if p.divide != nil && !p.final {
			return p
		}
	}
	return nil
}

// giveUpDivisions gives up batches that were to be divided, and that are before one which keeps its number because it
// may have been stored: their messages would get numbers above that one's.
func (f *flow) giveUpDivisions() {
	for i, p := range f.queue {
		if p.divide != nil && slices.ContainsFunc(f.queue[i+1:], func(q *packet) bool { return q.numbered && !q.final }) {
			p.give(p.divide)
		}
	}
}

// divided notes that a and b have the messages of p: a the first half, rounded down.
func (f *flow) divided(p, a, b *packet) {
	i := slices.Index(f.queue, p)
	a.unit, b.unit = p.unit, p.unit
	a.count, a.divide = p.count/2, nil
	b.count, b.divide = p.count-a.count, nil
	f.queue = slices.Replace(f.queue, i, i+1, a, b)
}

// forward is the part of step for a connection that can be used.
func (f *flow) forward(now time.Time) action {
	at := len(f.queue)
	for i, p := range f.queue {
		if !p.final && !p.onWay() {
			at = i
			break
		}
	}
	if f.producer == producerNone && (f.eager || f.open.count > 0 || at < len(f.queue)) {
		f.producer, f.asked, f.refusal = producerAsked, now, nil
		return action{do: doOpen}
	}
	if f.producer != producerOpen || at >= f.o.inFlight {
		return f.wait(time.Time{})
	}
	if at < len(f.queue) {
		p := f.queue[at]
		if !p.numbered {
			p.numbered, p.base = true, f.next
			f.next += p.count
		}
		p.sent = now
		return action{do: doSend, p: p, base: p.base, lone: len(f.queue) == 1 && f.open.count == 0}
	}
	if f.open.count == 0 {
		return f.wait(time.Time{})
	}
	ripe := f.open.since.Add(f.o.linger)
	if f.flushing || f.open.bytes >= f.o.maxBytes || !now.Before(ripe) {
		return action{do: doSeal}
	}
	return f.wait(ripe)
}

// expire takes attempts that had no answer for too long as lost.
func (f *flow) expire(now time.Time) {
	if f.producer == producerAsked && now.Sub(f.asked) >= f.o.timeout {
		f.openRefused(now, verdictPerhaps, errNoAnswer)
	}
	for _, p := range f.queue {
		if p.onWay() && now.Sub(p.sent) >= f.o.timeout {
			f.answered(now, p, verdictPerhaps, 0, false, errNoAnswer)
		}
	}
}

// tell returns the step that tells what became of batch i, which is final or has used up its time.
func (f *flow) tell(i int) action {
	p := f.queue[i]
	if !p.final && !p.numbered {
		p.give(because(ErrNoLeader, f.reason))
	}
	a := action{do: doTell, p: p, err: p.err}
	if !p.final {
		a.err = because(ErrUnknown, f.reason)
	}
	p.told = true
	if a.left = p.final && (i == 0 || !p.numbered); a.left {
		f.remove(i)
	}
	if a.err != nil && f.o.stop {
		f.end(ErrStopped)
	}
	return a
}

func (f *flow) remove(i int) *packet {
	p := f.queue[i]
	copy(f.queue[i:], f.queue[i+1:])
	f.queue[len(f.queue)-1] = nil
	f.queue = f.queue[:len(f.queue)-1]
	return p
}

// rewind goes back to the first batch that is not stored, once no batch is on its way. It returns false until then.
func (f *flow) rewind() bool {
	for _, p := range f.queue {
		if p.onWay() {
			return false
		}
	}
	f.rewinding = false
	back := f.back
	f.back.has = false
	if f.restart {
		f.restart, f.producer = false, producerNone
		for _, p := range f.queue {
			if p.maybe || p.told {
				p.give(ErrUnknown)
			}
			p.numbered = p.numbered && p.final
		}
		return true
	}
	for i := len(f.queue) - 1; i >= 0; i-- { // numbers that were certainly not used
		p := f.queue[i]
		if p.final && !p.numbered { // refused
			continue
		}
		if p.final || p.maybe {
			back.has = back.has && int32(p.base-back.base) < 0
			break
		}
		if p.numbered {
			p.numbered, f.next = false, p.base
		}
		if p.told { // as unknown; there is no use in storing it now
			p.give(ErrUnknown)
		}
	}
	if back.has && int32(back.base-f.next) < 0 {
		f.next = back.base
	}
	f.giveUpDivisions()
	return true
}

// due is when a message is to be told, at the latest, or an attempt to be given up.
func (f *flow) due(now time.Time) time.Time { return f.wait(now.Add(f.o.timeout)).until }

// wait waits for events, until the given time at the latest, if there is one, and not beyond a deadline.
func (f *flow) wait(until time.Time) action {
	sooner := func(t time.Time) {
		if until.IsZero() || t.Before(until) {
			until = t
		}
	}
	if i := f.firstUntold(); i >= 0 {
		sooner(f.queue[i].deadline)
	}
	if f.open.count > 0 {
		sooner(f.open.since.Add(f.o.timeout))
	}
	for _, p := range f.queue {
		if p.onWay() {
			sooner(p.sent.Add(f.o.timeout))
		}
	}
	if f.producer == producerAsked {
		sooner(f.asked.Add(f.o.timeout))
	}
	return action{do: doWait, until: until}
}
