package channel

import (
	"testing"
	"time"

	"penstock/internal/node/errs"
	"penstock/internal/node/message"
)

// short is a lease that ends soon.
type short struct {
	leased
	left  time.Duration
	asked func() // what happens when it is asked for
}

func (s short) LeaseLeft() time.Duration {
	if s.asked != nil {
		s.asked()
	}
	return s.left
}

// A permit lasts no longer than the lease and HoldTime, and there is none for a consumer that has ended. Its client may
// begin what it got for as long as its last permit and the drift of two clocks.
//
// B57.
func TestPermit(t *testing.T) {
	c, _ := newTestChannel(t, 1)
	attach := func() *Consumer {
		t.Helper()
		k, err := c.Attach(message.ConsumerOptions{}, noSink{}, false)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	for _, x := range []struct{ left, want time.Duration }{
		{time.Hour, message.HoldTime}, {time.Second, time.Second}, {0, 0}, {-time.Second, 0},
	} {
		c.node.Lease = short{left: x.left}
		if got := attach().Permit(); got != x.want {
			t.Errorf("a permit of %v with %v of lease left", got, x.left)
		}
	}
	now := c.node.Clock.NowNs
	// The process stands still after it has looked at its lease: the permit counts from afterwards.
	var looked int64
	c.node.Lease = short{left: time.Hour, asked: func() { looked = now() }}
	k := attach()
	if k.Permit(); k.permits.given.Load() < looked {
		t.Error("a permit counts from before the lease was looked at")
	}
	c.node.Lease = leased{}
	k = attach()
	if k.permits.end(now()) != 0 || k.Permit() != 0 {
		t.Error("a consumer that never had a permit, or that has ended, has one")
	}
	k = attach()
	k.Permit()
	const most = int64(message.HoldTime + message.HoldDrift)
	if left := k.permits.end(now()); left <= most-int64(time.Second) || left > most {
		t.Errorf("what a client got is begun for %v", time.Duration(left))
	}
	if !c.Recall(0) {
		t.Error("a recall waits for nobody")
	}
	for _, clean := range []bool{true, false} {
		k := attach()
		k.Permit()
		k.CloseRemote(clean)
		if c.Recall(0) != clean {
			t.Errorf("clean %v: a recall waits %v", clean, clean)
		}
		if k.Left(); !c.Recall(0) {
			t.Error("a recall waits for a client that begins nothing any more")
		}
	}
}

// What a client may begin is known also when its channel is gone: the channel was shut because this node leads no
// partition of it any more.
//
// B57.
func TestPermitsOutliveTheChannel(t *testing.T) {
	c, _ := newTestChannel(t, 1)
	c.node.Lease = short{left: time.Hour}
	k, err := c.Attach(message.ConsumerOptions{}, noSink{}, false)
	if err != nil {
		t.Fatal(err)
	}
	k.Permit()
	if c.Shut(errs.ErrMoved); !c.node.MayBegin(c.topic.ID()) {
		t.Error("nobody waits for a client that has a permit")
	}
	if k.Permit() != 0 {
		t.Error("a consumer of a channel that is gone gets a permit")
	}
	if k.Left(); c.node.MayBegin(c.topic.ID()) {
		t.Error("one waits for a client that begins nothing any more")
	}
}

// noSink takes what comes.
type noSink struct{}

func (noSink) Deliver(*message.Delivery) bool { return true }
func (noSink) Flush()                         {}
func (noSink) Closed(error)                   {}
