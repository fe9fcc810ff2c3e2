//go:build race && (amd64 || arm64)

package lock

import (
	"fmt"
	"reflect"
	"runtime"
	"sync"
)

// Mutex is a sync.Mutex of class C that panics when a goroutine breaks the order of classes.
type Mutex[C any] struct {
	mu    sync.Mutex
	owner uintptr // the goroutine that took it; guarded by mu
}

// Lock panics if the goroutine already holds a lock of the same class or of a later one: two goroutines that take two
// locks in different orders can wait for each other for ever.
func (m *Mutex[C]) Lock() {
	g := beforeLock[C]()
	m.mu.Lock()
	m.owner = g
	hold[C](g, m)
}

// TryLock never waits, so it may be called in any order. Locks taken while this one is held are checked against it.
func (m *Mutex[C]) TryLock() bool {
	if !m.mu.TryLock() {
		return false
	}
	m.owner = goroutine()
	hold[C](m.owner, m)
	return true
}

// Unlock may be called by another goroutine than the one that called Lock.
func (m *Mutex[C]) Unlock() {
	release(m.owner, m)
	m.mu.Unlock()
}

// RWMutex is a sync.RWMutex of class C that panics when a goroutine breaks the order of classes. Readers are checked
// like writers: a reader that waits behind a writer waits for all other readers.
type RWMutex[C any] struct {
	mu    sync.RWMutex
	owner uintptr // the goroutine that took it for writing; guarded by mu
}

// Lock is like Mutex.Lock.
func (m *RWMutex[C]) Lock() {
	g := beforeLock[C]()
	m.mu.Lock()
	m.owner = g
	hold[C](g, m)
}

// Unlock is like Mutex.Unlock.
func (m *RWMutex[C]) Unlock() {
	release(m.owner, m)
	m.mu.Unlock()
}

// RLock is checked like Lock.
func (m *RWMutex[C]) RLock() {
	g := beforeLock[C]()
	m.mu.RLock()
	hold[C](g, m)
}

// RUnlock is called by the goroutine that called RLock.
func (m *RWMutex[C]) RUnlock() {
	release(goroutine(), m)
	m.mu.RUnlock()
}

// taken is a lock that a goroutine holds.
type taken struct {
	goroutine uintptr
	mutex     any
	place     int
	class     reflect.Type
}

// A shelf lists the locks that some goroutines hold. The race detector must not see it: it would take what two
// goroutines do under the same mutex for ordered, and miss their races. So the functions that use a shelf are not
// watched (norace), nor are its mutexes (RaceDisable), and it is an array, as the runtime watches slices that grow.
type shelf struct {
	mu    sync.Mutex
	count int
	taken [64]taken
}

var (
	shelves [512]shelf
	places  = map[reflect.Type]int{} // of the classes in the order; only read after init
)

func init() {
	for i, class := range order {
		places[reflect.TypeOf(class)] = i
	}
}

// goroutine names the caller's goroutine. One that begins later may get the name of one that has ended, and with it the
// locks that were not given back.
func goroutine() uintptr

// placeOf is the position of a class in the order.
func placeOf[C any]() (int, reflect.Type) {
	class := reflect.TypeFor[C]()
	place, ok := places[class]
	if !ok {
		panic(fmt.Sprintf("lock: class %v has no place in the order", class))
	}
	return place, class
}

// beforeLock panics if the order of classes forbids the calling goroutine to take a lock of class C now. It returns the
// goroutine.
func beforeLock[C any]() uintptr {
	g := goroutine()
	place, class := placeOf[C]()
	if held := heldFrom(g, place); held != nil {
		panic(fmt.Sprintf("lock: %v is taken while %v is held: the order of internal/lock is broken", class, held))
	}
	return g
}

// hold notes that goroutine g has taken m.
func hold[C any](g uintptr, m any) {
	place, class := placeOf[C]()
	add(taken{g, m, place, class})
}

// open returns the shelf of a goroutine for reading and writing until close.
//
//go:norace
func open(g uintptr) *shelf {
	runtime.RaceDisable()
	const size = 1 << 6 // of what the runtime keeps of a goroutine, or less
	s := &shelves[g/size%uintptr(len(shelves))]
	s.mu.Lock()
	return s
}

//go:norace
func (s *shelf) close() {
	s.mu.Unlock()
	runtime.RaceEnable()
}

// heldFrom is the class of a lock that goroutine g holds, of those at a place in the order or later; nil: it holds no
// such lock.
//
//go:norace
func heldFrom(g uintptr, place int) (class reflect.Type) {
	s := open(g)
	for i := range s.count {
		if t := &s.taken[i]; t.goroutine == g && t.place >= place {
			class = t.class
		}
	}
	s.close()
	return class
}

//go:norace
func add(t taken) {
	s := open(t.goroutine)
	s.taken[s.count] = t
	s.count++
	s.close()
}

// release forgets that goroutine g holds m. If it does not, the Unlock that follows panics.
//
//go:norace
func release(g uintptr, m any) {
	s := open(g)
	for i := range s.count {
		if t := &s.taken[i]; t.goroutine == g && t.mutex == m {
			s.count--
			*t, s.taken[s.count] = s.taken[s.count], taken{}
			break
		}
	}
	s.close()
}
