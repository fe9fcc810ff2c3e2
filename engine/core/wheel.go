package core

import "math/bits"

// Wheel is a hierarchical timer wheel with a resolution of 1 ms: 8 levels of 64
// slots, so it reaches beyond any date. Schedule and Cancel are O(1); a timer moves
// at most 7 times before it fires. It knows no clock: Advance brings the time.
// Timers of the same millisecond fire in the order in which they reached their
// slot, so equal histories give equal results.
//
// For every timer in level L: the bits above L's six are those of now, and its slot
// is greater than now's slot in L. So the lowest level that holds anything holds
// the next timer, and a bitmap per level finds it without looking at empty slots.
type Wheel[T any] struct {
	now    int64 // ms; everything due at or before it is in overdue or has fired
	count  int
	levels [wheelLevels]wheelLevel[T]
	// overdue holds what was scheduled at or before now: it fires at the next Advance.
	overdue timerList[T]
}

const (
	wheelBits   = 6
	wheelSlots  = 1 << wheelBits
	wheelLevels = 8
	// maxWheelMs is the last time the wheel can hold; later timers are due then (year 10889).
	maxWheelMs = 1<<(wheelBits*wheelLevels) - 1
)

// wheelLevel allocates its slots at first use: an idle wheel costs no slots at all.
type wheelLevel[T any] struct {
	used  uint64 // bit s: slot s holds a timer
	slots *[wheelSlots]timerList[T]
}

// Timer is one scheduled item; it is part of the item it belongs to (Value points
// back to it) and must stay where it is while scheduled.
type Timer[T any] struct {
	Value      T
	due        int64
	list       *timerList[T] // nil while not scheduled
	level      int8          // -1: overdue
	slot       uint8         // in its level
	prev, next *Timer[T]
}

// timerList is a circular list by its first element; the first's prev is the last.
type timerList[T any] struct{ first *Timer[T] }

// Due returns the time the timer was scheduled for, unix ms.
func (t *Timer[T]) Due() int64 { return t.due }

// Scheduled says whether the timer waits in a wheel.
func (t *Timer[T]) Scheduled() bool { return t.list != nil }

// Len returns how many timers wait.
func (w *Wheel[T]) Len() int { return w.count }

// Schedule makes t fire in the first Advance whose time is at or after dueMs. A
// scheduled timer is moved. A time that has passed fires in the next Advance.
func (w *Wheel[T]) Schedule(t *Timer[T], dueMs int64) {
	w.Cancel(t)
	t.due = dueMs
	w.place(t)
	w.count++
}

// Cancel takes t out of the wheel; it is harmless if t is not scheduled.
func (w *Wheel[T]) Cancel(t *Timer[T]) {
	if t.list == nil {
		return
	}
	w.unlink(t)
	w.count--
}

// Advance moves the time to nowMs and calls fire for every timer that is due, in
// order of their milliseconds; none is early. fire may schedule and cancel freely:
// what it schedules for the past waits for the next Advance. Time never goes back:
// an older nowMs fires only what is overdue already.
func (w *Wheel[T]) Advance(nowMs int64, fire func(*Timer[T])) {
	late := w.overdue.first
	for n := w.overdue.len(); n > 0 && late != nil; n-- {
		w.Cancel(late)
		fire(late)
		late = w.overdue.first
	}
	for w.count > 0 {
		level, slot, at, ok := w.next()
		if !ok || at > nowMs {
			break
		}
		w.now = at
		list := &w.levels[level].slots[slot]
		for t := list.first; t != nil; t = list.first {
			w.unlink(t)
			if t.due > at {
				w.place(t)
				continue
			}
			w.count--
			fire(t)
		}
	}
	w.now = max(w.now, nowMs)
}

// NextDue returns when to call Advance next, unix ms. It is never later than the
// next timer's time; it may be earlier when that timer is far away, and Advance
// then only brings it nearer.
func (w *Wheel[T]) NextDue() (int64, bool) {
	if w.overdue.first != nil {
		return w.now, true
	}
	_, _, at, ok := w.next()
	return at, ok
}

// next finds the slot that comes first and the time at which it is reached.
func (w *Wheel[T]) next() (level, slot int, at int64, ok bool) {
	for level = range w.levels {
		used := w.levels[level].used
		if used == 0 {
			continue
		}
		slot = bits.TrailingZeros64(used)
		shift := level * wheelBits
		above := w.now >> (shift + wheelBits) << (shift + wheelBits)
		return level, slot, above | int64(slot)<<shift, true
	}
	return 0, 0, 0, false
}

// place links t into the slot that its due time and now decide.
func (w *Wheel[T]) place(t *Timer[T]) {
	due := min(t.due, maxWheelMs)
	if due <= w.now {
		t.level = -1
		w.overdue.push(t)
		return
	}
	level := (bits.Len64(uint64(due^w.now)) - 1) / wheelBits
	slot := due >> (level * wheelBits) & (wheelSlots - 1)
	l := &w.levels[level]
	if l.slots == nil {
		l.slots = new([wheelSlots]timerList[T])
	}
	t.level, t.slot = int8(level), uint8(slot)
	l.slots[slot].push(t)
	l.used |= 1 << slot
}

func (w *Wheel[T]) unlink(t *Timer[T]) {
	list := t.list
	list.remove(t)
	if list.first == nil && t.level >= 0 {
		w.levels[t.level].used &^= 1 << t.slot
	}
}

func (l *timerList[T]) push(t *Timer[T]) {
	t.list = l
	if l.first == nil {
		l.first, t.prev, t.next = t, t, t
		return
	}
	last := l.first.prev
	t.prev, t.next = last, l.first
	last.next, l.first.prev = t, t
}

func (l *timerList[T]) remove(t *Timer[T]) {
	if t.next == t {
		l.first = nil
	} else {
		t.prev.next, t.next.prev = t.next, t.prev
		if l.first == t {
			l.first = t.next
		}
	}
	t.list, t.prev, t.next = nil, nil, nil
}

func (l *timerList[T]) len() (n int) {
	for t := l.first; t != nil; t = t.next {
		n++
		if t.next == l.first {
			break
		}
	}
	return n
}
