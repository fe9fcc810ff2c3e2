package engine

// putList is a queue of puts, linked by Put.next, oldest first. A put is in at most one list, and only the methods here
// access the links. The zero value is an empty list.
//
// A list has no lock of its own: the lock of its owner guards it. That is partition.mu for an inbox, forwarder.mu for a
// lane, and replica.mu for the batches of a pendingQueue. A list that was taken from there belongs to the taker alone.
type putList struct {
	head, tail *Put  // both are nil, or neither
	bytes      int64 // sum of Put.bytes, which does not change while a put is in a list
}

// first returns the oldest put; nil: the list is empty.
func (l *putList) first() *Put { return l.head }

// after returns the put behind p, which is in the list.
func (l *putList) after(p *Put) *Put { return p.next }

// size is the sum of the sizes of the puts.
func (l *putList) size() int64 { return l.bytes }

func (l *putList) empty() bool { return l.head == nil }

// count walks the list.
func (l *putList) count() (n int) {
	for p := l.head; p != nil; p = p.next {
		n++
	}
	return n
}

// push appends p, which is in no list.
func (l *putList) push(p *Put) {
	p.next = nil
	if l.tail == nil {
		l.head = p
	} else {
		l.tail.next = p
	}
	l.tail = p
	l.bytes += int64(p.bytes)
}

// pushFront inserts p, which is in no list, before all others.
func (l *putList) pushFront(p *Put) {
	if p.next = l.head; l.tail == nil {
		l.tail = p
	}
	l.head = p
	l.bytes += int64(p.bytes)
}

// pop removes the oldest put; nil: the list is empty.
func (l *putList) pop() *Put {
	p := l.head
	if p == nil {
		return nil
	}
	if l.head = p.next; l.head == nil {
		l.tail = nil
	}
	p.next = nil
	l.bytes -= int64(p.bytes)
	return p
}

// take empties the list and returns what was in it.
func (l *putList) take() putList {
	taken := *l
	*l = putList{}
	return taken
}

// append moves all puts of other to the end.
func (l *putList) append(other putList) {
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

// prepend moves all puts of other to the front.
func (l *putList) prepend(other putList) {
	other.append(*l)
	*l = other
}

// insert inserts p, which is in no list, into a list that is sorted by Put.order. Usually p becomes the last.
func (l *putList) insert(p *Put) {
	switch {
	case l.tail == nil || l.tail.order < p.order:
		l.push(p)
		return
	case p.order < l.head.order:
		l.pushFront(p)
		return
	}
	q := l.head
	for q.next.order < p.order {
		q = q.next
	}
	p.next, q.next = q.next, p
	l.bytes += int64(p.bytes)
}

// remove removes p and says whether it was in the list. It walks the list.
func (l *putList) remove(p *Put) bool {
	var before *Put
	for q := l.head; q != nil; before, q = q, q.next {
		if q == p {
			l.removeAfter(before, p)
			return true
		}
	}
	return false
}

// takeIf removes the puts that which selects and returns them. Both lists keep the order.
func (l *putList) takeIf(which func(*Put) bool) (taken putList) {
	var before *Put
	for p := l.head; p != nil; {
		next := p.next
		if which(p) {
			l.removeAfter(before, p)
			taken.push(p)
		} else {
			before = p
		}
		p = next
	}
	return taken
}

// removeAfter removes p, whose predecessor is before; nil: p is the first.
func (l *putList) removeAfter(before, p *Put) {
	if before == nil {
		l.head = p.next
	} else {
		before.next = p.next
	}
	if l.tail == p {
		l.tail = before
	}
	p.next = nil
	l.bytes -= int64(p.bytes)
}
