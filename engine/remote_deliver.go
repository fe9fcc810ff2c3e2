package engine

import (
	"penstock/replicate/wire"
)

// What a client's node does with messages that leaders send it.

// handleDeliver hands messages over. The sink copies them, so that the connection's buffer is free again at once.
func (r *remoteConsumer) handleDeliver(l *leg, p []byte) error {
	r.mu.Lock()
	if r.ended || !l.active {
		r.mu.Unlock()
		return nil
	}
	// A leader that knows nothing of deadlines sends those of an ordered channel in the same way as all others.
	if !l.stamped && r.rs.cn.lapsed(l.begun) {
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
		r.deliverOne(l, n, Deadline{})
	}
	r.endDelivery(l)
	return nil
}

// deliverOne gives the message that was decoded last, which took n bytes, to the sink; mu is held.
func (r *remoteConsumer) deliverOne(l *leg, n int, until Deadline) {
	m := &r.wire
	if r.bound > 0 {
		r.addUnfinished(l, ID(m.ID), n)
	} else {
		l.owed += n
	}
	r.delivery = Delivery{ID: ID(m.ID), Timestamp: m.Timestamp, Attempts: m.Attempts, Body: m.Body, Until: until}
	if len(m.Headers) > 0 {
		r.delivery.Headers = m.Headers
	}
	r.stats.MessageCount++
	if !r.sink.Deliver(&r.delivery) {
		r.full = true
	}
}

// endDelivery ends a run of hand, and gives mu back, which is held.
func (r *remoteConsumer) endDelivery(l *leg) {
	r.delivery = Delivery{}
	r.pay(l, r.leastPaid())
	r.mu.Unlock()
	r.sink.Flush()
}

// pay gives bytes back if the sink has room and they are at least some; mu is held.
func (r *remoteConsumer) pay(l *leg, least int) {
	if r.full || l.owed < max(least, 1) {
		return
	}
	l.payOwed()
	r.flushLeg(l)
}

// payOwed gives bytes back with what is sent next.
func (l *leg) payOwed() {
	l.ops = wire.AppendConsume(l.ops, &wire.Consume{Kind: wire.ConsumeCredit, Count: uint32(l.owed)})
	l.owed = 0
}

// handleDeliverHeld hands over what is not too late, and gives back the rest.
func (r *remoteConsumer) handleDeliverHeld(l *leg, p []byte) error {
	head, p, err := wire.DecodeHeldHead(p)
	if err != nil {
		return err
	}
	until := r.rs.cn.deadline(&head)
	until.l = l
	r.mu.Lock()
	if r.ended || !l.active {
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
		l.received, until.serial = h.Serial, h.Serial
		if r.tooLate(&h, until) {
			l.owed += n
			r.returnDelivery(l, ID(r.wire.ID), h.Serial)
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

// tooLate says that a message must not be handed over, and counts it; mu is held.
func (r *remoteConsumer) tooLate(h *wire.Held, until Deadline) bool {
	parts := r.t.partitions()
	n := int(ID(r.wire.ID).Partition())
	switch {
	case n >= len(parts) || h.Epoch < parts[n].rep.newestEpoch():
		r.rs.counts.stale.Add(1)
	case until.Passed():
		r.rs.counts.expired.Add(1)
	default:
		return false
	}
	return true
}

// returnDelivery says that a message was not handed over; mu is held.
func (r *remoteConsumer) returnDelivery(l *leg, id ID, serial uint64) {
	l.ops = wire.AppendConsume(l.ops, &wire.Consume{Kind: wire.ConsumeReturn, ID: uint64(id), Serial: serial})
	for i, c := range r.credit.legs {
		if c == &l.creditLeg && r.credit.finished(i) {
			r.sendReady(l)
		}
	}
}

// appendSeen tells the leader which deliveries the client's word can be about, before the word; mu is held.
func (l *leg) appendSeen() {
	if l.received != l.reported {
		l.reported = l.received
		l.ops = wire.AppendConsume(l.ops, &wire.Consume{Kind: wire.ConsumeSeen, Serial: l.received})
	}
}
