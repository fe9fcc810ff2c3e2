package remote

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"penstock/internal/node/message"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
)

// In an ordered channel, no node may hand over a message after any node has handed over the next one. A delivery
// through another node can be late by any amount of time: it may lie in a socket, or that node may be suspended. So
// each delivery carries a time until which it may be handed over, and the leader gives the message to no other consumer
// before that time (core: EvHold).
//
//	client's node                                       leader
//	Stamp: my time is s            ────────────────►    arrives at r
//	hands over only before s+h     ◄──── DeliverHeld ── s, h; others get it only after r+h, or once returned
//
// Each node reads only its own clock, and only durations are compared. s happens before r, so s+h at the client's node
// comes before r+h at the leader, however long the frame travels and whenever the client's node reads it. h never
// extends beyond the end of the leader's lease.
//
// A new leader does not wait for a node whose lease has ended according to the store (see fencing). So the client's
// node hands nothing over while it has no lease, or if its lease began after s: the node may have stood still, lost its
// lease and got a new one before it read the frame (Lease.Lapsed).
const (
	holdTime  = message.HoldTime
	holdDrift = message.HoldDrift
	// HeldLevel is the feature level from which deliveries of ordered channels carry a deadline.
	HeldLevel = 2
)

// HoldMs is how long the leader's channel machine withholds a delivered message from all other consumers.
const HoldMs = int64((holdTime + holdDrift) / time.Millisecond)

// deadline returns the time until which a delivery with this head may be handed over. That time is never after the end
// of the current lease, because a gap that this node does not notice may precede the next lease.
func (rs *Consumers) deadline(head *wire.HeldHead) message.Deadline {
	until := rs.lease.Until()
	at := int64(head.Stamp) + int64(head.HoldMs)*int64(time.Millisecond)
	if rs.lease.Lapsed(int64(head.Stamp)) {
		at = 0
	}
	return message.Deadline{Clock: rs.lease, At: min(at, until)}
}

// Stats counts deliveries of ordered channels through this node that were not handed over, since the node started.
type Stats struct {
	Expired uint64 // arrived too late or waited too long, and were returned to their leaders
	Stale   uint64 // came from a leader that has a successor, and were returned
	// LateFences counts leaderships of this node whose ordered channels had to wait for the longest time that a
	// delivery may be on its way, because some node did not answer the fence.
	LateFences uint64
}

type counts struct{ expired, stale, fencesLate atomic.Uint64 }

// Stats returns the counters of this node.
func (rs *Consumers) Stats() Stats {
	c := &rs.counts
	return Stats{Expired: c.expired.Load(), Stale: c.stale.Load(), LateFences: c.fencesLate.Load()}
}

// sendStamps sends this node's time to the leaders to which it has legs. Only Tick calls it.
func (rs *Consumers) sendStamps() {
	if rs.n.Level() < HeldLevel {
		return
	}
	rs.mu.Lock()
	rs.stampTo = rs.stampTo[:0]
	for _, l := range rs.legs {
		if !slices.Contains(rs.stampTo, l.Node) {
			rs.stampTo = append(rs.stampTo, l.Node)
		}
	}
	rs.mu.Unlock()
	slices.Sort(rs.stampTo)
	for _, node := range rs.stampTo {
		rs.sendStamp(node)
	}
}

// sendStamp sends this node's time to one node. It ignores errors: the next tick sends another stamp.
func (rs *Consumers) sendStamp(node replicate.NodeID) {
	f := netproto.Frame{Type: netproto.TypeStamp, Head: wire.AppendStamp(nil, uint64(rs.lease.Now()))}
	_ = rs.send(node, &f)
}

// handleStamp stores a node's time. The first stamp on a connection says that the node understands deadlines. From then
// on, the deliveries of that node's subscriptions are held.
func (rs *Consumers) handleStamp(from replicate.NodeID, p []byte) error {
	ns, err := wire.DecodeStamp(p)
	if err != nil {
		return err
	}
	rs.mu.Lock()
	_, known := rs.stamps[from]
	rs.stamps[from] = ns
	var subs []*subscription
	if !known {
		for k, s := range rs.subs {
			if k.from == from {
				subs = append(subs, s)
			}
		}
	}
	rs.mu.Unlock()
	slices.SortFunc(subs, func(a, b *subscription) int { return cmp.Compare(a.key.id, b.key.id) })
	for _, s := range subs {
		s.enableHold()
	}
	return nil
}

// stamp returns the last time that a node sent on its current connection. ok is false if the node has sent none.
func (rs *Consumers) stamp(of replicate.NodeID) (uint64, bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	ns, ok := rs.stamps[of]
	return ns, ok
}

// enableHold makes the channel hold deliveries to the client, if the client's node understands deadlines. It runs
// before the first delivery, because the client's node sends no RDY before its Subscribe is answered.
func (s *subscription) enableHold() {
	if _, ok := s.rs.stamp(s.key.from); !ok {
		return
	}
	s.mu.Lock()
	k := s.k
	s.mu.Unlock()
	if k != nil {
		k.Hold(HoldMs)
	}
}

// heldHead returns the head of a DeliverHeld frame that begins now.
func (s *subscription) heldHead() wire.HeldHead {
	ns, _ := s.rs.stamp(s.key.from) // without a stamp, the client's node returns the delivery at once
	left := min(time.Duration(s.rs.lease.Until()-s.rs.lease.Now()), holdTime)
	return wire.HeldHead{Stamp: ns, HoldMs: uint32(max(0, left.Milliseconds()))}
}

// returnDropped returns to their leaders the deliveries that the sink dropped. mu is held.
func (r *Consumer) returnDropped() {
	s, ok := r.sink.(message.HeldSink)
	if !ok {
		return
	}
	r.dropped = s.Dropped(r.dropped[:0])
	for _, d := range r.dropped {
		r.removeUnfinished(d.ID)
		if l, _ := d.Until.Origin.(*leg); r.legs.Has(l) {
			r.rs.counts.expired.Add(1)
			r.returnDelivery(l, d.ID, d.Until.Serial)
		}
	}
	clear(r.dropped)
}

// drained says whether the sink holds no queued delivery that has a deadline.
func (r *Consumer) drained() bool {
	s, ok := r.sink.(message.HeldSink)
	return !ok || s.Drained()
}

// withdraw drops the queued delivery of a message when the client calls Finish, Requeue or Touch for the message: the
// client can only mean an earlier delivery. It returns false if the client already has part of the delivery. mu is
// held.
func (r *Consumer) withdraw(id message.ID) bool {
	s, ok := r.sink.(message.HeldSink)
	return !ok || s.Withdraw(id)
}
