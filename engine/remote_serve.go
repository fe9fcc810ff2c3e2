package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"penstock/engine/base"
	"penstock/engine/channel"
	"penstock/engine/meta"
	"penstock/engine/reason"
	"penstock/internal/lock"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
)

// unsentFrame is a Deliver or DeliverHeld frame that waits to be sent.
type unsentFrame struct {
	*putBuffer
	kind netproto.Type
}

// subscriptionKey names a subscription by its client's node and the request id of its frames.
type subscriptionKey struct {
	from replicate.NodeID
	id   uint64
}

// subscription is, at the leader, a consumer whose client is connected to another node. It is the Sink of that
// consumer: the channel calls Deliver with Channel.mu held. The readers of connections call handleConsume.
//
// mu guards what follows it, except seen, which belongs to the connection's reader. It is taken inside Channel.mu;
// remotes.mu may be taken inside it. After a crash of this node the client's node sees the connection end and
// subscribes at the next leader.
type subscription struct {
	rs     *remotes
	key    subscriptionKey
	window int

	mu      lock.Mutex[lock.Subscription]
	k       *channel.Consumer // nil: not attached yet
	ended   bool              // the client's node has unsubscribed, or the channel is closed
	buf     *putBuffer        // the frame that is being filled
	unsent  []unsentFrame
	waiting bool   // a goroutine retries to send unsent
	bufHeld bool   // buf is a DeliverHeld
	seen    uint64 // newest serial that the client had received when it made its call
	unpaid  int    // bytes sent and not given back as credit
	blocked bool   // the window is used up, and Deliver said so to the channel
	frame   netproto.Frame
	body    [1][]byte
}

// handleSubscribe handles a Subscribe frame. What may wait runs on a goroutine; an Unsubscribe can come meanwhile.
func (rs *remotes) handleSubscribe(from replicate.NodeID, id uint64, payload []byte) error {
	if _, err := wire.DecodeSubscribe(payload); err != nil {
		return err
	}
	ask, _ := wire.DecodeSubscribe(bytes.Clone(payload))
	s := &subscription{rs: rs, key: subscriptionKey{from, id}, window: int(min(ask.WindowBytes, remoteWindowBytes))}
	rs.mu.Lock()
	rs.subs[s.key] = s
	rs.mu.Unlock()
	rs.cn.spawn(func() {
		err := s.attach(&ask)
		f := netproto.Frame{Type: netproto.TypeSubscribed, Request: id}
		switch {
		case err == nil:
		case errors.Is(err, ErrNoChannel), errors.Is(err, ErrDeleted), errors.Is(err, ErrTooManyClients):
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

// removeSubscription removes a subscription from the table and returns it; nil: it is not there.
func (rs *remotes) removeSubscription(key subscriptionKey) *subscription {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	s := rs.subs[key]
	delete(rs.subs, key)
	return s
}

// attach makes the consumer. It waits until this node serves partitions of the topic, at most remoteServeTime. No lock
// is held.
func (s *subscription) attach(ask *wire.Subscribe) error {
	cn := s.rs.cn
	t, name := cn.placed(meta.PartitionID{Topic: ask.Topic}).topic, string(ask.Channel)
	if t == nil {
		return ErrNoLeader
	}
	ctx, cancel := cn.e.host.WithTimeout(cn.ctx, remoteServeTime)
	defer cancel()
	if cn.await(ctx, t.hasAssigned) != nil { // this node may have been elected a moment ago
		return ErrNoLeader
	}
	c, ok := t.LookupChannel(name)
	if !ok {
		if !base.Ephemeral(name) || !base.ValidChannelName(name) {
			return ErrNoChannel
		}
		var err error
		if c, err = t.createChannelLocal(ctx, name); err != nil {
			return err
		}
	}
	var label RemoteLabel
	_ = json.Unmarshal(ask.Label, &label) // a label that cannot be decoded is shown as empty
	if n := cn.store.Snapshot().Nodes[s.key.from]; n != nil {
		label.Node = n.Name
	}
	k, err := c.local.Attach(ConsumerOptions{
		MsgTimeout: time.Duration(ask.MsgTimeoutMs) * time.Millisecond, SampleRate: int(ask.SampleRate),
		Label: label, Tag: string(ask.Tag),
	}, s, false)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.k = k
	gone := s.ended
	s.mu.Unlock()
	if gone {
		k.Close()
		return ErrNoLeader
	}
	s.enableHold()
	return nil
}

// hasAssigned says whether the channels on this node serve any partition of t.
func (t *Topic) hasAssigned() bool {
	t.e.host.Lock(&t.changing)
	defer t.changing.Unlock()
	for i, epoch := range t.servingEpochs() {
		if t.adoption.Epoch(i, epoch) != 0 {
			return true
		}
	}
	return false
}

// end closes the consumer. What it had in flight goes to other consumers at once; in an ordered channel, only when the
// delivery can no longer reach the client. clean says that nothing is on its way to the client.
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

// discardUnsent drops the frames that were not sent. mu is held.
func (s *subscription) discardUnsent() {
	if s.buf != nil {
		s.buf.Release()
	}
	for _, b := range s.unsent {
		b.Release()
	}
	s.buf, s.unsent = nil, nil
}

// Deliver implements Sink. It returns false when the window is used up, or the subscription has ended.
func (s *subscription) Deliver(d *Delivery) bool {
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
	if s.buf != nil && (s.bufHeld != held || len(s.buf.bytes)+n > maxDeliverBytes) {
		s.submit()
	}
	if s.buf == nil {
		s.buf = putBuffers.Get().(*putBuffer)
		if s.buf.bytes, s.bufHeld = s.buf.bytes[:0], held; held {
			head := s.heldHead()
			s.buf.bytes = wire.AppendHeldHead(s.buf.bytes, &head)
		}
	}
	if held {
		s.buf.bytes = wire.AppendHeld(s.buf.bytes, &wire.Held{Epoch: d.Epoch, Serial: d.Serial})
	}
	s.buf.bytes = wire.AppendDelivered(s.buf.bytes, &m)
	s.unpaid += n
	s.blocked = s.blocked || s.unpaid >= s.window
	return !s.blocked
}

// Flush implements Sink.
func (s *subscription) Flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.buf != nil && !s.ended {
		s.submit()
	}
}

// submit sends the filled frame. If the connection's queue is full, a goroutine sends it when there is room. mu is
// held.
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
	cn := s.rs.cn
	cn.spawn(func() {
		for done := false; !done; {
			err := cn.net.AwaitRoom(cn.ctx, s.key.from)
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
		s.body[0] = b.bytes
		s.frame = netproto.Frame{Type: b.kind, Request: s.key.id, Body: s.body[:], Owner: b.putBuffer}
		switch err := s.rs.send(s.key.from, &s.frame); {
		case errors.Is(err, netproto.ErrQueueFull):
			s.unsent = slices.Delete(s.unsent, 0, i)
			return false
		case err != nil: // the connection has ended, and with it the subscription
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

// pay notes that the client's node has given n bytes of credit back. It returns true if the channel was waiting for
// that.
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

// handleConsume executes the calls of a client of another node. It runs on the connection's reader and does not
// deliver: the channel's own goroutine does.
func (rs *remotes) handleConsume(key subscriptionKey, p []byte) error {
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
			err = k.FinishSeen(ID(c.ID), s.seen)
		case wire.ConsumeRequeue:
			err = k.RequeueSeen(ID(c.ID), time.Duration(c.DelayMs)*time.Millisecond, s.seen)
		case wire.ConsumeTouch:
			err = k.TouchSeen(ID(c.ID), s.seen)
		case wire.ConsumeStop:
			k.StopDelivery()
		case wire.ConsumeSeen:
			s.seen = c.Serial
		case wire.ConsumeReturn:
			k.ReturnDelivery(ID(c.ID), c.Serial)
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

// closeLeftoverConsumers closes the consumers that were attached here because this node led a partition of the topic,
// once it leads none: nothing would be delivered to them. Clients that subscribe now are served by the leaders.
func (t *Topic) closeLeftoverConsumers() {
	if t.servesAny() {
		return
	}
	for _, c := range t.Channels() {
		c.local.CloseFollowing()
	}
}
