package aio

import "sync/atomic"

// Pulse counts the writes and flushes that a disk was given and those that came back, with or without an error. Whoever
// writes calls Begin and End around it, also nested; whoever watches the disk calls Counts. A nil Pulse counts nothing.
// Methods may be called from any goroutine.
type Pulse struct{ begun, done atomic.Uint64 }

// Begin says that a write or flush goes to the disk now.
func (p *Pulse) Begin() {
	if p != nil {
		p.begun.Add(1)
	}
}

// End says that it came back.
func (p *Pulse) End() {
	if p != nil {
		p.done.Add(1)
	}
}

// Counts returns both totals; begun - done are with the disk, done <= begun.
func (p *Pulse) Counts() (begun, done uint64) {
	done = p.done.Load() // first: what ends in between is not counted before it began
	return p.begun.Load(), done
}
