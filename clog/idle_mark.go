package clog

import (
	"sync/atomic"
	"time"

	"penstock/internal/lock"
)

// idleMark decides when an idle log writes a mark: Options.MarkAfter after its last group with records.
//
// When a group becomes durable and no timer is armed, the log arms one. Groups that follow do not move the timer: if it
// fires too early because of them, it is armed again for the time that is left. The mark is a group of its own, so a
// record that arrives while the mark is on its way to the disk goes into the next group at once.
//
// Log.mu guards owed and armed; mu guards timer and over. start sets after, began and wake. The timer's goroutine reads
// written and sets due. A crash loses nothing here: without a mark, the last group is durable but not promised.
type idleMark struct {
	after   time.Duration // 0: never
	owed    bool          // the last group has records, and no header promises it yet
	armed   bool          // a timer runs, or has fired and its mark is not written yet
	began   time.Time
	written atomic.Int64 // when the last group with records became durable, ns since began
	due     atomic.Bool  // the log was idle long enough; set by the timer or Rested

	mu    lock.Mutex[lock.LogIdleMark] // timer and over
	timer *time.Timer
	over  bool
	wake  func()
}

func (r *idleMark) start(l *Log) {
	if l.opts.Inline {
		return // the owner keeps the time and calls Log.Rested
	}
	r.after, r.began, r.wake = l.opts.MarkAfter, time.Now(), l.Wake
}

func (r *idleMark) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	if r.timer != nil {
		r.timer.Stop()
	}
}

// groupDurable notes that a group with records is durable. The caller holds Log.mu.
func (r *idleMark) groupDurable(now time.Time) {
	r.owed = true
	if r.after == 0 {
		return
	}
	r.written.Store(int64(now.Sub(r.began)))
	if !r.armed {
		r.armed = true
		r.arm(r.after)
	}
}

// markWritten notes that a group was added whose header promises all groups before it, or that such a group will
// follow. The caller holds Log.mu.
func (r *idleMark) markWritten() {
	r.owed, r.armed = false, false
	r.due.Store(false)
}

func (r *idleMark) arm(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.over:
	case r.timer == nil:
		r.timer = time.AfterFunc(d, r.fired)
	default:
		r.timer.Reset(d)
	}
}

// fired runs on the timer's goroutine, without Log.mu.
func (r *idleMark) fired() {
	if left := r.after - (time.Since(r.began) - time.Duration(r.written.Load())); left > 0 {
		r.arm(left)
		return
	}
	r.due.Store(true)
	r.wake()
}

// Rested tells the log that it was idle long enough: the next Step writes a mark if one is owed. It is for owners that
// keep the time themselves (Options.Inline).
func (l *Log) Rested() { l.idleMark.due.Store(true) }

// Owes returns the sequence number of the last group if the group has records and no later header says yet that it is
// durable, and 0 otherwise. Hosts of the simulation, which keep the time themselves, call it. It takes no lock: only
// the goroutine that steps the log may call it.
func (l *Log) Owes() uint64 {
	if !l.idleMark.owed {
		return 0
	}
	return l.durable
}

// idleMarkDue says whether to write an idle mark now. The caller found no records to write, and holds Log.mu.
func (l *Log) idleMarkDue() bool {
	r := &l.idleMark
	if !r.due.Load() || len(l.inFlight) > 0 {
		return false
	}
	if !r.owed || !l.markRoom() {
		r.markWritten()
		return false
	}
	return true
}
