package remote

import (
	"penstock/internal/node/message"
	"penstock/replicate/wire"
)

// This file handles, at the client's node, the messages that leaders send.

// handleDeliver handles a Deliver frame. The sink copies the messages, so the connection's buffer is free on return.
func (r *Consumer) handleDeliver(l *leg, p []byte) error {
	r.mu.Lock()
	if r.ended || !l.Accepted() {
		r.mu.Unlock()
		return nil
	}
	// A leader that knows no deadlines sends the messages of ordered channels like all others. So drop them if the
	// lease has lapsed.
	if !l.stamped && r.rs.lease.Lapsed(l.begun) {
		r.rs.counts.expired.Add(1)
		r.unsubscribeAt(l) // the next tick subscribes anew
		r.share()
		r.mu.Unlock()
		return nil
	}
	for len(p) > 0 {
		rest, err := wire.NextDelivered(p, &r.wire)
		if err != nil {
			r.mu.Unlock()
			return err
		}
		n := len(p) - len(rest)
		p = rest
		r.deliverOne(l, n, message.Deadline{Origin: l})
	}
	r.endDelivery(l)
	return nil
}

// deliverOne gives the message in r.wire, which took n bytes of the frame, to the sink. mu is held.
func (r *Consumer) deliverOne(l *leg, n int, until message.Deadline) {
	m := &r.wire
	l.Came()
	partition := int(message.ID(m.ID).Partition())
	if partition >= len(r.from) {
		r.from = append(r.from, make([]*leg, partition+1-len(r.from))...)
	}
	r.from[partition] = l
	if r.maxBytes > 0 {
		r.addUnfinished(l, message.ID(m.ID), n)
	} else {
		l.owed += n
	}
	r.delivery = message.Delivery{
		ID: message.ID(m.ID), Timestamp: m.Timestamp, Attempts: m.Attempts, Body: m.Body, Until: until,
	}
	if len(m.Headers) > 0 {
		r.delivery.Headers = m.Headers
	}
	r.stats.MessageCount++
	if !r.sink.Deliver(&r.delivery) {
		r.full = true
	}
}

// legOf returns the leg, and its index, at which the messages of a partition are in flight. A new leader may deliver
// before this node has heard of it, so that the leg of the newest delivery counts more than the leader that this node
// knows. mu is held.
func (r *Consumer) legOf(partition uint32) (l *leg, index int, ok bool) {
	if int(partition) < len(r.from) && r.from[partition] != nil {
		l = r.from[partition]
		if i := r.legs.Credit().Index(&l.CreditLeg); i >= 0 {
			return l, i, true
		}
	}
	return r.legs.At(r.topic.Leader(partition))
}

// endDelivery ends a run of deliverOne. It is called with mu held, and releases it.
func (r *Consumer) endDelivery(l *leg) {
	r.delivery = message.Delivery{}
	r.pay(l, r.leastPaid())
	r.mu.Unlock()
	r.sink.Flush()
}

// pay pays back the bytes owed on the leg, if the sink has room and at least least bytes are owed. mu is held.
func (r *Consumer) pay(l *leg, least int) {
	if r.full || l.owed < max(least, 1) {
		return
	}
	l.payOwed()
	r.flushLeg(l)
}

// payOwed adds an entry that pays the owed bytes back to the entries that are sent next. mu is held.
func (l *leg) payOwed() {
	l.ops = wire.AppendConsume(l.ops, &wire.Consume{Kind: wire.ConsumeCredit, Count: uint32(l.owed)})
	l.owed = 0
}

// handleDeliverHeld handles a DeliverHeld frame. It returns to the leader the messages that arrived too late.
func (r *Consumer) handleDeliverHeld(l *leg, p []byte) error {
	head, p, err := wire.DecodeHeldHead(p)
	if err != nil {
		return err
	}
	until := r.rs.deadline(&head)
	until.Origin = l
	r.mu.Lock()
	if r.ended || !l.Accepted() {
		r.mu.Unlock()
		return nil
	}
	back := false
	for len(p) > 0 {
		h, rest, err := wire.NextHeld(p)
		if err == nil {
			rest, err = wire.NextDelivered(rest, &r.wire)
		}
		if err != nil {
			r.mu.Unlock()
			return err
		}
		n := len(p) - len(rest)
		p = rest
		l.received, until.Serial = h.Serial, h.Serial
		if r.tooLate(&h, until) {
			l.owed += n
			r.returnDelivery(l, message.ID(r.wire.ID), h.Serial)
			back = true
			continue
		}
		r.deliverOne(l, n, until)
	}
	if back {
		r.flushLeg(l)
	}
	r.endDelivery(l)
	return nil
}

// tooLate says whether the message in r.wire must not be handed over. If so, it counts the message. mu is held.
func (r *Consumer) tooLate(h *wire.Held, until message.Deadline) bool {
	n := message.ID(r.wire.ID).Partition()
	switch {
	case int(n) >= r.topic.Partitions() || h.Epoch < r.topic.NewestEpoch(n):
		r.rs.counts.stale.Add(1)
	case until.Passed():
		r.rs.counts.expired.Add(1)
	default:
		return false
	}
	return true
}

// returnDelivery tells the leader that a delivery was not handed over. mu is held.
func (r *Consumer) returnDelivery(l *leg, id message.ID, serial uint64) {
	l.ops = wire.AppendConsume(l.ops, &wire.Consume{Kind: wire.ConsumeReturn, ID: uint64(id), Serial: serial})
	if i := r.legs.Credit().Index(&l.CreditLeg); i >= 0 && r.legs.Credit().Finished(i) {
		r.sendReady(l)
	}
}

// appendSeen tells the leader the newest delivery that the client's next call can refer to. Its entry goes before the
// entry of that call. mu is held.
func (l *leg) appendSeen() {
	if l.received != l.reported {
		l.reported = l.received
		l.ops = wire.AppendConsume(l.ops, &wire.Consume{Kind: wire.ConsumeSeen, Serial: l.received})
	}
}
