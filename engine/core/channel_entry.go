package core

import "penstock/segment"

// entry is a message that is neither unread nor confirmed. It stands in the table
// by its id and, by its state, in one list or in the wheel.
type entry struct {
	timer      Timer[*entry] // inFlight: message timeout; waiting: due time; recalled, fence: see there
	prev, next *entry        // in the client's list, the redelivery queue or the pool
	client     *channelClient
	lane       *lane // nil: nothing waits for it
	id         ID
	tag        uint64
	at         segment.Offset
	startMs    int64 // of the delivery in flight
	dueMs      int64 // of the last delay
	heldMs     int64 // until when the last delivery may be on its way; 0: it is not
	serial     uint64
	holder     ClientID // of the last delivery; serial is that client's
	index      uint32
	attempts   uint16 // deliveries so far
	state      entryState
	hasAt      bool
	listed     bool // in its partition's unlogged deferrals
	outside    bool // comes by its own time, not in the log's order: deferred when published
	told       bool // tag is known: not before its record was read
}

type entryState uint8

const (
	_ entryState = iota
	entryInFlight
	entryWaiting
	entryHeld // due, but not visible yet: a paused topic holds it back
	entryQueued
	entryParked   // ordered: another entry of its lane goes first
	entryRecalled // nobody has it, but its last delivery may be on its way
	entryFence    // of no message: see fence
	entryDoomed   // as often delivered as allowed, and the outbox is full
)

// entryList is a list in order of arrival, linked through the entries.
type entryList struct {
	first, last *entry
	count       int
}

func (l *entryList) pushBack(e *entry) {
	e.prev, e.next = l.last, nil
	if l.last == nil {
		l.first = e
	} else {
		l.last.next = e
	}
	l.last = e
	l.count++
}

func (l *entryList) pushFront(e *entry) {
	e.prev, e.next = nil, l.first
	if l.first == nil {
		l.last = e
	} else {
		l.first.prev = e
	}
	l.first = e
	l.count++
}

// insertBefore puts e before next, or at the end if that is nil.
func (l *entryList) insertBefore(e, next *entry) {
	switch {
	case next == nil:
		l.pushBack(e)
	case next.prev == nil:
		l.pushFront(e)
	default:
		e.prev, e.next = next.prev, next
		next.prev.next, next.prev = e, e
		l.count++
	}
}

func (l *entryList) remove(e *entry) {
	if e.prev == nil {
		l.first = e.next
	} else {
		e.prev.next = e.next
	}
	if e.next == nil {
		l.last = e.prev
	} else {
		e.next.prev = e.prev
	}
	e.prev, e.next = nil, nil
	l.count--
}

// entryPool keeps entries for reuse. They are made in blocks, so that a busy
// channel's entries lie together.
type entryPool struct{ free *entry }

const entriesPerBlock = 32

func (p *entryPool) get(id ID) *entry {
	if p.free == nil {
		block := new([entriesPerBlock]entry)
		for i := range block {
			block[i].timer.Value = &block[i]
			block[i].next, p.free = p.free, &block[i]
		}
	}
	e := p.free
	p.free, e.next = e.next, nil
	e.id = id
	return e
}

// put takes back an entry that is in no list, table or wheel.
func (p *entryPool) put(e *entry) {
	*e = entry{timer: Timer[*entry]{Value: e}, next: p.free}
	p.free = e
}

// entryTable finds entries by id: open addressing with linear probing; deleting
// moves followers back, so there are no tombstones, no rehash at steady size and no
// random order. Ids are dense, which multiplicative hashing spreads well.
type entryTable struct {
	slots []entrySlot // power of two, at most half full
	shift uint8       // 64 - log2(len(slots))
	count int
}

type entrySlot struct {
	id ID
	e  *entry // nil: empty
}

const minTableSlots = 16

func (t *entryTable) home(id ID) int {
	return int(uint64(id) * 0x9e3779b97f4a7c15 >> t.shift)
}

func (t *entryTable) get(id ID) *entry {
	if t.count == 0 {
		return nil
	}
	mask := len(t.slots) - 1
	for i := t.home(id); ; i = (i + 1) & mask {
		if s := &t.slots[i]; s.e == nil || s.id == id {
			return s.e
		}
	}
}

// put adds an entry whose id is not in the table.
func (t *entryTable) put(e *entry) {
	if 2*(t.count+1) > len(t.slots) {
		t.grow()
	}
	mask := len(t.slots) - 1
	i := t.home(e.id)
	for t.slots[i].e != nil {
		i = (i + 1) & mask
	}
	t.slots[i] = entrySlot{e.id, e}
	t.count++
}

func (t *entryTable) grow() {
	old := t.slots
	t.slots = make([]entrySlot, max(minTableSlots, 2*len(old)))
	t.count, t.shift = 0, 64
	for n := len(t.slots); n > 1; n /= 2 {
		t.shift--
	}
	for _, s := range old {
		if s.e != nil {
			t.put(s.e)
		}
	}
}

func (t *entryTable) remove(id ID) {
	mask := len(t.slots) - 1
	i := t.home(id)
	for t.slots[i].id != id || t.slots[i].e == nil {
		if t.slots[i].e == nil {
			panic("BUG: removing an entry that is not in the table")
		}
		i = (i + 1) & mask
	}
	t.count--
	// Whoever follows without a hole moves back, unless that puts it before its home.
	for j := (i + 1) & mask; t.slots[j].e != nil; j = (j + 1) & mask {
		if home := t.home(t.slots[j].id); (j-home)&mask >= (j-i)&mask {
			t.slots[i] = t.slots[j]
			i = j
		}
	}
	t.slots[i] = entrySlot{}
}

// each visits all entries; visit may remove the entry it is given and no other. An
// entry may be visited twice when a removal moves it.
func (t *entryTable) each(visit func(*entry)) {
	for i := 0; i < len(t.slots); {
		e := t.slots[i].e
		if e == nil {
			i++
			continue
		}
		visit(e)
		if t.slots[i].e == e {
			i++
		}
	}
}
