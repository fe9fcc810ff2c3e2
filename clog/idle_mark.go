package clog

import (
	"sync/atomic"
	"time"

	"penstock/internal/lock"
)

// idleMark decides when an idle log writes a mark: Options.MarkAfter after its last group with records.
//
// A busy log arms one timer, when a group becomes durable and none is armed. A timer that fires too early, because more
// groups followed, is armed again for what is left. The mark is a group of its own, so a record that arrives while it
// is on the disk goes into the next group at once.
//
// owed and armed are guarded by Log.mu, timer and over by mu. The timer's goroutine reads written and sets due. A crash
// loses nothing here: without a mark, the last group is only not promised.
type idleMark struct {
	after   time.Duration // 0: never
	owed    bool          // the last group has records: no header promises it
	armed   bool
	began   time.Time
	written atomic.Int64 // when the last group was, ns since began
	due     atomic.Bool

	mu    lock.Mutex[lock.LogIdleMark] // timer and over
	timer *time.Timer
	over  bool
	wake  func()
}

func (r *idleMark) start(l *Log) {
	if l.opts.Inline {
		return // its owner knows the time: Log.Rested
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

// groupDurable is called when a group with records is durable, with Log.mu held.
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

// markWritten is called, with Log.mu held, when a group was added whose header promises all before it, or that another
// such group will follow.
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

// fired runs on the timer's goroutine.
func (r *idleMark) fired() {
	if left := r.after - (time.Since(r.began) - time.Duration(r.written.Load())); left > 0 {
		r.arm(left)
		return
	}
	r.due.Store(true)
	r.wake()
}

// Rested tells the log that it was idle long enough: the next Step writes a mark if one is owed. For owners that keep
// the time themselves (Options.Inline).
func (l *Log) Rested() { l.idleMark.due.Store(true) }

// Owes is the sequence number of the last group if it has records and no header promises it, else 0. For owners that
// keep the time themselves.
func (l *Log) Owes() uint64 {
	if !l.idleMark.owed {
		return 0
	}
	return l.durable
}

// idleMarkDue says whether to write an idle mark now. The caller found no records to write.
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
