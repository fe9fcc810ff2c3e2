package engine

import (
	"testing"
	"time"
)

// A delivery through another node may be handed over for as long as the leader said, and while the client's node has a lease; and no leader lets it be handed over
// when its own lease is over.
//
// F7.
func TestDeadlineEndsWithTheLease(t *testing.T) {
	c := newClockHost()
	cn := bareReplica().cn
	cn.e.host = c
	cn.remotes.init(cn)
	cn.extend(cn.now() + int64(10*time.Second))
	d := Deadline{Clock: cn, At: cn.now() + int64(2*time.Second)}
	if d.Passed() {
		t.Error("it is over at once")
	}
	if c.pass(2*time.Second - 1); d.Passed() {
		t.Error("it is over early")
	}
	if c.pass(1); !d.Passed() {
		t.Error("it may be handed over after the leader said")
	}
	d.At = cn.now() + int64(time.Hour)
	if c.pass(7 * time.Second); d.Passed() {
		t.Error("it is over early")
	}
	s := &subscription{rs: &cn.remotes}
	if h := s.heldHead(); h.HoldMs != 1000 {
		t.Errorf("it may be handed over for %d ms, and the leader's lease is over in 1000", h.HoldMs)
	}
	if c.pass(time.Second); !d.Passed() {
		t.Error("a node without a lease hands it over")
	}
	if h := s.heldHead(); h.HoldMs != 0 {
		t.Errorf("it may be handed over for %d ms, and the leader has no lease", h.HoldMs)
	}
	cn.extend(cn.now() + int64(time.Minute))
	if h := s.heldHead(); h.HoldMs != uint32(remoteHoldTime.Milliseconds()) || d.Passed() {
		t.Errorf("with a new lease it may be handed over for %d ms", h.HoldMs)
	}
	if (&Deadline{}).Passed() {
		t.Error("what may always be handed over is over")
	}
}
