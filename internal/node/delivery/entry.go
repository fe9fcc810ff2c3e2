package delivery

import (
	"penstock/batch"
	"penstock/segment"
)

// entry is the state of a message that is neither unread nor confirmed. The table finds it by id. Depending on its
// state it is also in one list, or in the wheel.
type entry struct {
	timer      Timer[*entry] // in flight: message timeout; waiting: due time; recalled: end of the hold; fence: its end
	prev, next *entry        // in the client's list, a source's queue or the pool
	client     *client
	source     *source // queued: in which queue
	lane       *lane   // the ordered messages that it belongs to; nil: none
	id         batch.ID
	tag        uint64
	at         segment.Offset
	startMs    int64    // when the delivery in flight began
	dueMs      int64    // the due time of its last delay
	heldMs     int64    // until when its last delivery may be on its way to the client; 0: it is not held
	serial     uint64   // Result.Serial of its last delivery; 0: that delivery was not held
	number     uint64   // Result.Number of its last delivery
	holder     ClientID // the client of its last delivery
	index      uint32   // in its batch, or NoIndex
	attempts   uint16   // deliveries so far
	state      entryState
	run        uint64 // bit k: it stands for message id+k, too; 0: for id alone, see run
	hasAt      bool
	listed     bool // its id is in partition.deferrals
	outside    bool // published with a delay: delivered when due, outside of the channel's order
	told       bool // tag is known, because the message's record was read
	counted    bool // its last delivery raised attempts, which was below MaxAttempts
}

// uncount takes the last delivery out of attempts: it is taken back.
func (e *entry) uncount() {
	if e.counted {
		e.attempts, e.counted = e.attempts-1, false
	}
}

type entryState uint8

const (
	_ entryState = iota
	entryInFlight
	entryWaiting
	entryHeld // due, but not visible yet: a paused topic holds it back
	entryQueued
	entryParked   // ordered: another entry of its lane goes first
	entryRecalled // no client has it, but its last delivery may still be on its way
	entryFence    // the entry of a fence, not of a message: see fence
	entryDoomed   // it was delivered as often as allowed, and the outbox is full
)

// entryList is a doubly linked list through the entries, in order of arrival.
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

// insertBefore inserts e before next, or at the end if next is nil.
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

// entryPool keeps entries for reuse. It allocates them in blocks, so that the entries of a busy channel are adjacent in
// memory.
type entryPool struct{ free *entry }

const entriesPerBlock = 32

func (p *entryPool) get(id batch.ID) *entry {
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

// put returns an entry to the pool. It must be in no list, table or wheel.
func (p *entryPool) put(e *entry) {
	*e = entry{timer: Timer[*entry]{Value: e}, next: p.free}
	p.free = e
}

// entryTable is a hash table of entries by id: open addressing with linear probing. Deletion moves later slots back, so
// there are no tombstones, no rehash while the size is steady, and no random order. Ids are dense; multiplicative
// hashing spreads them well.
type entryTable struct {
	slots []entrySlot // power of two, at most half full
	shift uint8       // 64 - log2(len(slots))
	count int
}

type entrySlot struct {
	id batch.ID
	e  *entry // nil: empty
}

// entries are the entries of a channel, with the table that finds them by id, the pool that they come from, and the
// wheel of their timers.
type entries struct {
	entryTable
	pool  entryPool
	wheel Wheel[*entry]
	fired func(*Timer[*entry]) // Channel.fire, bound once
}

const minTableSlots = 16

func (t *entryTable) home(id batch.ID) int {
	return int(uint64(id) * 0x9e3779b97f4a7c15 >> t.shift)
}

func (t *entryTable) get(id batch.ID) *entry {
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

// put adds an entry. Its id must not be in the table.
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

func (t *entryTable) remove(id batch.ID) {
	mask := len(t.slots) - 1
	i := t.home(id)
	for t.slots[i].id != id || t.slots[i].e == nil {
		if t.slots[i].e == nil {
			panic("BUG: removing an entry that is not in the table")
		}
		i = (i + 1) & mask
	}
	t.count--
	// Move back each entry that follows without an empty slot in between, unless that would put it before its home
	// slot.
	for j := (i + 1) & mask; t.slots[j].e != nil; j = (j + 1) & mask {
		if home := t.home(t.slots[j].id); (j-home)&mask >= (j-i)&mask {
			t.slots[i] = t.slots[j]
			i = j
		}
	}
	t.slots[i] = entrySlot{}
}

// each visits all entries. visit may remove the entry that it is given, and no other. An entry may be visited twice, if
// a removal moves it.
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
