package clock

import (
	"sync/atomic"
	"time"
)

// Lease says until when a node of a cluster may serve. The cluster's store grants the lease, and the node then calls
// Extend. Any goroutine may call the methods; none of them waits. A crash loses the lease: the next process gets its
// own.
//
// The lease's clock includes the time in which the machine was suspended, so a machine that was suspended has no lease
// left.
type Lease struct {
	awake func() time.Duration // platform.Host.Awake
	start time.Duration        // awake when Begin was called; Now was 0 then
	until atomic.Int64         // see Until
	began atomic.Int64         // when the current sequence of leases without a gap began, by Now
	heard atomic.Int64         // when Extend was last called, by Now
}

// Begin starts the clock. awake is platform.Host.Awake. It is called once, before the other methods.
func (l *Lease) Begin(awake func() time.Duration) { l.awake, l.start = awake, awake() }

// Now returns the time since Begin, in ns.
func (l *Lease) Now() int64 { return int64(l.awake() - l.start) }

// Until returns when the lease ends, by Now.
func (l *Lease) Until() int64 { return l.until.Load() }

// Leased says whether the node has a lease now, and so may serve.
func (l *Lease) Leased() bool { return l.Now() < l.until.Load() }

// LeaseLeft returns how long the lease lasts; not more than 0: there is none.
func (l *Lease) LeaseLeft() time.Duration { return time.Duration(l.until.Load() - l.Now()) }

// Over says whether at, a time of Now, has passed or there is no lease.
func (l *Lease) Over(at int64) bool { return l.Now() >= at || !l.Leased() }

// Lapsed says whether there is no lease now, or was none at some moment after since, a time of Now.
func (l *Lease) Lapsed(since int64) bool { return !l.Leased() || since < l.began.Load() }

// Heard returns the time since the store last extended the lease (since Begin, if it never did), and for how long that
// answer let the node serve. Both are in terms of Now.
func (l *Lease) Heard() (ago, granted time.Duration) {
	heard := l.heard.Load()
	return time.Duration(l.Now() - heard), time.Duration(max(0, l.until.Load()-heard))
}

// End ends the lease at once, whatever its time was: another process has this node's name. Extend must not be called
// any more.
func (l *Lease) End() {
	for old := l.until.Load(); !l.until.CompareAndSwap(old, min(old, l.Now())); old = l.until.Load() {
	}
}

// Extend takes a new lease that ends at until, by Now. If the previous lease is over, the store may have seen it end,
// so a new sequence begins. began is stored before until: a reader that sees the new lease also sees when its sequence
// began.
func (l *Lease) Extend(until int64) {
	l.heard.Store(l.Now())
	for old := l.until.Load(); until > old; old = l.until.Load() {
		if now := l.Now(); now >= old {
			l.began.Store(now)
		}
		if l.until.CompareAndSwap(old, until) {
			return
		}
	}
}
