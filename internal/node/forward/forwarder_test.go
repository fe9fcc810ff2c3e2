package forward

import (
	"errors"
	"testing"
	"time"

	"penstock/internal/node/clock"
	"penstock/internal/node/errs"
	"penstock/internal/node/inbox"
	"penstock/internal/node/message"
	"penstock/internal/node/platform"
	"penstock/internal/node/reason"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
	"penstock/segment"
)

// testPartition is a partition that node 2 leads.
type testPartition struct{ box inbox.Inbox }

func (pt *testPartition) Identity() segment.Identity { return segment.Identity{} }
func (pt *testPartition) Box() *inbox.Inbox          { return &pt.box }
func (pt *testPartition) Target() replicate.NodeID   { return 2 }
func (pt *testPartition) Announce(bool)              {}

// onItsWay is a put that was sent to node 2 as request 7, with its deadline in a second by the clock that passed moves.
// answers collects the answers that the put gets.
func onItsWay() (f *Forwarder, p *inbox.Put, passed *time.Duration, answers *[]error) {
	pt := new(testPartition)
	passed = new(time.Duration)
	start := time.Now()
	clock := clock.New(func() time.Time { return start }, func() time.Duration { return *passed })
	f = New(Env{Peers: &platform.Peers{Self: 1}, Clock: clock})
	f.bytes = 3
	answers = new([]error)
	p = &inbox.Put{Done: func(p *inbox.Put) { *answers = append(*answers, p.Err) }}
	p.DeadlineNs = clock.NowNs() + int64(time.Second)
	l := f.lane(pt)
	p.Box, p.SentTo, p.Bytes, p.Order = &pt.box, 2, 3, l.Last()
	l.Sent(2)
	f.inFlight[7] = p
	return f, p, passed, answers
}

func answerTo(request uint64, status netproto.Status, first message.ID, why error) *netproto.Received {
	fr := &netproto.Received{Payload: make([]byte, wire.PutAckBytes)}
	fr.Header.Type, fr.Header.Request, fr.Header.Status = netproto.TypeForwardAck, request, status
	fr.Payload[0], fr.Payload[8] = byte(first), reason.Number(wire.AnswerPut, why)
	return fr
}

// A put that a leader did not store goes to the next leader. Every other put is answered: a put that may be stored is
// never sent again.
func TestForwardedPutIsAnsweredOrSentAgain(t *testing.T) {
	again := map[netproto.Status]bool{
		netproto.StatusNotLeader: true, netproto.StatusFull: true, netproto.StatusClosed: true,
	}
	for status := netproto.StatusOK; status <= netproto.StatusOverloaded; status++ {
		f, p, _, answers := onItsWay()
		f.HandleAck(2, answerTo(7, status, 5, errs.ErrQuota))
		waits := f.lanes[p.Box] != nil && f.lanes[p.Box].waiting.First() == p
		switch {
		case len(f.inFlight) != 0:
			t.Errorf("status %d: it is on its way still", status)
		case again[status] && (!waits || len(*answers) != 0 || f.bytes != 3):
			t.Errorf("status %d: nothing was stored, and it is answered %v, waits %v", status, *answers, waits)
		case again[status]:
		case waits || len(*answers) != 1 || f.bytes != 0 || len(f.lanes) != 0:
			t.Errorf("status %d: it is answered %v, and is sent again %v", status, *answers, waits)
		case status == netproto.StatusOK && ((*answers)[0] != nil || p.First != 5):
			t.Errorf("it was stored as 5, and is answered %v, id %d", (*answers)[0], p.First)
		case status != netproto.StatusOK && !errors.Is((*answers)[0], errs.ErrQuota):
			t.Errorf("status %d: the reason is %v", status, (*answers)[0])
		}
	}
}

// An answer counts only if it comes from the node that was asked, for the first time, and intact.
func TestForwardedPutIsAnsweredByWhoWasAsked(t *testing.T) {
	f, _, _, answers := onItsWay()
	f.HandleAck(3, answerTo(7, netproto.StatusOK, 5, nil))
	f.HandleAck(2, answerTo(8, netproto.StatusOK, 5, nil))
	short := answerTo(7, netproto.StatusOK, 5, nil)
	short.Payload = short.Payload[:wire.PutAckBytes-1]
	f.HandleAck(2, short)
	if len(*answers) != 0 || len(f.inFlight) != 1 {
		t.Fatalf("it is answered %v by a frame that is not its answer", *answers)
	}
	f.HandleAck(2, answerTo(7, netproto.StatusOK, 5, nil))
	f.HandleAck(2, answerTo(7, netproto.StatusRejected, 5, nil))
	if len(*answers) != 1 || (*answers)[0] != nil {
		t.Errorf("its answers are %v", *answers)
	}
}

// The outcome of a put whose leader says nothing is unknown AnswerMargin after the put's deadline, and not earlier: the
// leader may still say that nothing was stored.
func TestForwardedPutWaitsForTheLeader(t *testing.T) {
	f, _, passed, answers := onItsWay()
	*passed = time.Second + AnswerMargin
	f.Tick()
	if len(*answers) != 0 {
		t.Fatalf("it is answered %v within the margin", *answers)
	}
	*passed++
	f.Tick()
	if len(*answers) != 1 || !errors.Is((*answers)[0], errs.ErrUnknown) || f.bytes != 0 || len(f.lanes) != 0 {
		t.Errorf("it is answered %v after the margin, %d bytes, %d lanes", *answers, f.bytes, len(f.lanes))
	}

	f, _, passed, answers = onItsWay()
	*passed = time.Second + AnswerMargin
	f.HandleAck(2, answerTo(7, netproto.StatusRejected, 0, errs.ErrNoQuorum))
	if len(*answers) != 1 || !errors.Is((*answers)[0], errs.ErrNoQuorum) {
		t.Errorf("the leader says ErrNoQuorum within the margin, and it is answered %v", *answers)
	}
}

// A put that its leader did not store is not sent again after its deadline. B5.
func TestForwardedPutIsNotSentAgainLate(t *testing.T) {
	f, p, passed, answers := onItsWay()
	*passed = time.Second + 1
	f.HandleAck(2, answerTo(7, netproto.StatusNotLeader, 0, nil))
	if len(*answers) != 1 || !errors.Is((*answers)[0], errs.ErrNoLeader) || f.bytes != 0 || len(f.lanes) != 0 {
		t.Errorf("it is answered %v, %d bytes, %d lanes, waits %v", *answers, f.bytes, len(f.lanes), f.lanes[p.Box] != nil)
	}
}
