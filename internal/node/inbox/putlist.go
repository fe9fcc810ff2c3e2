package inbox

// List is a queue of puts, linked by Put.next, oldest first. A put is in at most one list, and only the methods here
// access the links. The zero value is an empty list.
//
// A list has no lock of its own; the lock of its owner guards it: Inbox.mu for an inbox, Forwarder.mu for a lane, and
// Replica.mu for the batches of a pendingQueue. A list that was taken from its owner belongs to the taker alone.
type List struct {
	head, tail *Put  // both are nil, or neither
	bytes      int64 // sum of Put.Bytes, which does not change while a put is in a list
}

func (l *List) First() *Put { return l.head }

// After returns the put behind p, or nil if p is the last. p is in the list.
func (l *List) After(p *Put) *Put { return p.next }
func (l *List) Size() int64       { return l.bytes }
func (l *List) Empty() bool       { return l.head == nil }

// Count walks the list.
func (l *List) Count() (n int) {
	for p := l.head; p != nil; p = p.next {
		n++
	}
	return n
}

// Push appends p, which is in no list.
func (l *List) Push(p *Put) {
	p.next = nil
	if l.tail == nil {
		l.head = p
	} else {
		l.tail.next = p
	}
	l.tail = p
	l.bytes += int64(p.Bytes)
}

// PushFront inserts p, which is in no list, before all others.
func (l *List) PushFront(p *Put) {
	if p.next = l.head; l.tail == nil {
		l.tail = p
	}
	l.head = p
	l.bytes += int64(p.Bytes)
}

// Pop removes and returns the oldest put, or returns nil if the list is empty.
func (l *List) Pop() *Put {
	p := l.head
	if p == nil {
		return nil
	}
	if l.head = p.next; l.head == nil {
		l.tail = nil
	}
	p.next = nil
	l.bytes -= int64(p.Bytes)
	return p
}

// Take empties the list and returns what was in it.
func (l *List) Take() List {
	taken := *l
	*l = List{}
	return taken
}

// Append moves all puts of other to the end.
func (l *List) Append(other List) {
	switch {
	case other.head == nil:
		return
	case l.head == nil:
		l.head = other.head
	default:
		l.tail.next = other.head
	}
	l.tail = other.tail
	l.bytes += other.bytes
}

// Prepend moves all puts of other to the front.
func (l *List) Prepend(other List) {
	other.Append(*l)
	*l = other
}

// Insert inserts p, which is in no list, into a list that is sorted by Put.Order. Usually p becomes the last.
func (l *List) Insert(p *Put) {
	switch {
	case l.tail == nil || l.tail.Order < p.Order:
		l.Push(p)
		return
	case p.Order < l.head.Order:
		l.PushFront(p)
		return
	}
	q := l.head
	for q.next.Order < p.Order {
		q = q.next
	}
	p.next, q.next = q.next, p
	l.bytes += int64(p.Bytes)
}

// remove removes p and says whether it was in the list. It walks the list.
func (l *List) remove(p *Put) bool {
	var before *Put
	for q := l.head; q != nil; before, q = q, q.next {
		if q == p {
			l.removeAfter(before, p)
			return true
		}
	}
	return false
}

// TakeIf removes and returns the puts for which which returns true. Both lists keep the order.
func (l *List) TakeIf(which func(*Put) bool) (taken List) {
	var before *Put
	for p := l.head; p != nil; {
		next := p.next
		if which(p) {
			l.removeAfter(before, p)
			taken.Push(p)
		} else {
			before = p
		}
		p = next
	}
	return taken
}

// removeAfter removes p. before is the predecessor of p, or nil if p is the first.
func (l *List) removeAfter(before, p *Put) {
	if before == nil {
		l.head = p.next
	} else {
		before.next = p.next
	}
	if l.tail == p {
		l.tail = before
	}
	p.next = nil
	l.bytes -= int64(p.Bytes)
}
