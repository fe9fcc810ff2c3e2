package aio

import "sync/atomic"

// Pulse counts the writes and flushes that were given to a disk, and those that came back, with or without an error. A
// writer calls Begin and End around each, which may be nested; a watcher of the disk calls Counts. A nil Pulse counts
// nothing. Any goroutine may call the methods.
type Pulse struct{ begun, done atomic.Uint64 }

// Begin says that a write or flush goes to the disk now.
func (p *Pulse) Begin() {
	if p != nil {
		p.begun.Add(1)
	}
}

// End says that a write or flush came back.
func (p *Pulse) End() {
	if p != nil {
		p.done.Add(1)
	}
}

// Counts returns both totals. The disk has begun - done of them now; done <= begun.
func (p *Pulse) Counts() (begun, done uint64) {
	done = p.done.Load() // load done first, so that done cannot exceed begun
	return p.begun.Load(), done
}
