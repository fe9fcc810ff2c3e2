package events

import (
	"slices"
	"sync/atomic"

	"penstock/internal/node/delivery"
)

// Subscriber is told what happens to a partition's log. The channels of this node implement it; a partition knows
// nothing else of them.
//
// The committer, a replica that commits, the flusher and the readers of connections between nodes call the methods.
// They may hold any lock that comes before Channel.postMu, except when they call Resume: only Resume waits.
type Subscriber interface {
	// Post queues an event. It borrows p, and does not keep it.
	Post(p *delivery.Post)
	// Wake makes the subscriber process its queued events, and deliver what it can.
	Wake()
	// Committed is called after a commit has raised visible. It has an effect only if the subscriber waits for
	// messages.
	Committed()
	// Resume says that bytes of the partition can be read again. It waits for the channel's lock, so the caller holds
	// no lock.
	Resume(partition uint32)
}

// Subscribers are those of one partition. The list is replaced, never changed, so it may be read without a lock. Any
// goroutine may call the methods.
type Subscribers struct{ list atomic.Pointer[[]Subscriber] }

func (ss *Subscribers) all() []Subscriber {
	if list := ss.list.Load(); list != nil {
		return *list
	}
	return nil
}

// Any says whether there is a subscriber.
func (ss *Subscribers) Any() bool { return len(ss.all()) > 0 }

// Has says whether s is among the subscribers.
func (ss *Subscribers) Has(s Subscriber) bool { return slices.Contains(ss.all(), s) }

// Add adds s in front, if it is not among the subscribers yet.
func (ss *Subscribers) Add(s Subscriber) {
	ss.change(func(old []Subscriber) []Subscriber {
		if slices.Contains(old, s) {
			return old
		}
		return append([]Subscriber{s}, old...)
	})
}

// Remove removes s: it gets no more events.
func (ss *Subscribers) Remove(s Subscriber) {
	ss.change(func(old []Subscriber) []Subscriber {
		return slices.DeleteFunc(slices.Clone(old), func(other Subscriber) bool { return other == s })
	})
}

// change replaces the list by the one that f returns. f must not modify the old list, and may be called several times.
func (ss *Subscribers) change(f func(old []Subscriber) []Subscriber) {
	for {
		old := ss.list.Load()
		var list []Subscriber
		if old != nil {
			list = *old
		}
		list = f(list)
		if ss.list.CompareAndSwap(old, &list) {
			return
		}
	}
}

// Post queues an event at each subscriber, and wakes them. The subscribers share the memory that p points to, and none
// changes it.
func (ss *Subscribers) Post(p *delivery.Post) {
	for _, s := range ss.all() {
		s.Post(p)
		s.Wake()
	}
}

// Committed is called after a commit has made messages visible.
func (ss *Subscribers) Committed() {
	for _, s := range ss.all() {
		s.Committed()
	}
}

// Resume lets those go on that stopped at damage in the partition. The caller holds no lock.
func (ss *Subscribers) Resume(partition uint32) {
	for _, s := range ss.all() {
		s.Resume(partition)
		s.Wake()
	}
}
