// Package shares divides an amount of the node's memory among those who make it hold something before they have proved
// that it is worth it: bytes of commands and bodies that are on their way. A principal (a token, or the address of a
// client that has shown none) holds its share at most, so that nobody can take what others need.
package shares

import (
	"container/list"
	"context"
	"errors"
	"sync"
)

// ErrFull says that the node holds as much as it may.
var ErrFull = errors.New("shares: all of it is taken")

// ErrShare says that the principal holds as much as it may.
var ErrShare = errors.New("shares: the share of the principal is taken")

// Budget is what may be held of a resource, mostly in bytes. Any goroutine may call its methods. mu is a leaf; its
// holder calls nothing.
type Budget struct {
	mu      sync.Mutex
	most    int64 // of all
	largest int64 // see New
	share   int64 // of one principal
	used    int64
	by      map[string]int64 // what each principal holds; nobody who holds nothing is in it
	waiting list.List        // of *waiter, in the order of their coming
}

// waiter is a Take that waits.
type waiter struct {
	who     string
	n       int64
	granted chan struct{} // closed when it holds n
}

// New returns a Budget of so much of a resource, of which a principal may hold its part, and at least as much as
// largest, which is the most that one Take asks for.
func New(of *Resource, most, largest int64) *Budget {
	b := &Budget{by: map[string]int64{}}
	b.Change(of, most, largest)
	return b
}

// Change changes what New was given. Who holds more than it may now keeps it.
func (b *Budget) Change(of *Resource, most, largest int64) {
	b.set(max(most, largest), max(most/of.Parts, largest), largest)
}

// Percent returns a Budget of so many, of which a principal may hold so many percent.
func Percent(most int64, percent int) *Budget {
	b := &Budget{by: map[string]int64{}}
	b.Resize(most, percent)
	return b
}

// Resize changes what Percent was given. Who holds more than it may now keeps it.
func (b *Budget) Resize(most int64, percent int) { b.set(most, max(1, most*int64(percent)/100), 1) }

func (b *Budget) set(most, share, largest int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.most, b.share, b.largest = most, share, largest
	b.serve()
}

// Share is what one principal may hold, in bytes.
func (b *Budget) Share() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.share
}

// Used is what is held, in bytes.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// TryTake lets who hold n bytes more, or returns ErrShare or ErrFull. Whoever waits in Take goes first.
func (b *Budget) TryTake(who string, n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.fits(who, n); err != nil {
		return err
	}
	if b.held() {
		return ErrFull
	}
	b.grant(who, n)
	return nil
}

// Take lets who hold n bytes more, and waits until that is possible. It returns why it was not when ctx ended.
func (b *Budget) Take(ctx context.Context, who string, n int64) error {
	b.mu.Lock()
	if b.fits(who, n) == nil && !b.held() {
		b.grant(who, n)
		b.mu.Unlock()
		return nil
	}
	w := &waiter{who, n, make(chan struct{})}
	at := b.waiting.PushBack(w)
	b.mu.Unlock()
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-w.granted: // in the same moment
		return nil
	default:
	}
	err := b.fits(who, n)
	b.waiting.Remove(at)
	b.serve() // those behind it, if they waited for it
	if err == nil {
		err = ErrFull
	}
	return err
}

// Give ends what who holds: n bytes of it.
func (b *Budget) Give(who string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	if b.by[who] -= n; b.by[who] == 0 {
		delete(b.by, who)
	}
	b.serve()
}

// fits returns nil, or why who cannot hold n bytes more. mu is held.
func (b *Budget) fits(who string, n int64) error {
	switch {
	case b.by[who]+n > b.share:
		return ErrShare
	case b.used+n > b.most:
		return ErrFull
	}
	return nil
}

// held says whether a Take waits for room at the node, which goes before all that come later. mu is held.
func (b *Budget) held() bool {
	if b.most-b.used >= b.largest {
		return false // all that wait do so for a share: they may be many, and need not be looked at
	}
	for e := b.waiting.Front(); e != nil; e = e.Next() {
		if w := e.Value.(*waiter); b.fits(w.who, w.n) == ErrFull {
			return true
		}
	}
	return false
}

// grant lets who hold n bytes more. mu is held.
func (b *Budget) grant(who string, n int64) {
	b.used += n
	b.by[who] += n
}

// serve lets each Take go on that waits and has room now, in the order of their coming. A Take whose share is taken
// holds up no other one. mu is held.
func (b *Budget) serve() {
	for e := b.waiting.Front(); e != nil; {
		w, next := e.Value.(*waiter), e.Next()
		switch b.fits(w.who, w.n) {
		case ErrFull:
			return
		case nil:
			b.grant(w.who, w.n)
			b.waiting.Remove(e)
			close(w.granted)
		}
		e = next
	}
}
