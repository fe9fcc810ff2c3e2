package clog

import (
	"sync"
	"sync/atomic"
	"time"
)

// rest notices that the log had nothing to do for Options.MarkAfter since its last group, and then lets it write a mark.
//
// A busy log pays nothing for it: one timer is armed when a group is written and none is armed yet; when it fires and the log was at work meanwhile, it
// waits for what is left. The mark is a group of its own in the queue, so a put that comes while it is on the disk is in the next group at once.
type rest struct {
	after   time.Duration // 0: never
	owed    bool          // the last group has records: no header promises it
	armed   bool
	began   time.Time
	written atomic.Int64 // when the last group was, ns since began
	due     atomic.Bool

	mu    sync.Mutex // timer and over
	timer *time.Timer
	over  bool
	wake  func()
}

func (r *rest) start(l *Log) {
	if l.opts.Inline {
		return // its owner knows the time: Log.Rested
	}
	r.after, r.began, r.wake = l.opts.MarkAfter, time.Now(), l.Wake
}

func (r *rest) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	if r.timer != nil {
		r.timer.Stop()
	}
}

// grouped says that a group with records is durable. The log's turn lock is held, as in marked.
func (r *rest) grouped(now time.Time) {
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

// marked says that a group was added that promises all before it, or will be followed by one that does.
func (r *rest) marked() {
	r.owed, r.armed = false, false
	r.due.Store(false)
}

func (r *rest) arm(d time.Duration) {
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
func (r *rest) fired() {
	if left := r.after - (time.Since(r.began) - time.Duration(r.written.Load())); left > 0 {
		r.arm(left)
		return
	}
	r.due.Store(true)
	r.wake()
}

// Rested says that the log had nothing to do for a while; the next Step writes a mark if the last group has none. It is for logs whose owner keeps the time
// (Options.Inline).
func (l *Log) Rested() { l.rest.due.Store(true) }

// Owes is the last group, if it has records and no header promises it: when the log rests it gets a mark. 0: there is none. For logs whose owner keeps the time.
func (l *Log) Owes() uint64 {
	if !l.rest.owed {
		return 0
	}
	return l.durable
}

// restMark says whether the mark of a log at rest is due. There were no records to write just now.
func (l *Log) restMark() bool {
	r := &l.rest
	if !r.due.Load() || len(l.inFlight) > 0 {
		return false
	}
	if !r.owed || !l.markRoom() {
		r.marked()
		return false
	}
	return true
}
