package engine

import (
	"testing"
	"time"

	"penstock/engine/base"
)

// What is to be handed over before a time may be handed over until then, and while this node has a lease.
//
// F7.
func TestDeadlinePassesWithTheLease(t *testing.T) {
	c := newClockHost()
	cn := bareNodeOn(c)
	cn.extend(cn.now() + int64(10*time.Second))
	d := base.Deadline{Clock: cn, At: cn.now() + int64(2*time.Second)}
	if d.Passed() {
		t.Error("it is over at once")
	}
	if c.pass(2*time.Second - 1); d.Passed() {
		t.Error("it is over early")
	}
	if c.pass(1); !d.Passed() {
		t.Error("it may be handed over after its time")
	}
	d.At = cn.now() + int64(time.Hour)
	if c.pass(7 * time.Second); d.Passed() {
		t.Error("it is over early")
	}
	if c.pass(time.Second); !d.Passed() {
		t.Error("a node without a lease hands it over")
	}
	cn.extend(cn.now() + int64(time.Minute))
	if d.Passed() {
		t.Error("it is over with a new lease")
	}
	if (&base.Deadline{}).Passed() {
		t.Error("what may always be handed over is over")
	}
}

// A node stood still for longer than its lease, and gets a new one: the store saw the old one end.
//
// Seed 2629847.
func TestLeaseAfterAGapIsNotTheOldOne(t *testing.T) {
	c := newClockHost()
	cn := bareNodeOn(c)
	cn.extend(cn.now() + int64(time.Second))
	begun := cn.now()
	if cn.Lapsed(begun) {
		t.Fatal("it is over at once")
	}
	cn.extend(cn.now() + int64(1500*time.Millisecond))
	if c.pass(1200 * time.Millisecond); cn.Lapsed(begun) {
		t.Error("a lease that was extended in time is taken for a new one")
	}
	c.pass(400 * time.Millisecond) // it stood still, and the lease ended
	cn.extend(cn.now() + int64(time.Second))
	if !cn.Lapsed(begun) || cn.Lapsed(cn.now()) {
		t.Errorf("since before the gap it has lapsed %v, since now %v", cn.Lapsed(begun), cn.Lapsed(cn.now()))
	}
}
