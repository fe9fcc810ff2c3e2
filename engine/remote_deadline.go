package engine

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"penstock/engine/core"
	"penstock/netproto"
	"penstock/replicate"
	"penstock/replicate/wire"
)

// In an ordered channel no node may hand over a message after any node has handed over the next one. A delivery through another node can be late by any time: it lies
// in a socket, or that node stands still. So it carries until when it may be handed over, and the leader gives the message to nobody else before (core: hold).
//
//	client's node                                       leader
//	Stamp: my time is s            ────────────────►    comes at r
//	handed over only before s+h    ◄──── DeliverHeld ── s, h; the message goes elsewhere only after r+h, or when it came back
//
// The clocks are each node's own, and only spans are compared: s is before r, so s+h at the client's node is before r+h at the leader, however long the frame
// was on its way and whenever the client's node looks at it. h is never beyond the leader's lease.
//
// A new leader does not wait for a node whose lease the store saw end (fence). So nothing is handed over without a lease
// of the client's node, nor with one that began after s: that node may have stood still, found its lease over and got a
// new one before it read the frame (lapsed, held).
const (
	// remoteHoldTime is the longest that a delivery of an ordered channel may be on its way through another node, and so the longest that a message waits
	// for one that was lost with its connection.
	remoteHoldTime = 2 * time.Second
	// remoteHoldDrift is what two clocks may differ by over remoteHoldTime.
	remoteHoldDrift = remoteHoldTime / 16
	// heldLevel is the feature level from which deliveries are held.
	heldLevel = 2
)

// holdMs is how long the leader's machine holds a delivery.
const holdMs = int64((remoteHoldTime + remoteHoldDrift) / time.Millisecond)

// Deadline is until when a Sink may hand a delivery to its client. The zero value never passes.
type Deadline struct {
	Clock DeadlineClock
	At    int64

	l      *leg
	serial uint64
}

// DeadlineClock says whether a Deadline is over. It is safe for concurrent use and does not block.
type DeadlineClock interface{ Over(at int64) bool }

// Passed says that the delivery must not reach the client any more. A Sink asks in the moment in which it writes to the client.
func (d *Deadline) Passed() bool { return d.Clock != nil && d.Clock.Over(d.At) }

// IsZero says that the delivery may be handed over at any time.
func (d *Deadline) IsZero() bool { return d.Clock == nil }

// Over implements DeadlineClock: at is by now(), and without a lease nothing is handed over.
func (cn *clusterNode) Over(at int64) bool { return cn.now() >= at || !cn.leased() }

// lapsed says that this node has no lease, or had none at some time after since, which is by now(): the store may have
// seen its lease end, and leaders do not wait for what was on its way to it then.
func (cn *clusterNode) lapsed(since int64) bool { return !cn.leased() || since < cn.leaseBegan.Load() }

// deadline is until when a delivery that begins with head may be handed over. It is never beyond the lease of now: a
// later one may follow a gap in which this node does not ask.
func (cn *clusterNode) deadline(head *wire.HeldHead) Deadline {
	lease := cn.lease.Load()
	at := int64(head.Stamp) + int64(head.HoldMs)*int64(time.Millisecond)
	if cn.lapsed(int64(head.Stamp)) {
		at = 0
	}
	return Deadline{Clock: cn, At: min(at, lease)}
}

// RemoteStats count what happened to deliveries of ordered channels through this node, since it started.
type RemoteStats struct {
	Expired uint64 // came or waited for too long, and were given back to their leaders
	Stale   uint64 // of a leader that was followed by another, and dropped
	// LateFences are beginnings of this node's leaderships that waited for as long as a delivery may be on its way, because a node did not answer.
	LateFences uint64
}

type remoteCounts struct{ expired, stale, fencesLate atomic.Uint64 }

// RemoteStats are this node's; zero on a single node.
func (e *Engine) RemoteStats() RemoteStats {
	if e.cluster == nil {
		return RemoteStats{}
	}
	c := &e.cluster.remotes.counts
	return RemoteStats{Expired: c.expired.Load(), Stale: c.stale.Load(), LateFences: c.fencesLate.Load()}
}

// sendStamps tells leaders what time it is here.
func (rs *remotes) sendStamps() {
	if rs.cn.e.Level() < heldLevel {
		return
	}
	rs.mu.Lock()
	rs.stampTo = rs.stampTo[:0]
	for _, l := range rs.legs {
		if !slices.Contains(rs.stampTo, l.node) {
			rs.stampTo = append(rs.stampTo, l.node)
		}
	}
	rs.mu.Unlock()
	slices.Sort(rs.stampTo)
	for _, node := range rs.stampTo {
		rs.sendStamp(node)
	}
}

// sendStamp may fail: the next one comes in a tick.
func (rs *remotes) sendStamp(node replicate.NodeID) {
	f := netproto.Frame{Type: netproto.TypeStamp, Head: wire.AppendStamp(nil, uint64(rs.cn.now()))}
	_ = rs.send(node, &f)
}

// handleStamp takes a node's time. The first one of a connection says that the node knows of deadlines: what it has subscribed before is held from now on.
func (rs *remotes) handleStamp(from replicate.NodeID, p []byte) error {
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

// stamp is a node's last time, if one came on this connection.
func (rs *remotes) stamp(of replicate.NodeID) (uint64, bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	ns, ok := rs.stamps[of]
	return ns, ok
}

// enableHold lets the channel hold deliveries to the client if its node knows of deadlines. It comes before the first of them: the client's node grants nothing
// before it was answered.
func (s *subscription) enableHold() {
	if _, ok := s.rs.stamp(s.key.from); !ok {
		return
	}
	s.mu.Lock()
	k := s.k
	s.mu.Unlock()
	if k != nil {
		_ = k.do(core.Event{Kind: core.EvHold, HoldMs: holdMs}) // of a channel that is closed: Unserved is on its way
	}
}

// heldHead is what a DeliverHeld that is begun now begins with.
func (s *subscription) heldHead() wire.HeldHead {
	cn := s.rs.cn
	ns, _ := s.rs.stamp(s.key.from) // none: it comes back at once
	left := min(time.Duration(cn.lease.Load()-cn.now()), remoteHoldTime)
	return wire.HeldHead{Stamp: ns, HoldMs: uint32(max(0, left.Milliseconds()))}
}

// HeldSink is a Sink that may keep a delivery for a while before its client gets it. It drops what it still has when its Until has passed.
type HeldSink interface {
	Sink
	// Drained says that nothing with an Until waits for the client.
	Drained() bool
	// Withdraw drops what waits for the client of a message. It returns false if a part of it went out already and the rest may follow.
	Withdraw(id ID) bool
	// Dropped appends the deliveries that were dropped since the last call, by Withdraw or because Until had passed.
	Dropped(dst []HeldDelivery) []HeldDelivery
}

// HeldDelivery is what a HeldSink keeps of a delivery.
type HeldDelivery struct {
	ID    ID
	Until Deadline
}

// returnDropped gives back what the sink dropped; mu is held.
func (r *remoteConsumer) returnDropped() {
	s, ok := r.sink.(HeldSink)
	if !ok {
		return
	}
	r.dropped = s.Dropped(r.dropped[:0])
	for _, d := range r.dropped {
		r.removeUnfinished(d.ID)
		if slices.Contains(r.legs, d.Until.l) {
			r.rs.counts.expired.Add(1)
			r.returnDelivery(d.Until.l, d.ID, d.Until.serial)
		}
	}
	clear(r.dropped)
}

// drained says that nothing that may be handed over until some time waits for the client.
func (r *remoteConsumer) drained() bool {
	s, ok := r.sink.(HeldSink)
	return !ok || s.Drained()
}

// withdraw takes back a newer delivery of a message that the client speaks of and did not get yet. It returns false if that is too late. mu is held.
func (r *remoteConsumer) withdraw(id ID) bool {
	s, ok := r.sink.(HeldSink)
	return !ok || s.Withdraw(id)
}
