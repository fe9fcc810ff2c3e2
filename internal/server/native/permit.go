package native

import (
	"math"
	"time"

	"penstock/internal/node"
	"penstock/internal/node/channel"
	"penstock/internal/node/message"
	"penstock/internal/server/native/wire"
	"penstock/netproto"
)

// This file has the leader's side of permits (wire.Permit, and package channel, whose rules they are).

var _ message.PermitSink = (*packer)(nil)

// permits are what a subscription needs for its client's permits. packer.mu guards them.
type permits struct {
	newest uint64    // stamp of the client; 0: it knows no permits
	at     time.Time // when it came

	// By partition, numbers of deliveries: the newest one, the newest one that the client was asked to begin no more, and
	// the newest one for which it has said so. They have no elements before the first message of an ordered channel.
	parts []partRecall
}

type partRecall struct{ newest, asked, done uint64 }

func (p *permits) stamp(stamp uint64, now time.Time) {
	if stamp != 0 {
		p.newest, p.at = stamp, now
	}
}

// covers notes a delivery, and says whether it goes behind a permit.
func (p *permits) covers(d *node.Delivery) bool {
	if !d.Ordered || p.newest == 0 {
		return false
	}
	n := int(d.ID.Partition())
	if n >= len(p.parts) {
		p.parts = append(p.parts, make([]partRecall, n+1-len(p.parts))...)
	}
	p.parts[n].newest = d.Number
	return true
}

// recall returns the number up to which the client is to be asked to begin no delivery of the partition, if it was not
// asked. done: it begins none any more.
func (p *permits) recall(partition uint32) (ask uint64, done bool) {
	if int(partition) >= len(p.parts) {
		return 0, true
	}
	r := &p.parts[partition]
	if r.asked < r.newest {
		r.asked = r.newest
		return r.asked, false
	}
	return 0, r.done >= r.newest
}

// recalled notes the client's answer.
func (p *permits) recalled(m *wire.Recall) {
	if int(m.Partition) < len(p.parts) {
		r := &p.parts[m.Partition]
		r.done = max(r.done, min(m.Number, r.asked))
	}
}

// start begins the payload of an empty pack.
func (p *pack) start(permitted bool) {
	p.head, p.buf = 0, p.buf[:0]
	if permitted {
		p.head = wire.PermitBytes
		p.buf = append(p.buf, make([]byte, wire.PermitBytes)...)
	}
	p.buf = wire.BeginDeliver(p.buf, p.first)
}

func (k *packer) stamped(stamp uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.permits.stamp(stamp, time.Now())
}

// permit returns a permit that begins now.
func (k *packer) permit() *wire.Permit {
	k.mu.Lock()
	stamp, age := k.permits.newest, time.Since(k.permits.at).Milliseconds()
	k.mu.Unlock()
	// After the stamp was read: the process may stand still in between, and a stamp that comes later must not meet what a
	// lease had left before.
	within := k.u.consumer.Permit()
	return &wire.Permit{
		Stamp: stamp, AgeMs: uint32(min(age, math.MaxUint32)), WithinMs: uint32(within.Milliseconds()),
	}
}

// sendPermit answers a client's stamp. The client must still be allowed to have messages.
func (k *packer) sendPermit() {
	k.sending.Lock()
	defer k.sending.Unlock()
	if !k.u.s.isCurrent() {
		return // it asks again
	}
	p := wire.BeginDeliver(wire.Append(nil, k.permit()), 0)
	wire.EndDeliver(p[wire.PermitBytes:], 0)
	_ = k.u.s.post(&netproto.Frame{Type: wire.TypeDeliverOrdered, Request: k.u.request, Head: p})
}

// Recall implements message.PermitSink.
func (k *packer) Recall(partition uint32) bool {
	k.mu.Lock()
	ask, done := k.permits.recall(partition)
	k.mu.Unlock()
	if ask != 0 {
		m := wire.Recall{Partition: partition, Number: ask}
		_ = k.u.s.post(&netproto.Frame{Type: wire.TypeRecall, Request: k.u.request, Head: wire.Append(nil, &m)})
	}
	return done
}

func (k *packer) recalled(m *wire.Recall) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.permits.recalled(m)
}

// maxLeaving bounds the subscriptions of a connection that have ended and whose clients have not said that they begin
// nothing of them any more. What is forgotten counts as begun until its permits are over.
const maxLeaving = 256

// remember keeps a subscription that this node has ended until its client says that it begins nothing of it any more.
func (s *session) remember(u *subscription) {
	u.packer.mu.Lock()
	permitted := len(u.packer.permits.parts) > 0
	u.packer.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if permitted && len(s.leaving) < maxLeaving {
		if s.leaving == nil {
			s.leaving = make(map[uint64]*channel.Consumer)
		}
		s.leaving[u.request] = u.consumer
	}
}

// left is called when the client says so.
func (s *session) left(request uint64) {
	s.mu.Lock()
	k := s.leaving[request]
	delete(s.leaving, request)
	s.mu.Unlock()
	if k != nil {
		s.srv.workers.Go(k.Left)
	}
}
