//go:build lockcheck

package lock

import (
	"bytes"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"sync"
)

// Mutex is a sync.Mutex of class C that panics when a goroutine breaks the order of classes.
type Mutex[C any] struct{ mu sync.Mutex }

// Lock panics if the goroutine already holds a lock of the same class or of a later one: two goroutines that take two
// locks in different orders can wait for each other for ever.
func (m *Mutex[C]) Lock() {
	id := beforeLock[C](m)
	m.mu.Lock()
	hold[C](id, m)
}

// TryLock never waits, so it may be called in any order. Locks taken while this one is held are checked against it.
func (m *Mutex[C]) TryLock() bool {
	if !m.mu.TryLock() {
		return false
	}
	hold[C](goroutine(), m)
	return true
}

// Unlock may be called by another goroutine than the one that called Lock.
func (m *Mutex[C]) Unlock() {
	release(m)
	m.mu.Unlock()
}

// RWMutex is a sync.RWMutex of class C that panics when a goroutine breaks the order of classes. Readers are checked
// like writers: a reader that waits behind a writer waits for all other readers.
type RWMutex[C any] struct{ mu sync.RWMutex }

// Lock is like Mutex.Lock.
func (m *RWMutex[C]) Lock() {
	id := beforeLock[C](m)
	m.mu.Lock()
	hold[C](id, m)
}

// Unlock is like Mutex.Unlock.
func (m *RWMutex[C]) Unlock() {
	release(m)
	m.mu.Unlock()
}

// RLock is checked like Lock.
func (m *RWMutex[C]) RLock() {
	id := beforeLock[C](m)
	m.mu.RLock()
	hold[C](id, m)
}

// RUnlock is called by the goroutine that called RLock.
func (m *RWMutex[C]) RUnlock() {
	releaseOf(goroutine(), m)
	m.mu.RUnlock()
}

// taken is a lock that a goroutine holds.
type taken struct {
	mutex any
	place int
	class reflect.Type
}

// held lists the locks of every goroutine. holder names the goroutine that took a lock last, which is the one that
// holds it while it is held for writing. free keeps the slices of goroutines that hold nothing, because tests that
// count allocations run in this build, too. mu guards all three, and is held only while they are read or changed.
var (
	mu     sync.Mutex
	held   = map[int64][]taken{}
	holder = map[any]int64{}
	free   [][]taken

	places = map[reflect.Type]int{}
	traces = sync.Pool{New: func() any { return new([32]byte) }}
)

func init() {
	for i, class := range order {
		places[reflect.TypeOf(class)] = i
	}
}

// placeOf is the position of a class in the order.
func placeOf[C any]() (int, reflect.Type) {
	class := reflect.TypeFor[C]()
	place, ok := places[class]
	if !ok {
		panic(fmt.Sprintf("lock: class %v has no place in the order", class))
	}
	return place, class
}

// goroutine is the number of the caller's goroutine in stack traces.
func goroutine() int64 {
	buf := traces.Get().(*[32]byte)
	defer traces.Put(buf)
	text := bytes.TrimPrefix(buf[:runtime.Stack(buf[:], false)], []byte("goroutine "))
	number, _, _ := bytes.Cut(text, []byte(" "))
	id, err := strconv.ParseInt(string(number), 10, 64)
	if err != nil {
		panic(fmt.Sprintf("lock: a stack trace begins with %q", buf))
	}
	return id
}

// beforeLock panics if the order of classes forbids the calling goroutine to take a lock of class C now. It returns the
// goroutine's number.
func beforeLock[C any](m any) int64 {
	id := goroutine()
	place, class := placeOf[C]()
	mu.Lock()
	defer mu.Unlock()
	for _, t := range held[id] {
		if t.place >= place {
			panic(fmt.Sprintf("lock: %v is taken while %v is held: the order of internal/lock is broken", class, t.class))
		}
	}
	return id
}

// hold notes that goroutine id has taken m.
func hold[C any](id int64, m any) {
	place, class := placeOf[C]()
	mu.Lock()
	defer mu.Unlock()
	locks := held[id]
	if n := len(free); locks == nil && n > 0 {
		locks, free = free[n-1], free[:n-1]
	}
	held[id] = append(locks, taken{m, place, class})
	holder[m] = id
}

// release forgets that m is held for writing, by whichever goroutine took it.
func release(m any) {
	mu.Lock()
	id := holder[m]
	delete(holder, m)
	mu.Unlock()
	releaseOf(id, m)
}

// releaseOf forgets that goroutine id holds m.
func releaseOf(id int64, m any) {
	mu.Lock()
	defer mu.Unlock()
	locks := held[id]
	i := slices.IndexFunc(locks, func(t taken) bool { return t.mutex == m })
	if i < 0 {
		return // not held: the Unlock that follows panics
	}
	if locks = slices.Delete(locks, i, i+1); len(locks) == 0 {
		delete(held, id)
		free = append(free, locks)
		return
	}
	held[id] = locks
}
