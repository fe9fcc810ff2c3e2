package remote

import (
	"bytes"
	"errors"
	"slices"
	"time"

	"penstock/internal/lock"
	"penstock/internal/node/errs"
	"penstock/internal/node/message"
	"penstock/internal/node/reason"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
)

// unsentFrame is a Deliver or DeliverHeld frame that waits to be sent.
type unsentFrame struct {
	*wire.Buffer
	kind netproto.Type
}

// subscriptionKey names a subscription by its client's node and the request id of its frames.
type subscriptionKey struct {
	from replicate.NodeID
	id   uint64
}

// subscription is the leader's side of a leg: a consumer whose client is connected to another node. It is the Sink of
// that consumer; the channel calls Deliver with Channel.mu held. The connections' readers call handleConsume.
//
// mu guards the fields below it, except seen, which belongs to the connection's reader. mu is taken inside Channel.mu;
// Consumers.mu may be taken inside mu. If this node crashes, the client's node sees the connection end and subscribes
// at the next leader.
type subscription struct {
	rs     *Consumers
	key    subscriptionKey
	window int

	mu      lock.Mutex[lock.Subscription]
	k       Served       // nil: not attached to the channel yet
	ended   bool         // the client's node has unsubscribed, or the channel is closed
	buf     *wire.Buffer // the frame that is being filled
	unsent  []unsentFrame
	waiting bool   // a goroutine retries to send unsent
	bufHeld bool   // buf is a DeliverHeld
	seen    uint64 // newest serial that the client had received when it made its next call
	unpaid  int    // bytes sent but not paid back
	blocked bool   // the window is used up, and Deliver has told the channel so
	frame   netproto.Frame
	body    [1][]byte
}

// handleSubscribe handles a Subscribe frame. The work that may wait runs on a goroutine; an Unsubscribe can arrive
// meanwhile.
func (rs *Consumers) handleSubscribe(from replicate.NodeID, id uint64, payload []byte) error {
	if _, err := wire.DecodeSubscribe(payload); err != nil {
		return err
	}
	ask, _ := wire.DecodeSubscribe(bytes.Clone(payload))
	s := &subscription{rs: rs, key: subscriptionKey{from, id}, window: int(min(ask.WindowBytes, windowBytes))}
	rs.mu.Lock()
	rs.subs[s.key] = s
	rs.mu.Unlock()
	rs.peers.Spawn(func() {
		err := s.attach(&ask)
		f := netproto.Frame{Type: netproto.TypeSubscribed, Request: id}
		switch {
		case err == nil:
		case errors.Is(err, errs.ErrNoChannel), errors.Is(err, errs.ErrDeleted), errors.Is(err, errs.ErrTooManyClients):
			f.Status, f.Head = netproto.StatusRejected, []byte{reason.Number(wire.AnswerSubscription, err)}
		default:
			f.Status = netproto.StatusNotLeader
		}
		if err != nil {
			rs.removeSubscription(s.key)
		}
		rs.sendReliably(from, &f)
	})
	return nil
}

// removeSubscription removes a subscription from the table and returns it, or nil if the table does not contain it.
func (rs *Consumers) removeSubscription(key subscriptionKey) *subscription {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	s := rs.subs[key]
	delete(rs.subs, key)
	return s
}

// attach creates the consumer. It waits until this node serves partitions of the topic, at most ServeTime. The caller
// holds no lock.
func (s *subscription) attach(ask *wire.Subscribe) error {
	label := wire.DecodeLabel(ask.Label)
	if n := s.rs.n.Snapshot().Nodes[s.key.from]; n != nil {
		label.Node = n.Name
	}
	o := message.ConsumerOptions{
		MsgTimeout: time.Duration(ask.MsgTimeoutMs) * time.Millisecond, SampleRate: int(ask.SampleRate),
		Label: label, Tag: string(ask.Tag),
	}
	if ask.Only != 0 {
		partition := ask.Only - 1
		o.Partition = &partition
	}
	k, err := s.rs.n.Above.Attach(ask.Topic, string(ask.Channel), o, s)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.k = k
	gone := s.ended
	s.mu.Unlock()
	if gone {
		k.Close()
		return errs.ErrNoLeader
	}
	s.enableHold()
	return nil
}

// end closes the consumer. Other consumers get its messages in flight at once; in an ordered channel, only when the
// deliveries can no longer reach the client. clean says that no delivery is on its way to the client.
func (s *subscription) end(clean bool) {
	s.mu.Lock()
	s.ended = true
	k := s.k
	s.discardUnsent()
	s.mu.Unlock()
	if k != nil {
		k.CloseRemote(clean)
	}
}

// discardUnsent drops the frames that were not sent yet. mu is held.
func (s *subscription) discardUnsent() {
	if s.buf != nil {
		s.buf.Release()
	}
	for _, b := range s.unsent {
		b.Release()
	}
	s.buf, s.unsent = nil, nil
}

// Deliver implements Sink. It returns false when the window is used up or the subscription has ended.
func (s *subscription) Deliver(d *message.Delivery) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	m := wire.Delivered{ID: uint64(d.ID), Timestamp: d.Timestamp, Attempts: d.Attempts, Headers: d.Headers, Body: d.Body}
	n, held := wire.DeliveredBytes(&m), d.Serial != 0
	if held {
		n += wire.HeldBytes
	}
	if s.buf != nil && (s.bufHeld != held || len(s.buf.Bytes)+n > maxDeliverBytes) {
		s.submit()
	}
	if s.buf == nil {
		s.buf = wire.NewBuffer()
		if s.buf.Bytes, s.bufHeld = s.buf.Bytes[:0], held; held {
			head := s.heldHead()
			s.buf.Bytes = wire.AppendHeldHead(s.buf.Bytes, &head)
		}
	}
	if held {
		s.buf.Bytes = wire.AppendHeld(s.buf.Bytes, &wire.Held{Epoch: d.Epoch, Serial: d.Serial})
	}
	s.buf.Bytes = wire.AppendDelivered(s.buf.Bytes, &m)
	s.unpaid += n
	s.blocked = s.blocked || s.unpaid >= s.window
	return !s.blocked
}

func (s *subscription) Flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.buf != nil && !s.ended {
		s.submit()
	}
}

// submit sends the frame in buf. If the connection's queue is full, a goroutine sends the frame when there is room. mu
// is held.
func (s *subscription) submit() {
	kind := netproto.TypeDeliver
	if s.bufHeld {
		kind = netproto.TypeDeliverHeld
	}
	s.unsent = append(s.unsent, unsentFrame{s.buf, kind})
	s.buf = nil
	if s.sendUnsent() || s.waiting {
		return
	}
	s.waiting = true
	peers := s.rs.peers
	peers.Spawn(func() {
		for done := false; !done; {
			err := peers.AwaitRoom(peers.Ctx, s.key.from)
			s.mu.Lock()
			done = err != nil || s.sendUnsent()
			s.waiting = !done
			s.mu.Unlock()
		}
	})
}

// sendUnsent sends the waiting frames in order. It returns false if the connection's queue is full. mu is held.
func (s *subscription) sendUnsent() bool {
	for i, b := range s.unsent {
		s.body[0] = b.Bytes
		s.frame = netproto.Frame{Type: b.kind, Request: s.key.id, Body: s.body[:], Owner: b.Buffer}
		switch err := s.rs.send(s.key.from, &s.frame); {
		case errors.Is(err, netproto.ErrQueueFull):
			s.unsent = slices.Delete(s.unsent, 0, i)
			return false
		case err != nil: // the connection has ended, and the subscription with it
			b.Release()
		}
	}
	clear(s.unsent)
	s.unsent = s.unsent[:0]
	s.body[0], s.frame.Owner = nil, nil
	return true
}

// Closed implements Sink: it tells the client's node that the subscription has ended, and why.
func (s *subscription) Closed(err error) {
	s.mu.Lock()
	gone := s.ended
	s.ended = true
	s.discardUnsent()
	s.mu.Unlock()
	s.rs.removeSubscription(s.key)
	if !gone {
		s.rs.sendReliably(s.key.from, &netproto.Frame{
			Type: netproto.TypeUnserved, Request: s.key.id, Head: []byte{reason.Number(wire.AnswerSubscription, err)},
		})
	}
}

// pay notes that the client's node has paid n bytes back. It returns true if the channel was waiting for the window.
func (s *subscription) pay(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unpaid = max(0, s.unpaid-n)
	if !s.blocked || s.unpaid >= s.window {
		return false
	}
	s.blocked = false
	return true
}

// handleConsume executes the calls of a client of another node. It runs on the connection's reader and delivers
// nothing: the channel's own goroutine does that.
func (rs *Consumers) handleConsume(key subscriptionKey, p []byte) error {
	rs.mu.Lock()
	s := rs.subs[key]
	rs.mu.Unlock()
	if s == nil {
		return nil
	}
	s.mu.Lock()
	k := s.k
	s.mu.Unlock()
	if k == nil {
		return nil
	}
	var failed []byte
	var seq uint32
	for len(p) > 0 {
		var c wire.Consume
		var err error
		if c, p, err = wire.NextConsume(p); err != nil {
			return err
		}
		switch c.Kind {
		case wire.ConsumeReady:
			seq = c.Seq
			err = nil
			_ = k.Ready(int(c.Count)) // it fails if the channel is closed: then Unserved is on its way
		case wire.ConsumeFinish:
			err = k.FinishSeen(message.ID(c.ID), s.seen)
		case wire.ConsumeRequeue:
			err = k.RequeueSeen(message.ID(c.ID), time.Duration(c.DelayMs)*time.Millisecond, s.seen)
		case wire.ConsumeTouch:
			err = k.TouchSeen(message.ID(c.ID), s.seen)
		case wire.ConsumeStop:
			k.StopDelivery()
		case wire.ConsumeSeen:
			s.seen = c.Serial
		case wire.ConsumeReturn:
			k.ReturnDelivery(message.ID(c.ID), c.Serial)
		case wire.ConsumeCredit:
			if s.pay(int(c.Count)) {
				k.HasRoom() // likewise
			}
		}
		if err != nil {
			failed = wire.AppendFailure(failed, &wire.Failure{
				ID: c.ID, Kind: c.Kind, Reason: reason.Number(wire.AnswerSubscription, err),
			})
		}
	}
	k.Wake()
	if seq != 0 || len(failed) > 0 {
		head := wire.AppendConsumed(make([]byte, 0, 8+len(failed)), &wire.Consumed{Seq: seq, InFlight: uint32(k.InFlight())})
		rs.sendReliably(key.from, &netproto.Frame{
			Type: netproto.TypeConsumed, Request: key.id, Head: append(head, failed...),
		})
	}
	return nil
}
