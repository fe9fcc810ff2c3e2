package clock

import (
	"testing"
	"time"

	"penstock/internal/node/message"
)

// sleeper is a clock that the test sets.
type sleeper struct{ at time.Duration }

func (s *sleeper) awake() time.Duration { return s.at }

func (s *sleeper) pass(d time.Duration) { s.at += d }

// A delivery with a deadline may be handed over until its deadline, and only while this node has a lease.
//
// F7.
func TestDeadlinePassesWithTheLease(t *testing.T) {
	var c sleeper
	var l Lease
	l.Begin(c.awake)
	l.Extend(l.Now() + int64(10*time.Second))
	d := message.Deadline{Clock: &l, At: l.Now() + int64(2*time.Second)}
	if d.Passed() {
		t.Error("it is over at once")
	}
	if c.pass(2*time.Second - 1); d.Passed() {
		t.Error("it is over early")
	}
	if c.pass(1); !d.Passed() {
		t.Error("it may be handed over after its time")
	}
	d.At = l.Now() + int64(time.Hour)
	if c.pass(7 * time.Second); d.Passed() {
		t.Error("it is over early")
	}
	if c.pass(time.Second); !d.Passed() {
		t.Error("a node without a lease hands it over")
	}
	l.Extend(l.Now() + int64(time.Minute))
	if d.Passed() {
		t.Error("it is over with a new lease")
	}
	if (&message.Deadline{}).Passed() {
		t.Error("what may always be handed over is over")
	}
}

// A node was suspended for longer than its lease, and gets a new one: the store saw the old one end.
//
// Seed 2629847.
func TestLeaseAfterAGapIsNotTheOldOne(t *testing.T) {
	var c sleeper
	var l Lease
	l.Begin(c.awake)
	l.Extend(l.Now() + int64(time.Second))
	begun := l.Now()
	if l.Lapsed(begun) {
		t.Fatal("it is over at once")
	}
	l.Extend(l.Now() + int64(1500*time.Millisecond))
	if c.pass(1200 * time.Millisecond); l.Lapsed(begun) {
		t.Error("a lease that was extended in time is taken for a new one")
	}
	c.pass(400 * time.Millisecond) // it was suspended, and the lease ended
	l.Extend(l.Now() + int64(time.Second))
	if !l.Lapsed(begun) || l.Lapsed(l.Now()) {
		t.Errorf("since before the gap it has lapsed %v, since now %v", l.Lapsed(begun), l.Lapsed(l.Now()))
	}
}
