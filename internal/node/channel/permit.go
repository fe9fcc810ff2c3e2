package channel

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"penstock/internal/lock"
	"penstock/internal/node/message"
)

// A native client takes deliveries in advance, and begins to handle them later. In an ordered channel, it must not
// begin one after another client has begun the next one. So it begins only while it has a permit of its leader. A
// permit is for all deliveries of a consumer; it lasts message.HoldTime at most, and never longer than the leader's
// lease.
//
//   - When a consumer ends and its client does not say that it begins nothing any more, its messages in flight wait
//     until its last permit is over (delivery: EvUnsubscribe with HoldMs).
//   - When another node begins to lead the partition, its fence waits until the clients have dropped what they have not
//     begun (Channel.Recall), or until their permits are over.
//   - When this node stands still, its lease ends, and with it all permits, before another node leads.
//
// The client measures a delivery's timeout from before it was sent, so it does not begin what timed out here.

// permits are what a consumer's client was permitted. Any goroutine may use them. A crash forgets them: the client sees
// the connection end, and drops what it has not begun.
type permits struct {
	given atomic.Int64 // when the newest one was given, by the engine's clock; 0: none was
	over  atomic.Bool  // the consumer has ended: no more are given, and nothing is handed over (handing)
}

// leaver is a consumer that has ended, whose client may begin what it got until then, by the engine's clock.
type leaver struct {
	k     *Consumer
	until int64
}

// leavers has the leavers of all channels of a node. They outlive their channel: one that keeps no partition here is
// removed, and the next leader's fence still asks. Those whose time is over go with the next call. A crash forgets
// them, as it ends their connections.
type leavers struct {
	mu   lock.Mutex[lock.Leavers]
	list []leaver
}

// add notes that a consumer has ended, and returns for how long, in ns, its client may begin what it got. Channel.mu is
// held.
func (v *leavers) add(k *Consumer, now int64) (permitted int64) {
	permitted = k.permits.end(now)
	if k.clean || permitted == 0 {
		return 0
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.forget(now)
	v.list = append(v.list, leaver{k, now + permitted})
	return permitted
}

// left notes that the client of k begins nothing any more.
func (v *leavers) left(k *Consumer) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.list = slices.DeleteFunc(v.list, func(l leaver) bool { return l.k == k })
}

// forget drops the leavers whose time is over. mu is held.
func (v *leavers) forget(now int64) {
	v.list = slices.DeleteFunc(v.list, func(l leaver) bool { return now >= l.until })
}

// MayBegin says whether the client of some consumer of the topic that has ended may still begin what it got. Any
// goroutine may call it.
func (n *Shared) MayBegin(topic uuid.UUID) bool {
	v := &n.leavers
	v.mu.Lock()
	defer v.mu.Unlock()
	v.forget(n.Clock.NowNs())
	return slices.ContainsFunc(v.list, func(l leaver) bool { return l.k.ch.topic.ID() == topic })
}

// Permit gives the consumer's client a permit, and returns how long it lasts; 0: none is given. The sink must pass it
// on at once.
func (k *Consumer) Permit() time.Duration {
	// In this order: the process may stand still between any two lines, for longer than its lease.
	n := k.ch.node
	left := min(n.LeaseLeft(), message.HoldTime)
	k.permits.given.Store(n.Clock.NowNs())
	if left <= 0 || k.permits.over.Load() { // after the Store: either end sees the permit, or it is not given
		return 0
	}
	return left
}

// end ends the permits, and returns for how long, in ns, the client may still begin what it got.
func (p *permits) end(now int64) int64 {
	p.over.Store(true)
	given := p.given.Load()
	if given == 0 {
		return 0
	}
	return max(0, given+int64(message.HoldTime+message.HoldDrift)-now)
}

// Left says that the client of a consumer that has ended begins nothing of it any more.
func (k *Consumer) Left() { k.ch.node.leavers.left(k) }

// Recall makes the clients that have permits drop the deliveries so far of a partition that they have not begun. It
// does not wait for them: it returns true once no client can begin one any more. The caller asks again until then. This
// node must not deliver the partition's messages any more, or not yet. Recall takes mu.
func (c *Channel) Recall(partition uint32) bool {
	var sinks []message.PermitSink
	c.mu.Lock()
	for _, id := range c.clientIDs() {
		if s, ok := c.consumers[id].sink.(message.PermitSink); ok {
			sinks = append(sinks, s)
		}
	}
	c.mu.Unlock()
	none := !c.node.MayBegin(c.topic.ID()) // after the consumers were listed: each is in one of the two
	for _, s := range sinks {
		none = s.Recall(partition) && none
	}
	return none
}
