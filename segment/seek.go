package segment

import "cmp"

// Seek finds the batch that holds message id, and returns the batch's offset and first id. ErrAtEnd says that id is the
// next id to be written; then the offset is the log's end. Other errors are those of View.
func (l *Log) Seek(id MsgID) (at Offset, firstID MsgID, err error) {
	l.mu.Lock()
	switch {
	case l.closed:
		l.mu.Unlock()
		return 0, 0, ErrClosed
	case id >= l.end.id:
		end := l.end
		l.mu.Unlock()
		if id > end.id {
			return 0, 0, ErrPastEnd
		}
		return end.off, end.id, ErrAtEnd
	case id < l.start.id:
		l.mu.Unlock()
		return 0, 0, ErrBelowStart
	}
	// Control batches carry the id of the message that follows them. So the batch that holds id comes after them, and
	// is the last one whose first id is not above id.
	if l.tail.n > 0 && l.tail.at(0).FirstID <= id {
		s := l.tail.at(l.tail.search(func(s *Slice) bool { return s.FirstID > id }) - 1)
		at, firstID = s.Offset, s.FirstID
		covers := id < s.FirstID+MsgID(s.Count)
		l.mu.Unlock()
		if covers {
			return at, firstID, nil
		}
		return 0, 0, ErrNotBoundary
	}
	q := query{
		begins: func(f *segFile) bool { return f.firstID <= id },
		below:  func(e *indexEntry) bool { return e.id <= id },
		match:  func(h *Header) bool { return id >= h.FirstID && id < h.NextID() },
	}
	return l.search(q)
}

// SeekPosition finds where batch pos begins. ErrAtEnd says that pos is the next position to be written; then the offset
// is the log's end. Other errors are those of View.
func (l *Log) SeekPosition(pos Position) (Offset, error) {
	l.mu.Lock()
	if at, err := l.seekMemory(pos); err != ErrNotInMemory {
		l.mu.Unlock()
		return at, err
	}
	q := query{
		begins: func(f *segFile) bool { return f.firstPos <= pos },
		below:  func(e *indexEntry) bool { return e.pos <= pos },
		match:  func(h *Header) bool { return h.Position == pos },
	}
	at, _, err := l.search(q)
	return at, err
}

// seekMemory is Memory.SeekPosition. The caller holds l.mu.
func (l *Log) seekMemory(pos Position) (Offset, error) {
	switch {
	case l.closed:
		return 0, ErrClosed
	case pos > l.end.pos:
		return 0, ErrPastEnd
	case pos == l.end.pos:
		return l.end.off, ErrAtEnd
	case pos < l.start.pos:
		return 0, ErrBelowStart
	case l.tail.n == 0 || pos < l.tail.at(0).Position:
		return 0, ErrNotInMemory
	}
	return l.tail.at(int(pos - l.tail.at(0).Position)).Offset, nil // positions are dense
}

// InMemory returns the position of the first batch at or behind off that is in memory. ok is false if there is none.
// InMemory reads nothing from the device.
func (l *Log) InMemory(off Offset) (pos Position, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := l.tail.find(off)
	if i == l.tail.n {
		return 0, false
	}
	return l.tail.at(i).Position, true
}

// Where says in which segment the batch at offset at lies. It sets only the segment's number, base and capacity.
func (l *Log) Where(at Offset) (State, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return State{}, ErrClosed
	case at < l.start.off:
		return State{}, ErrBelowStart
	case at >= l.end.off:
		return State{}, ErrPastEnd
	}
	if i := l.tail.find(at); i < l.tail.n && l.tail.at(i).Offset == at {
		s := l.tail.at(i)
		return State{Segment: s.Segment, SegmentBase: s.SegmentBase, SegmentCapacity: s.SegmentCapacity}, nil
	}
	for i := len(l.segs) - 1; i >= 0; i-- {
		if f := l.segs[i]; f.base <= at {
			if f.broken != nil {
				return State{}, f.broken
			}
			return State{Segment: f.number, SegmentBase: f.base, SegmentCapacity: f.capacity}, nil
		}
	}
	return State{}, ErrBelowStart
}

// NewestAppended is the time (ns since 1970) when the newest batch was appended, or somewhat earlier: of batches that
// are only in segments, only the first of each segment is known without reading. It is 0 if nothing is known.
func (l *Log) NewestAppended() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tail.n > 0 {
		return l.tail.at(l.tail.n - 1).Appended
	}
	for i := len(l.segs) - 1; i >= 0; i-- {
		if f := l.segs[i]; f.broken == nil && f.first < l.end.off {
			return f.firstAppended
		}
	}
	return 0
}

// AppendedBy returns when the message was appended (ns since 1970), or somewhat earlier: of messages that are only in
// segments, only the time of a batch before them is known, from the part of an index that is in memory, or from the
// segment's header. Of a message that is in no segment, or only in damaged ones, it returns the time of the first batch
// behind it that is known: the log's first, if retention has removed the message. It returns 0 if nothing is known.
// AppendedBy reads nothing from the device.
func (l *Log) AppendedBy(id MsgID) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := l.tail.search(func(s *Slice) bool { return s.FirstID > id }); i > 0 {
		return l.tail.at(i - 1).Appended
	}
	i := l.lastHealthy(func(f *segFile) bool { return f.firstID <= id })
	if i < 0 {
		return l.firstAppended()
	}
	f := l.segs[i]
	if e, ok := lastBelow(f.index, func(e *indexEntry) bool { return e.id <= id }); ok {
		return e.appended
	}
	return cmp.Or(f.firstAppended, l.firstAppended()) // a reset made the file before its first batch came
}

// firstAppended returns when the first batch was appended that is in memory or in a healthy segment, or 0. mu is held.
func (l *Log) firstAppended() int64 {
	for _, f := range l.segs {
		if f.broken == nil && f.firstAppended > 0 {
			return f.firstAppended
		}
	}
	if l.tail.n > 0 {
		return l.tail.at(0).Appended
	}
	return 0
}

// SeekTime finds the first batch that was appended at ns (since 1970) or later, and that batch's first id. ErrAtEnd
// says that all batches are older. Times come from leaders' clocks. Where these went back, SeekTime finds one of the
// places that fit.
func (l *Log) SeekTime(ns int64) (at Offset, firstID MsgID, err error) {
	l.mu.Lock()
	switch {
	case l.closed:
		l.mu.Unlock()
		return 0, 0, ErrClosed
	case l.start.off == l.end.off:
		end := l.end
		l.mu.Unlock()
		return end.off, end.id, ErrAtEnd
	}
	if l.tail.n > 0 && l.tail.at(0).Appended < ns {
		at, firstID, err = l.firstInTail(ns)
		l.mu.Unlock()
		return at, firstID, err
	}
	q := query{
		begins: func(f *segFile) bool { return f.firstAppended < ns },
		below:  func(e *indexEntry) bool { return e.appended < ns },
		match:  func(h *Header) bool { return h.Appended >= ns },
		next:   true,
	}
	if len(l.segs) == 0 || l.segs[0].broken == nil && l.segs[0].firstAppended >= ns {
		start := l.start
		l.mu.Unlock()
		return start.off, start.id, nil
	}
	return l.search(q)
}

// firstInTail is SeekTime within the tail. The caller holds l.mu.
func (l *Log) firstInTail(ns int64) (Offset, MsgID, error) {
	i := l.tail.search(func(s *Slice) bool { return s.Appended >= ns })
	if i == l.tail.n {
		return l.end.off, l.end.id, ErrAtEnd
	}
	s := l.tail.at(i)
	return s.Offset, s.FirstID, nil
}

// query is one search in segment files, given as three tests of growing precision.
type query struct {
	begins func(f *segFile) bool    // holds for the segments up to the wanted one
	below  func(e *indexEntry) bool // holds for the entries up to the one to scan from
	match  func(h *Header) bool     // holds first for the wanted batch
	next   bool                     // without a match in the segment, the answer is the batch that follows it
}

// search runs a query. It is called with l.mu held and releases it.
func (l *Log) search(q query) (at Offset, firstID MsgID, err error) {
	i := l.lastHealthy(q.begins)
	if i < 0 {
		defer l.mu.Unlock()
		if len(l.segs) > 0 && l.segs[0].broken != nil {
			return 0, 0, l.segs[0].broken
		}
		return 0, 0, ErrBelowStart
	}
	f, end := l.segs[i], l.mappedEnd(i)
	l.clock++
	f.used = l.clock
	f.pin()
	l.mu.Unlock()
	defer f.release()
	found, at, firstID, err := l.searchIn(f, end, q)
	if err != nil || found {
		return at, firstID, err
	}
	return l.after(f, end, q)
}

// lastHealthy returns the index of the last segment for which begins is true, or -1. It passes over stand-ins of broken
// segments, whose content is not known. The caller holds l.mu.
func (l *Log) lastHealthy(begins func(f *segFile) bool) int {
	last := -1
	for i, f := range l.segs {
		if f.broken == nil {
			if !begins(f) {
				break
			}
			last = i
		}
	}
	return last
}

// searchIn scans f from the index entry to which the query leads. The caller holds a pin on f and no lock.
func (l *Log) searchIn(f *segFile, end Offset, q query) (found bool, at Offset, firstID MsgID, err error) {
	from, err := l.startingPoint(f, end, q.below)
	if err != nil {
		return false, 0, 0, err
	}
	err = l.scan(f, from, end, func(off Offset, h *Header) bool {
		if found = q.match(h); found {
			at, firstID = off, h.FirstID
		}
		return !found
	})
	return found, at, firstID, l.scanned(f, err)
}

// after answers a query that found nothing in segment f, which is readable up to end: with the batch that follows f, or
// with the damage that lies there.
func (l *Log) after(f *segFile, end Offset, q query) (Offset, MsgID, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, g := range l.segs {
		if g != f || i+1 == len(l.segs) || l.segs[i+1].base > end {
			continue
		}
		next := l.segs[i+1]
		if next.broken != nil {
			return 0, 0, next.broken
		}
		if q.next {
			return next.first, next.firstID, nil
		}
	}
	if i := l.tail.find(end); q.next && i < l.tail.n {
		s := l.tail.at(i)
		return s.Offset, s.FirstID, nil
	}
	if q.next && end == l.end.off {
		return l.end.off, l.end.id, ErrAtEnd
	}
	return 0, 0, ErrNotBoundary
}
