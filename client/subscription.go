package client

import (
	"bytes"
	"slices"
	"time"

	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// blockBytes is the memory that small frames of deliveries share.
const blockBytes = 64 << 10

// deliverHeadBytes is what a frame of deliveries has besides them.
var deliverHeadBytes = len(wire.BeginDeliver(nil, 0))

// subscription is a consumer at one node. Its goroutine, run, sends what is to be said to the node; the connection's
// goroutine calls answer. It ends with the connection, or when the node or the consumer ends it; another one takes its
// place then.
type subscription struct {
	consumer *Consumer
	seat     *seat // in the consumer's spread
	link     *link
	request  uint64 // set by run before it says anything else
	woken    chan struct{}

	// Consumer.mu guards the rest, but block and frame.
	ledger  ledger
	permit  permit
	told    uint32 // messages of the share that the node knows
	share   quota
	leaving bool  // the consumer ends it
	kept    *node // keeps the connection while the consumer ends the subscription; nil otherwise
	over    bool  // it has ended

	block []byte       // what is left of the memory for small frames; only answer uses it
	out   sayings      // what run sends; only run uses it
	said  wire.Handles // likewise
	head  []byte       // likewise
}

// parcel is a frame of deliveries that has arrived.
type parcel struct {
	sub     *subscription
	bytes   []byte
	count   int // deliveries
	left    int // bytes of those that the application did not get
	arrived time.Duration
}

func (s *subscription) wake() { signal(s.woken) }

// answer is link's call for a frame of the node about this subscription.
func (s *subscription) answer(l *link, f *netproto.Received) bool {
	c := s.consumer
	var err error
	switch {
	case f.Type == wire.TypeDeliver && f.Status == netproto.StatusOK:
		if err = s.arrived(f.Payload); err == nil {
			return true
		}
	case f.Type == wire.TypeDeliverOrdered && f.Status == netproto.StatusOK:
		if err = s.arrivedOrdered(f.Payload); err == nil {
			return true
		}
	case f.Type == wire.TypeRecall && f.Status == netproto.StatusOK:
		var m wire.Recall
		if err = wire.Decode(f.Payload, &m); err == nil {
			c.recall(s, &m)
			s.tell(wire.TypeRecall, &m)
			return true
		}
	case f.Type == wire.TypeSubscribed && f.Status == netproto.StatusOK:
		var m wire.Subscribed
		if err = wire.Decode(f.Payload, &m); err == nil {
			c.accepted(s, &m)
			return true
		}
	case f.Type == wire.TypeRefused && f.Status == netproto.StatusOK:
		var m wire.Refused
		if err = wire.Decode(f.Payload, &m); err == nil {
			c.refused(s, &m)
			return true
		}
	case f.Type == wire.TypeSubscribeEnd || f.Status != netproto.StatusOK:
		if c.ended(s, f.Status, outcomeOf(f.Type, f.Payload)) {
			s.tell(wire.TypeSubscribeEnd, new(wire.Outcome))
		}
		return false
	default:
		err = wire.ErrInvalid
	}
	l.conn.Abort(err)
	return false
}

// arrived takes a frame of deliveries. The bytes are copied into memory that the garbage collector frees when nobody
// has the deliveries any more; small frames share it.
func (s *subscription) arrived(payload []byte) error {
	p, err := s.parcel(payload)
	if err == nil {
		s.consumer.arrived(p, nil)
	}
	return err
}

// arrivedOrdered takes a frame of deliveries of an ordered channel, maybe without deliveries.
func (s *subscription) arrivedOrdered(payload []byte) error {
	var m wire.Permit
	if err := wire.Decode(payload, &m); err != nil {
		return err
	}
	p, err := s.parcel(payload[wire.PermitBytes:])
	if err == nil {
		s.consumer.arrived(p, &m)
	}
	return err
}

func (s *subscription) parcel(payload []byte) (parcel, error) {
	var walk wire.Deliveries
	if err := walk.Reset(payload); err != nil {
		return parcel{}, err
	}
	return parcel{
		sub: s, bytes: s.keep(payload), count: walk.Count, left: len(payload) - deliverHeadBytes,
	}, nil
}

// tell answers the node from the connection's goroutine. If there is no room in the connection's queue, the node waits
// for the end of its permits.
func (s *subscription) tell(typ netproto.Type, m wire.Payload) {
	_ = s.link.conn.TrySend(&netproto.Frame{Type: typ, Request: s.request, Head: wire.Append(nil, m)})
}

// keep copies the bytes of a frame.
func (s *subscription) keep(payload []byte) []byte {
	n := len(payload)
	if n > blockBytes/2 {
		return bytes.Clone(payload) // which clears no memory before it copies
	}
	if n > cap(s.block)-len(s.block) {
		s.block = make([]byte, 0, blockBytes)
	}
	at := len(s.block)
	s.block = append(s.block, payload...)
	return s.block[at : at+n : at+n]
}

// lost is link's call at the end of the connection.
func (s *subscription) lost(*link, uint64) {
	s.consumer.ended(s, netproto.StatusClosed, wire.Outcome{})
}

// syncing is a Sync without an answer. It is the receiver of the answer.
type syncing struct{ sub *subscription }

func (q syncing) answer(_ *link, f *netproto.Received) bool {
	q.sub.consumer.synced(q.sub, f.Type == wire.TypeSynced && f.Status == netproto.StatusOK)
	return false
}

// lost is link's call at the end of the connection, of which the subscription hears, too.
func (q syncing) lost(*link, uint64) {}

// run subscribes, and sends what is to be said until the subscription has ended.
func (s *subscription) run(m *wire.Subscribe) {
	var err error
	s.request, err = s.link.send(s.link.ctx, &netproto.Frame{Type: wire.TypeSubscribe, Head: wire.Append(nil, m)}, s, 0)
	if err != nil {
		s.consumer.ended(s, netproto.StatusClosed, wire.Outcome{})
		return
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		again, more := s.say()
		if !more {
			return
		}
		var due <-chan time.Time
		if again > 0 {
			timer.Reset(again)
			due = timer.C
		}
		select {
		case <-due:
		case <-s.woken:
		case <-s.link.ctx.Done(): // lost ends the subscription
			return
		}
	}
}

// say sends all there is. It returns after what time to call it again although nothing happens, if not 0, and false
// when nothing will be said any more.
func (s *subscription) say() (again time.Duration, more bool) {
	c, l := s.consumer, &s.ledger
	c.mu.Lock()
	if s.over && !s.leaving {
		c.mu.Unlock()
		return 0, false
	}
	if s.leaving { // so that a Sync of the application need not leave open what the node has stored
		l.promise()
	}
	now := c.clock()
	s.out, l.say = l.say, s.out
	l.say.clear()
	credit := wire.Credit{Messages: uint32(s.share.messages), Bytes: uint32(l.grant(now))}
	sayCredit := credit.Bytes > 0 || credit.Messages != s.told
	s.told = credit.Messages
	sync := l.sync(now)
	leaving := s.leaving && (s.over || !l.wantSync) // else the answer to the Sync before comes first
	if due := l.starves(now); due > 0 {
		again = max(due-now, time.Millisecond)
	}
	if due := s.permit.asks(l.waiting > 0); due > 0 {
		at := awake()
		if at >= due {
			credit.Stamp, sayCredit = s.stamp(at), true
			due = at + stampEvery
		}
		if left := max(due-at, time.Millisecond); again == 0 || left < again {
			again = left
		}
	}
	c.mu.Unlock()

	s.sayings()
	if sayCredit {
		s.send(wire.TypeCredit, wire.Append(s.head[:0], &credit))
	}
	if sync {
		m := wire.Sync{Subscription: s.request}
		f := netproto.Frame{Type: wire.TypeSync, Head: wire.Append(nil, &m)}
		_, _ = s.link.send(s.link.ctx, &f, syncing{s}, 0) // an error means that the connection ends
	}
	if leaving {
		s.send(wire.TypeSubscribeEnd, wire.Append(s.head[:0], new(wire.Outcome)))
	}
	return again, !leaving
}

// stamp returns the stamp with which the node is asked for a permit now. Consumer.mu is held.
func (s *subscription) stamp(now time.Duration) uint64 {
	s.permit.asked = now
	return uint64(now)
}

// sayings sends out.
func (s *subscription) sayings() {
	for some := range slices.Chunk(s.out.requeue, wire.MaxIDCount) {
		m := wire.Requeue{Messages: some}
		s.send(wire.TypeRequeue, wire.Append(s.head[:0], &m))
	}
	s.sayHandles(wire.TypeTouch, s.out.touch)
	s.sayHandles(wire.TypeFinish, s.out.finish)
	if s.out.through > 0 {
		m := wire.FinishThrough{Number: s.out.through, ID: s.out.throughID}
		s.send(wire.TypeFinishThrough, wire.Append(s.head[:0], &m))
	}
	s.out.clear()
}

func (s *subscription) sayHandles(typ netproto.Type, all []wire.Handle) {
	for len(all) > 0 {
		n := min(len(all), wire.MaxIDCount)
		s.said.Deliveries = all[:n]
		s.send(typ, wire.Append(s.head[:0], &s.said))
		all = all[n:]
	}
	s.said.Deliveries = nil
}

// send sends a frame about this subscription, whose payload is in head. It waits for room in the connection's queue. An
// error means that the connection ends, which lost tells.
func (s *subscription) send(typ netproto.Type, head []byte) {
	s.head = head
	_ = s.link.conn.Send(s.link.ctx, &netproto.Frame{Type: typ, Request: s.request, Head: head})
}
