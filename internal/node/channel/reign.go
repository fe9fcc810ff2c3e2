package channel

import (
	"sync/atomic"

	"penstock/internal/node/message"
	"penstock/segment"
)

// A client of this node may not read what it got: then deliveries wait in its sink. In an ordered channel, the sink
// must not hand over one that waits when another client may have the next message: because another node has begun to
// lead, or because the delivery's time is over, or its consumer has ended. So such a delivery has an Until, which
// passes with its time, with its consumer, and with this node's reign over the partition.

// reign is the time in which this node serves a partition in one epoch. Any goroutine may use it.
type reign struct {
	lease Lease
	part  Partition
	epoch segment.Epoch
}

// handing is the message.DeadlineClock of a consumer's deliveries under one reign. Its times are those of Lease.Now.
type handing struct {
	*reign
	most  int64        // how long a delivery may wait
	ended *atomic.Bool // the consumer has
}

// Over says whether a delivery that was made at this time must not be handed over any more.
func (h *handing) Over(at int64) bool {
	return h.ended.Load() || h.lease.Now()-at >= h.most || h.lease.Lapsed(at) || !h.part.ServesIn(h.epoch)
}

// limit sets the Until of a delivery of an ordered channel whose sink may hand it over later. Channel.mu is held.
func (k *Consumer) limit(d *message.Delivery, r *reign) {
	n := int(d.ID.Partition())
	if n >= len(k.handings) {
		k.handings = append(k.handings, make([]*handing, n+1-len(k.handings))...)
	}
	h := k.handings[n]
	if h == nil || h.reign != r {
		// The machine's time began somewhat before At, and it counts in milliseconds.
		h = &handing{r, int64(k.timeout - k.timeout/8), &k.permits.over}
		k.handings[n] = h
	}
	d.Until = message.Deadline{Clock: h, At: r.lease.Now(), Serial: d.Number}
	k.held.Store(true)
}

// takeBack gives the messages to others that the sink has dropped, if they are in flight here: they waited for too
// long, or this node had no lease for a moment.
func (k *Consumer) takeBack() {
	for _, d := range k.holds.Dropped(nil) {
		_ = k.RequeueDelivery(d.ID, d.Until.Serial, 0) // an error: it is not in flight here any more
	}
}
