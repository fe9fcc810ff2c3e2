package client

import (
	"time"

	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// ledger is what a consumer knows of one subscription: which of the deliveries that the application got are in flight,
// what is to be said to the leader about them, how much credit the leader has, and which finishes it has confirmed. It
// does no I/O and reads no clock: times are since the consumer began. Consumer.mu guards it.
//
// Invariants:
//
//   - first <= index of a delivery in flight < end. Indexes count what the application got, in its order, which is the
//     leader's: seq and number grow with the index.
//   - A delivery is said to be in flight hardly longer than the leader holds it to be: the leader's time began before
//     the delivery arrived. But the leader may notice some milliseconds later that it is over; a Touch is on its way.
//   - A FinishThrough never has the number of a delivery, or a higher one, that the application did not finish and that
//     the leader may still hold in flight.
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

	// The smallest number of such a delivery that the leader may hold in flight; 0: there is none. fresh is that of the
	// ones that were requeued since the newest Sync was sent, stuck that of the ones that the leader holds until their
	// time is over, which is at stuckUntil. A Sync that is sent then (lapses) says that the leader has noticed.
	hole, fresh, stuck uint64
	stuckUntil         time.Duration
	lapses             bool

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
	touch     []wire.Handle
	finish    []wire.Handle
	through   uint64 // number of the delivery; 0: none
	throughID uint64
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

// handle names the delivery to the leader.
func (e *entry) handle() wire.Handle { return wire.Handle{Number: e.number, ID: uint64(e.id)} }

func (e *entry) over(now time.Duration) bool { return e.due != 0 && now >= e.due }

// drop notes that a delivery is not in flight any more.
func (l *ledger) drop(e *entry) {
	if !e.gone {
		e.gone = true
		l.held -= e.bytes
	}
}

// lapse drops a delivery whose time is over here. The leader may not have noticed yet.
func (l *ledger) lapse(now time.Duration, e *entry) {
	if !e.gone {
		l.drop(e)
		l.giveUp(now, e.number)
	}
}

// sweep forgets deliveries from the oldest one on that are not in flight any more.
func (l *ledger) sweep(now time.Duration) {
	for l.first < l.end {
		e := l.at(l.first)
		if !e.gone && !e.over(now) {
			return
		}
		l.lapse(now, e)
		l.first++
	}
}

// arrive notes that so many bytes of deliveries have arrived.
func (l *ledger) arrive(bytes int) { l.credit, l.waiting = l.credit-bytes, l.waiting+bytes }

// skip notes that the application does not get so many bytes of deliveries that arrived.
func (l *ledger) skip(bytes int) { l.waiting -= bytes }

// add notes a delivery that the application gets, and returns its index. The caller has swept before, and has set due
// (see dueOf).
func (l *ledger) add(e *entry) uint64 {
	if l.end-l.first == uint64(len(l.entries)) {
		l.grow()
	}
	l.waiting -= e.bytes
	l.held += e.bytes
	*l.at(l.end) = *e
	l.end++
	return l.end - 1
}

// grow makes room for further entries.
func (l *ledger) grow() {
	bigger := make([]entry, max(2*len(l.entries), 64))
	for i := l.first; i < l.end; i++ {
		bigger[i&uint64(len(bigger)-1)] = *l.at(i)
	}
	l.entries = bigger
}

// dueOf returns the time at which a delivery that arrived at the given time stops being in flight, or 0 if it has no
// timeout.
func (l *ledger) dueOf(arrived time.Duration) time.Duration {
	if l.timeout <= 0 {
		return 0
	}
	return arrived + l.timeout
}

// supersede drops the earlier deliveries of a message that is delivered again: they are over, even if that is not known
// here yet. They can only be among those whose time is nearly over, since the leader took them for over, so that few
// are looked at.
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
	l.say.finish = append(l.say.finish, e.handle())
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
		switch {
		case e.gone:
		case e.over(now):
			l.lapse(now, e)
		default:
			l.sayThrough(now, e)
			l.open, any = true, true
			l.drop(e)
		}
	}
	return any
}

// sayThrough says that a delivery is done, after all before it.
func (l *ledger) sayThrough(now time.Duration, e *entry) {
	if l.hole == 0 || e.number < l.hole {
		l.say.through, l.say.throughID = e.number, uint64(e.id)
		return
	}
	l.say.finish = append(l.say.finish, e.handle())
	// The answer to a Sync says which are not in flight any more.
	l.wantSync = l.wantSync || l.hole != l.stuck || now >= l.stuckUntil
}

// lower makes least the number if that is smaller, or the first one. 0 is no number.
func lower(least *uint64, number uint64) {
	if number != 0 && (*least == 0 || number < *least) {
		*least = number
	}
}

// lapseMargin is how much longer the leader may count a delivery as in flight than this client does: the leader rounds
// times up to milliseconds, looks at them only now and then, and its clock may run a little slower.
const lapseMargin = time.Second

// giveUp notes that the time of the delivery with the number, or of those of a frame from it on, is over here. The
// leader may not have noticed yet.
func (l *ledger) giveUp(now time.Duration, number uint64) { l.stick(number, now+lapseMargin) }

// refusedRequeue notes that a delivery was not given back. If it had been in flight, it still is.
func (l *ledger) refusedRequeue(now time.Duration, number uint64, status netproto.Status) {
	if status != netproto.StatusRejected {
		l.stick(number, now+l.most+lapseMargin)
	}
}

// stick notes that the leader may hold deliveries in flight that are not finished, the first of which has the number.
func (l *ledger) stick(number uint64, until time.Duration) {
	lower(&l.hole, number)
	lower(&l.stuck, number)
	l.stuckUntil, l.lapses = max(l.stuckUntil, until), false
}

// requeue gives a delivery back. It returns false if the delivery is not in flight.
func (l *ledger) requeue(now time.Duration, index uint64, delayMs uint32) bool {
	e := l.live(now, index)
	if e == nil {
		return false
	}
	l.drop(e)
	l.sweep(now)
	l.say.requeue = append(l.say.requeue, wire.Delayed{Handle: e.handle(), DelayMs: delayMs})
	lower(&l.hole, e.number) // the leader may refuse it for lack of room
	lower(&l.fresh, e.number)
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
	l.say.touch = append(l.say.touch, e.handle())
	return true
}

// refusedTouch notes that a Touch came too late, or that the leader had no room for it: then the delivery is in flight
// there until its time is over, which began before the Touch.
func (l *ledger) refusedTouch(now time.Duration, h wire.Handle, status netproto.Status) {
	for i := l.first; i < l.end; i++ {
		if e := l.at(i); e.handle() == h && !e.gone {
			l.drop(e)
			if status != netproto.StatusRejected {
				l.stick(h.Number, now+l.most+lapseMargin)
			}
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

// nextDue drops the deliveries whose time is over, and returns when the next one ends, or 0 if none does.
func (l *ledger) nextDue(now time.Duration) (next time.Duration) {
	for i := l.first; i < l.end; i++ {
		e := l.at(i)
		if e.over(now) {
			l.lapse(now, e)
		}
		if !e.gone && e.due > 0 && (next == 0 || e.due < next) {
			next = e.due
		}
	}
	return next
}

// starves returns when to look for credit again, although nothing happens: the leader has none, and deliveries that the
// application leaves alone give theirs back when they are over. It returns 0 if there is nothing to wait for.
func (l *ledger) starves(now time.Duration) time.Duration {
	if l.credit > 0 {
		return 0
	}
	return l.nextDue(now)
}

// promise returns the number of the Sync whose answer confirms everything that was finished or requeued so far, and
// queues that Sync if it was not sent. It returns 0 if everything is confirmed.
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
func (l *ledger) sync(now time.Duration) bool {
	if !l.wantSync || l.asked > l.answered {
		return false
	}
	l.wantSync = false
	l.asked++
	l.covered, l.open, l.fresh = true, false, 0
	l.lapses = now >= l.stuckUntil
	return true
}

// synced notes the answer to the Sync that was sent last. ok: the leader has done everything before it, or has refused
// it by name.
func (l *ledger) synced(ok bool) {
	l.answered = l.asked
	l.covered = false
	if ok {
		if l.lapses {
			l.stuck = 0
		}
		l.hole = l.fresh
		lower(&l.hole, l.stuck)
	}
}

// unconfirmed says whether something was finished or requeued that the leader has not confirmed.
func (l *ledger) unconfirmed() bool { return l.open || l.covered }
