package engine

import (
	"testing"
	"time"

	"penstock/replicate/wire"
)

// A delivery through another node may be handed over for as long as the leader said, and while the client's node has a
// lease; and no leader lets it be handed over when its own lease is over.
//
// F7.
func TestDeadlineEndsWithTheLease(t *testing.T) {
	c := newClockHost()
	cn := bareNode()
	cn.e.host, cn.replicaNode.e.host = c, c
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
	if d := cn.deadline(&wire.HeldHead{Stamp: uint64(cn.now()), HoldMs: 2000}); d.Passed() {
		t.Error("what was sent after the new lease began is over at once")
	}
	if (&Deadline{}).Passed() {
		t.Error("what may always be handed over is over")
	}
}

// A node stood still for longer than its lease, and gets a new one before it reads what lay in its sockets. The store
// saw the lease end, so the next leader did not wait for this node: nothing that was sent before may be handed over,
// neither with a deadline that is not over yet nor from a leader that knew nothing of deadlines.
//
// Seed 2629847.
func TestNothingOldIsHandedOverAfterALapse(t *testing.T) {
	c := newClockHost()
	cn := bareNode()
	cn.e.host, cn.replicaNode.e.host = c, c
	cn.remotes.init(cn)
	cn.forward = newForwarder(cn)
	cn.extend(cn.now() + int64(time.Second))
	head := wire.HeldHead{Stamp: uint64(cn.now()), HoldMs: 2000}
	early := cn.deadline(&head)
	l := &leg{begun: cn.now()}
	if cn.lapsed(l.begun) || early.Passed() {
		t.Fatal("it is over at once")
	}
	cn.extend(cn.now() + int64(1500*time.Millisecond))
	if c.pass(1200 * time.Millisecond); cn.lapsed(l.begun) {
		t.Error("a lease that was extended in time is taken for a new one")
	}
	c.pass(400 * time.Millisecond) // it stood still, and the lease ended
	cn.extend(cn.now() + int64(time.Second))
	if !early.Passed() {
		t.Error("a delivery that waited for the client is handed over after the lapse")
	}
	if d := cn.deadline(&head); !d.Passed() {
		t.Error("a delivery that lay in a socket is handed over after the lapse")
	}

	sink := &countingSink{}
	cn.self.ID = 1
	topic := &Topic{e: cn.e, partTopic: partTopic{name: "t"}}
	r := &remoteConsumer{rs: &cn.remotes, t: topic, sink: sink, answered: make(chan struct{})}
	l.r, l.Node = r, 1 // itself: its frames go through a queue
	cn.remotes.shut = true
	r.legs.Add(l)
	r.legs.Accept(l)
	frame := wire.AppendDelivered(nil, &wire.Delivered{ID: 7, Attempts: 1, Body: []byte("old")})
	if err := r.handleDeliver(l, frame); err != nil || sink.n != 0 || len(r.legs.All()) != 0 {
		t.Errorf("%v: %d messages handed over after the lapse, %d legs left; want none", err, sink.n, len(r.legs.All()))
	}
}

// countingSink counts what it gets.
type countingSink struct{ n int }

func (s *countingSink) Deliver(*Delivery) bool { s.n++; return true }
func (s *countingSink) Flush()                 {}
func (s *countingSink) Closed(error)           {}
