package delivery

import "math/bits"

// Wheel is a hierarchical timer wheel with a resolution of 1 ms. It has 8 levels of 64 slots, enough for any date.
// Schedule and Cancel are O(1); a timer moves at most 7 times before it fires. The wheel reads no clock: Advance sets
// the time. Timers of the same millisecond fire in the order in which they reached their slot, so that equal histories
// give equal results.
//
// Invariant: the due time of a timer in level L agrees with now in all bits above the six of that level, and its slot
// is greater than now's slot in that level. So the next timer is in the lowest level that has any, and a bitmap per
// level finds it without a search through empty slots.
type Wheel[T any] struct {
	now    int64 // ms; all timers due at or before it have fired or are in overdue
	count  int
	levels [wheelLevels]wheelLevel[T]
	// overdue holds timers that were scheduled for now or earlier. They fire in the next Advance.
	overdue timerList[T]
}

const (
	wheelBits   = 6
	wheelSlots  = 1 << wheelBits
	wheelLevels = 8
	// maxWheelMs is the last time that the wheel can represent (year 10889). Later timers fire then.
	maxWheelMs = 1<<(wheelBits*wheelLevels) - 1
)

// wheelLevel is one level of the wheel. It allocates its slots at first use, so that an idle wheel needs none.
type wheelLevel[T any] struct {
	used  uint64 // bit s: slot s holds a timer
	slots *[wheelSlots]timerList[T]
}

// Timer is one item to schedule. It is embedded in the item that Value points to, and must not move in memory while it
// is scheduled.
type Timer[T any] struct {
	Value      T
	due        int64
	list       *timerList[T] // nil while not scheduled
	level      int8          // -1: overdue
	slot       uint8         // in its level
	prev, next *Timer[T]
}

// timerList is a circular list. first.prev is the last element.
type timerList[T any] struct{ first *Timer[T] }

// Due returns the time for which the timer was scheduled, in unix ms.
func (t *Timer[T]) Due() int64 { return t.due }

func (w *Wheel[T]) Len() int { return w.count }

// Schedule makes t fire in the first Advance whose time is at or after dueMs. If t was scheduled, it moves. If dueMs
// has passed, t fires in the next Advance.
func (w *Wheel[T]) Schedule(t *Timer[T], dueMs int64) {
	w.Cancel(t)
	t.due = dueMs
	w.place(t)
	w.count++
}

// Cancel removes t from the wheel. It does nothing if t is not scheduled.
func (w *Wheel[T]) Cancel(t *Timer[T]) {
	if t.list == nil {
		return
	}
	w.unlink(t)
	w.count--
}

// Advance sets the time to nowMs and calls fire for every timer that is due, in the order of their milliseconds, and
// never early. fire may schedule and cancel any timers; those that it schedules for the past wait for the next Advance.
// Time never goes back: an older nowMs fires only the timers that are overdue already.
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

// NextDue returns when to call Advance next, in unix ms. It is never later than the next timer's due time. If that
// timer is far away, it may be earlier, and Advance then only moves the timer to a lower level.
func (w *Wheel[T]) NextDue() (int64, bool) {
	if w.overdue.first != nil {
		return w.now, true
	}
	_, _, at, ok := w.next()
	return at, ok
}

// next returns the first slot that has a timer, and the time at which the wheel reaches it.
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

// place links t into the slot for its due time, relative to now.
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
