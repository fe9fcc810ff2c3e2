// Package pull decides about the deliveries that wait in memory until a program takes them: in which order it gets
// them, which of them it must not get any more, and when their channel is asked for more. It has no I/O, no clock and
// no goroutine.
package pull

import "penstock/internal/node/message"

// Item is a delivery that waits, with memory of its own for the bytes.
type Item struct {
	ID        message.ID
	Timestamp int64 // when it was published, ns since 1970
	Attempts  uint16
	Number    uint64 // message.Delivery.Number
	Body      []byte
	Headers   []message.Header // nil: none

	at      int64            // when it was delivered, by the owner's clock
	until   message.Deadline // it must not be taken any more after this time
	headers []message.Header // memory of Headers, used again for the next delivery
	text    []byte           // the names and values that headers point into
}

// maxKeptBytes bounds the memory of an item that is used for another delivery.
const maxKeptBytes = 64 << 10

// fill copies a delivery, whose bytes are borrowed, into the item's own memory.
func (it *Item) fill(d *message.Delivery, now int64) {
	it.ID, it.Timestamp, it.Attempts, it.Number = d.ID, d.Timestamp, d.Attempts, d.Number
	it.at, it.until = now, d.Until
	it.Body = append(it.Body[:0], d.Body...)
	if it.Headers = nil; len(d.Headers) == 0 {
		return
	}
	it.headers, it.text = it.headers[:0], it.text[:0]
	for i := range d.Headers {
		it.text = append(append(it.text, d.Headers[i].Key...), d.Headers[i].Value...)
	}
	text := it.text
	for i := range d.Headers {
		name, end := len(d.Headers[i].Key), len(d.Headers[i].Key)+len(d.Headers[i].Value)
		it.headers = append(it.headers, message.Header{Key: text[:name:name], Value: text[name:end:end]})
		text = text[end:]
	}
	it.Headers = it.headers
}

// shrink gives up large memory.
func (it *Item) shrink() {
	if cap(it.Body) > maxKeptBytes {
		it.Body = nil
	}
	if cap(it.text) > maxKeptBytes {
		it.text, it.headers, it.Headers = nil, nil, nil
	}
}

// Queue holds the deliveries of one consumer, first in, first out: at most as many as may be in flight to it. Its
// owner, node.Messages, guards it with a lock, knows the time and does what the results say. Times are in ns by any
// one clock. A crash forgets the queue: what was in it is delivered again.
type Queue struct {
	max     int
	timeout int64

	ring    []Item // of the next n items, the first is at head; grows up to max
	head, n int
	heldN   int                    // items with a deadline
	dropped []message.HeldDelivery // those that were dropped since Dropped was called

	waiting int   // takers that found nothing, and wait
	settled int   // messages that were finished or requeued since the channel was asked for more
	ended   error // why no more come
}

// NewQueue returns a queue for a consumer that has max messages in flight at most, each for timeout at most.
func NewQueue(max int, timeout int64) Queue { return Queue{max: max, timeout: timeout} }

// Add adds a delivery, whose bytes are borrowed. It returns true if a taker waits and must be woken. If the queue is
// full, messages in it have timed out, because more are never in flight (see Lost for those of a leader that is lost):
// Add drops the one that has waited longest.
func (q *Queue) Add(d *message.Delivery, now int64) (wake bool) {
	if q.ended != nil {
		return false
	}
	if q.n == q.max {
		q.drop(q.pop())
	}
	if q.n == len(q.ring) {
		q.grow()
	}
	it := &q.ring[(q.head+q.n)%len(q.ring)]
	it.fill(d, now)
	q.n++
	if !it.until.IsZero() {
		q.heldN++
	}
	return q.waiting > 0
}

func (q *Queue) grow() {
	ring := make([]Item, min(q.max, max(8, 2*len(q.ring))))
	n := copy(ring, q.ring[q.head:])
	copy(ring[n:], q.ring[:q.head])
	q.ring, q.head = ring, 0
}

// pop removes the first item. It is valid until the next Add.
func (q *Queue) pop() *Item {
	it := &q.ring[q.head]
	q.head = (q.head + 1) % len(q.ring)
	q.n--
	if !it.until.IsZero() {
		q.heldN--
	}
	return it
}

// drop notes that a delivery was removed which the program has not got.
func (q *Queue) drop(it *Item) {
	if !it.until.IsZero() {
		q.dropped = append(q.dropped, message.HeldDelivery{ID: it.ID, Until: it.until})
	}
}

// Taken is the result of Take. If Got is false, the taker waits, and calls Waited afterwards.
type Taken struct {
	Got   bool
	Renew bool // the message has waited for so long that its timeout must be started anew, before the program gets it
	Wake  bool // there is more, or the end, and another taker waits: it must be woken
	Pump  bool // nothing is there, and the channel must be asked for more: then try again
	Err   error
}

// Take moves the first delivery that the program may still get into it, whose old memory the queue uses for another
// delivery. It leaves out those that have timed out, since the channel delivers them again, and drops those whose
// deadline has passed. passed reads the clock of a deadline.
func (q *Queue) Take(it *Item, now int64, passed func(*message.Deadline) bool) Taken {
	if q.ended != nil {
		return Taken{Err: q.ended, Wake: q.waiting > 0}
	}
	for q.n > 0 {
		first := q.pop()
		if !first.until.IsZero() && passed(&first.until) {
			q.drop(first)
			continue
		}
		waited := now - first.at
		if waited >= q.timeout {
			continue
		}
		it.shrink()
		*it, *first = *first, *it
		return Taken{Got: true, Renew: waited >= q.timeout/2, Wake: q.n > 0 && q.waiting > 0}
	}
	if q.settled > 0 {
		q.settled = 0
		return Taken{Pump: true}
	}
	q.waiting++
	return Taken{}
}

// Waited ends the wait of a taker that found nothing.
func (q *Queue) Waited() { q.waiting-- }

// Settled notes that the program has finished or requeued a message. It returns true if the channel must be asked for
// more now: somebody waits for a message, or half of what may be in flight is free.
func (q *Queue) Settled() (pump bool) {
	q.settled++
	if q.n == 0 && q.waiting > 0 || q.settled >= (q.max+1)/2 {
		q.settled = 0
		return true
	}
	return false
}

// End drops everything. From now on Take returns why. It returns true if a taker waits and must be woken.
func (q *Queue) End(why error) (wake bool) {
	if q.ended == nil {
		q.ended = why
	}
	q.ring, q.head, q.n, q.heldN, q.dropped = nil, 0, 0, 0, nil
	return q.waiting > 0
}

// Drained says whether no delivery with a deadline waits.
func (q *Queue) Drained() bool { return q.heldN == 0 }

// Withdraw drops the delivery of a message with a deadline, if one waits.
func (q *Queue) Withdraw(id message.ID) {
	for i := 0; i < q.n && q.heldN > 0; i++ {
		it := &q.ring[(q.head+i)%len(q.ring)]
		if it.ID != id || it.until.IsZero() {
			continue
		}
		q.drop(it)
		for ; i+1 < q.n; i++ { // the ones behind move up; the memory of the dropped one goes to the end
			a, b := &q.ring[(q.head+i)%len(q.ring)], &q.ring[(q.head+i+1)%len(q.ring)]
			*a, *b = *b, *a
		}
		q.n--
		q.heldN--
	}
}

// Lost drops the deliveries of a path that has ended. Their messages are delivered again on another path.
func (q *Queue) Lost(origin any) {
	kept := 0
	for i := range q.n {
		it := &q.ring[(q.head+i)%len(q.ring)]
		if it.until.Origin == origin {
			if !it.until.IsZero() {
				q.heldN--
			}
			continue
		}
		if to := &q.ring[(q.head+kept)%len(q.ring)]; to != it { // the memory of the dropped one goes to the end
			*to, *it = *it, *to
		}
		kept++
	}
	q.n = kept
}

// Dropped appends to dst the deliveries with a deadline that were dropped since the last call.
func (q *Queue) Dropped(dst []message.HeldDelivery) []message.HeldDelivery {
	dst = append(dst, q.dropped...)
	clear(q.dropped)
	q.dropped = q.dropped[:0]
	return dst
}
