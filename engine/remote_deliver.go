package engine

import (
	"time"

	"penstock/replicate/wire"
)

// What a client's node does with messages that leaders send it.

// deliver hands messages over. The sink copies them, so that the connection's buffer is free again at once.
func (r *remoteConsumer) deliver(l *leg, p []byte) error {
	r.mu.Lock()
	if r.ended || !l.active {
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
		r.hand(l, n, Deadline{})
	}
	r.handed(l)
	return nil
}

// hand gives the message that was decoded last, which took n bytes, to the sink; mu is held.
func (r *remoteConsumer) hand(l *leg, n int, until Deadline) {
	m := &r.wire
	if r.bound > 0 {
		r.hold(l, ID(m.ID), n)
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

// handed ends a run of hand, and gives mu back, which is held.
func (r *remoteConsumer) handed(l *leg) {
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

// deliverHeld hands over what is not too late, and gives back the rest.
func (r *remoteConsumer) deliverHeld(l *leg, p []byte) error {
	head, p, err := wire.DecodeHeldHead(p)
	if err != nil {
		return err
	}
	until := Deadline{Clock: r.rs.cn, At: int64(head.Stamp) + int64(head.HoldMs)*int64(time.Millisecond), l: l}
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
		l.came, until.serial = h.Serial, h.Serial
		if r.tooLate(&h, until) {
			l.owed += n
			r.giveBack(l, ID(r.wire.ID), h.Serial)
			back = true
			continue
		}
		r.hand(l, n, until)
	}
	if back {
		r.flushLeg(l)
	}
	r.handed(l)
	return nil
}

// tooLate says that a message must not be handed over, and counts it; mu is held.
func (r *remoteConsumer) tooLate(h *wire.Held, until Deadline) bool {
	parts := r.t.partitions()
	n := int(ID(r.wire.ID).Partition())
	switch {
	case n >= len(parts) || h.Epoch < parts[n].rep.heard():
		r.rs.counts.stale.Add(1)
	case until.Passed():
		r.rs.counts.expired.Add(1)
	default:
		return false
	}
	return true
}

// giveBack says that a message was not handed over; mu is held.
func (r *remoteConsumer) giveBack(l *leg, id ID, serial uint64) {
	l.ops = wire.AppendConsume(l.ops, &wire.Consume{Kind: wire.ConsumeReturn, ID: uint64(id), Serial: serial})
	for i, c := range r.credit.legs {
		if c == &l.creditLeg && r.credit.finished(i) {
			r.tell(l)
		}
	}
}

// sayWhatCame tells the leader which deliveries the client's word can be about, before the word; mu is held.
func (l *leg) sayWhatCame() {
	if l.came != l.told {
		l.told = l.came
		l.ops = wire.AppendConsume(l.ops, &wire.Consume{Kind: wire.ConsumeSeen, Serial: l.came})
	}
}
