package client

import (
	"time"

	"penstock/native/wire"
)

// ledger is what a consumer knows of one subscription: which of the deliveries that the application got are in flight,
// what is to be said to the leader about them, how much credit the leader has, and which finishes it has confirmed. It
// does no I/O and reads no clock: times are since the consumer began. Consumer.mu guards it.
//
// Invariants:
//
//   - first <= index of a delivery in flight < end. Indexes count what the application got, in its order, which is the
//     leader's: seq and number grow with the index.
//   - A delivery is said to be in flight no longer than the leader holds it to be. The leader's time began before the
//     delivery arrived, so what is over here is over there, except for a delivery that was touched: there the leader's
//     time may be longer by the way of the Touch.
//   - share >= credit + waiting + held, unless the share became smaller, or the leader exceeds its credit by its last
//     message, which it may.
type ledger struct {
	timeout, most time.Duration // of a delivery without and with touches; 0: not known, nothing is over

	entries    []entry // by index modulo their number, which is a power of two
	first, end uint64

	share   int // bytes
	credit  int // that the leader has, as far as is known
	waiting int // bytes that arrived and that the application did not get
	held    int // bytes of deliveries in flight that it got

	say      sayings
	wantSync bool   // another Sync is needed
	asked    uint64 // Syncs sent; each is answered before the next one
	answered uint64
	open     bool // something was finished or requeued since the newest Sync was sent
	covered  bool // something was when it was sent, and there was no answer yet
}

// entry is a delivery that the application got.
type entry struct {
	id      ID
	number  uint64        // that the leader gave the delivery
	seq     uint64        // of the consumer's deliveries
	arrived time.Duration // when
	due     time.Duration // when it is not in flight any more; 0: never
	bytes   int
	gone    bool // finished, requeued, or not in flight any more
	touched bool
}

// sayings are what the leader is to be told, in this order: a requeued delivery must not be finished with those before
// another one.
type sayings struct {
	requeue   []wire.Delayed
	touch     []uint64
	finish    []uint64
	through   uint64 // number of the delivery; 0: none
	throughID uint64
}

func (s *sayings) empty() bool {
	return len(s.requeue)+len(s.touch)+len(s.finish) == 0 && s.through == 0
}

func (s *sayings) clear() {
	s.requeue, s.touch, s.finish, s.through = s.requeue[:0], s.touch[:0], s.finish[:0], 0
}

func (l *ledger) at(index uint64) *entry { return &l.entries[index&uint64(len(l.entries)-1)] }

// live returns a delivery that is in flight, or nil.
func (l *ledger) live(now time.Duration, index uint64) *entry {
	if index < l.first || index >= l.end {
		return nil
	}
	if e := l.at(index); !e.gone && !e.over(now) {
		return e
	}
	return nil
}

func (e *entry) over(now time.Duration) bool { return e.due != 0 && now >= e.due }

// drop notes that a delivery is not in flight any more.
func (l *ledger) drop(e *entry) {
	if !e.gone {
		e.gone = true
		l.held -= e.bytes
	}
}

// sweep forgets deliveries from the oldest one on that are not in flight any more.
func (l *ledger) sweep(now time.Duration) {
	for l.first < l.end {
		e := l.at(l.first)
		if !e.gone && !e.over(now) {
			return
		}
		l.drop(e)
		l.first++
	}
}

// arrive notes that so many bytes of deliveries have arrived.
func (l *ledger) arrive(bytes int) { l.credit, l.waiting = l.credit-bytes, l.waiting+bytes }

// skip notes that the application does not get so many bytes of deliveries that arrived.
func (l *ledger) skip(bytes int) { l.waiting -= bytes }

// add notes a delivery that the application gets, and returns its index. again: the message was delivered before, so an
// earlier delivery is over, even if that is not known here yet.
func (l *ledger) add(now time.Duration, e entry, again bool) uint64 {
	l.sweep(now)
	if again {
		l.supersede(now, e.id)
	}
	if n := uint64(len(l.entries)); l.end-l.first == n {
		bigger := make([]entry, max(2*n, 64))
		for i := l.first; i < l.end; i++ {
			bigger[i&uint64(len(bigger)-1)] = *l.at(i)
		}
		l.entries = bigger
	}
	if l.timeout > 0 {
		e.due = e.arrived + l.timeout
	}
	l.waiting -= e.bytes
	l.held += e.bytes
	*l.at(l.end) = e
	l.end++
	return l.end - 1
}

// supersede drops the earlier deliveries of a message. They can only be among those whose time is nearly over, since
// the leader took them for over, so that few are looked at.
func (l *ledger) supersede(now time.Duration, id ID) {
	for i := l.first; i < l.end; i++ {
		e := l.at(i)
		if !e.touched && e.due-now > l.timeout/2 {
			return
		}
		if e.id == id {
			l.drop(e)
		}
	}
}

// finish says that a delivery is done. It returns false if the delivery is not in flight.
func (l *ledger) finish(now time.Duration, index uint64) bool {
	e := l.live(now, index)
	if e == nil {
		return false
	}
	l.drop(e)
	l.sweep(now)
	l.say.finish = append(l.say.finish, uint64(e.id))
	l.open = true
	return true
}

// through says that every delivery is done that the application got up to seq. It returns false if none is in flight.
func (l *ledger) through(now time.Duration, seq uint64) (any bool) {
	for ; l.first < l.end; l.first++ {
		e := l.at(l.first)
		if e.seq > seq {
			break
		}
		if !e.gone && !e.over(now) {
			l.say.through, l.say.throughID = e.number, uint64(e.id)
			l.open, any = true, true
		}
		l.drop(e)
	}
	return any
}

// requeue gives a delivery back. It returns false if the delivery is not in flight.
func (l *ledger) requeue(now time.Duration, index uint64, delayMs uint32) bool {
	e := l.live(now, index)
	if e == nil {
		return false
	}
	l.drop(e)
	l.sweep(now)
	l.say.requeue = append(l.say.requeue, wire.Delayed{ID: uint64(e.id), DelayMs: delayMs})
	l.open = true
	return true
}

// touch begins a delivery's time anew. It returns false if the delivery is not in flight.
func (l *ledger) touch(now time.Duration, index uint64) bool {
	e := l.live(now, index)
	if e == nil {
		return false
	}
	if e.touched = true; l.timeout > 0 {
		e.due = max(e.due, min(now+l.timeout, e.arrived+l.most))
	}
	l.say.touch = append(l.say.touch, uint64(e.id))
	return true
}

// refusedTouch notes that a Touch came too late.
func (l *ledger) refusedTouch(id ID) {
	for i := l.first; i < l.end; i++ {
		if e := l.at(i); e.id == id {
			l.drop(e)
		}
	}
}

// grant returns how many bytes of credit the leader gets in addition, 0 for none. They are given in large pieces,
// unless the leader has none left.
func (l *ledger) grant(now time.Duration) int {
	l.sweep(now)
	if l.credit <= 0 { // the bytes of every delivery that is over count
		l.nextDue(now)
	}
	n := l.share - l.credit - l.waiting - l.held
	if n <= 0 || l.credit > 0 && n < l.share/4 {
		return 0
	}
	l.credit += n
	return n
}

// nextDue drops the deliveries that are over, and returns when the next one will be; 0: none will.
func (l *ledger) nextDue(now time.Duration) (next time.Duration) {
	for i := l.first; i < l.end; i++ {
		e := l.at(i)
		if e.over(now) {
			l.drop(e)
		}
		if !e.gone && e.due > 0 && (next == 0 || e.due < next) {
			next = e.due
		}
	}
	return next
}

// starves returns when to look for credit again, although nothing happens: the leader has none, and deliveries that the
// application leaves alone give theirs back when they are over. 0: never.
func (l *ledger) starves(now time.Duration) time.Duration {
	if l.credit > 0 {
		return 0
	}
	return l.nextDue(now)
}

// promise returns the number of the Sync whose answer confirms everything that was finished or requeued so far, and
// asks for it if need be. 0: everything is confirmed.
func (l *ledger) promise() uint64 {
	switch {
	case l.open:
		l.wantSync = true
		return l.asked + 1
	case l.covered:
		return l.asked
	}
	return 0
}

// sync says whether to send a Sync now, after everything in say.
func (l *ledger) sync() bool {
	if !l.wantSync || l.asked > l.answered {
		return false
	}
	l.wantSync = false
	l.asked++
	l.covered, l.open = true, false
	return true
}

// synced notes the answer to the Sync that was sent last.
func (l *ledger) synced() {
	l.answered = l.asked
	l.covered = false
}

// unconfirmed says whether something was finished or requeued that the leader has not confirmed.
func (l *ledger) unconfirmed() bool { return l.open || l.covered }
