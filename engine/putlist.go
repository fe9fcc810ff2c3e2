package engine

// putList is a queue of puts, linked by Put.next, oldest first. A put is in one list at most, and only the methods here
// touch the links. The zero value is empty.
//
// A list has no lock: it belongs to whoever holds the lock of its owner. An inbox is partition.mu's, a lane that of the
// forwarder, and the batches in pendingQueue that of the replica. A list that was taken from there is the taker's alone.
type putList struct {
	head, tail *Put  // both are nil, or neither
	bytes      int64 // sum of Put.bytes, which does not change while a put is in a list
}

func (l *putList) empty() bool { return l.head == nil }

// count walks the list.
func (l *putList) count() (n int) {
	for p := l.head; p != nil; p = p.next {
		n++
	}
	return n
}

// push adds p, which is in no list, at the end.
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

// pushFront adds p, which is in no list, before all others.
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

// append moves all of other behind what is there.
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

// prepend moves all of other before what is there.
func (l *putList) prepend(other putList) {
	other.append(*l)
	*l = other
}

// insert adds p, which is in no list, by Put.order: the list is sorted by it. Most often p is the last.
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

// remove takes p out and says whether it was in the list. It walks the list.
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

// takeIf takes out those puts that which chooses; all keep their order.
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

// removeAfter takes out p, which stands behind before; nil: it is the first.
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
