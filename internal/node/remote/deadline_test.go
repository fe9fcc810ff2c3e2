package remote

import (
	"testing"
	"time"

	"penstock/internal/node/message"
	"penstock/internal/node/platform"
	"penstock/internal/node/route"
	"penstock/replicate/wire"
)

// testLease is a lease whose clock the test moves.
type testLease struct{ now, until, began time.Duration }

func (l *testLease) Now() int64         { return int64(l.now) }
func (l *testLease) Until() int64       { return int64(l.until) }
func (l *testLease) Leased() bool       { return l.now < l.until }
func (l *testLease) Over(at int64) bool { return l.Now() >= at || !l.Leased() }

func (l *testLease) Lapsed(since int64) bool { return !l.Leased() || since < int64(l.began) }

// extend begins a lease of the given length.
func (l *testLease) extend(d time.Duration) {
	if !l.Leased() {
		l.began = l.now
	}
	l.until = l.now + d
}

// newTestConsumers returns the Consumers of node 1 without a network: a frame to another node ends the test.
func newTestConsumers(t *testing.T, l *testLease) *Consumers {
	return New(Env{
		Host: platform.NewMachine(), Peers: &platform.Peers{Self: 1, Ctx: t.Context()}, Lease: l,
		Level: func() int { return 1 },
	})
}

// A delivery through another node may be handed over for as long as the leader allowed, and no leader allows it beyond
// the end of its own lease.
//
// F7.
func TestDeadlineEndsWithTheLease(t *testing.T) {
	l := &testLease{now: time.Hour}
	l.extend(10 * time.Second)
	rs := newTestConsumers(t, l)
	d := rs.deadline(&wire.HeldHead{Stamp: uint64(l.now), HoldMs: 2000})
	if l.now += 2*time.Second - 1; d.Passed() {
		t.Error("it is over early")
	}
	if l.now++; !d.Passed() {
		t.Error("it may be handed over after the leader said")
	}
	l.now += 7 * time.Second
	s := &subscription{rs: rs}
	if h := s.heldHead(); h.HoldMs != 1000 {
		t.Errorf("it may be handed over for %d ms, and the leader's lease is over in 1000", h.HoldMs)
	}
	l.now += time.Second
	if h := s.heldHead(); h.HoldMs != 0 {
		t.Errorf("it may be handed over for %d ms, and the leader has no lease", h.HoldMs)
	}
	l.extend(time.Minute)
	if h := s.heldHead(); h.HoldMs != uint32(holdTime.Milliseconds()) {
		t.Errorf("with a new lease it may be handed over for %d ms", h.HoldMs)
	}
	if d := rs.deadline(&wire.HeldHead{Stamp: uint64(l.now), HoldMs: 2000}); d.Passed() {
		t.Error("what was sent after the new lease began is over at once")
	}
}

// A node was suspended for longer than its lease, and gets a new lease before it reads its sockets. The store saw the
// old lease end, so the next leader did not wait for this node. So nothing that was sent before may be handed over:
// neither a delivery whose deadline has not passed yet, nor one from a leader that does not know deadlines.
//
// Seed 2629847.
func TestNothingOldIsHandedOverAfterALapse(t *testing.T) {
	lease := &testLease{now: time.Hour}
	lease.extend(time.Second)
	rs := newTestConsumers(t, lease)
	head := wire.HeldHead{Stamp: uint64(lease.now), HoldMs: 2000}
	early := rs.deadline(&head)
	l := &leg{begun: lease.Now()}
	if early.Passed() {
		t.Fatal("it is over at once")
	}
	lease.extend(1500 * time.Millisecond)
	lease.now += 1600 * time.Millisecond // it was suspended, and the lease ended
	lease.extend(time.Second)
	if !early.Passed() {
		t.Error("a delivery that waited for the client is handed over after the lapse")
	}
	if d := rs.deadline(&head); !d.Passed() {
		t.Error("a delivery that lay in a socket is handed over after the lapse")
	}

	sink := &countingSink{}
	r := &Consumer{rs: rs, sink: sink, answered: make(chan struct{})}
	l.r, l.Node = r, 1 // the node itself: its frames go through a queue
	rs.shut = true
	r.legs.Add(l)
	r.legs.Accept(l)
	frame := wire.AppendDelivered(nil, &wire.Delivered{ID: 7, Attempts: 1, Body: []byte("old")})
	if err := r.handleDeliver(l, frame); err != nil || sink.n != 0 || len(r.legs.All()) != 0 {
		t.Errorf("%v: %d messages handed over after the lapse, %d legs left; want none", err, sink.n, len(r.legs.All()))
	}
}

// countingSink counts its deliveries.
type countingSink struct{ n int }

func (s *countingSink) Deliver(*message.Delivery) bool { s.n++; return true }
func (s *countingSink) Flush()                         {}
func (s *countingSink) Closed(error)                   {}

// Stamps belong to a feature level. They are not sent while that level is not in force, because an older node takes
// them for damage and closes the connection.
//
// F3.
func TestNoStampsBelowTheirLevel(t *testing.T) {
	rs := newTestConsumers(t, &testLease{})
	rs.legs[1] = &leg{Leg: route.Leg{Node: 2}}
	rs.sendStamps()
}
