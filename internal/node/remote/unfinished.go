package remote

import (
	"slices"
	"time"

	"penstock/internal/node/message"
	"penstock/replicate/wire"
)

// Some clients bound the bytes of their unfinished messages (ConsumerOptions.MaxInFlightBytes). For such a client, the
// client's node pays the bytes of a message back to the leader only when the message is finished, requeued or timed
// out, not already when the sink has taken it. So a leader never sends more than the client may have. Leaders do not
// report timeouts: the client's node forgets a message when the client's message timeout has passed.

// unfinishedMessage is a message that such a client has not finished yet.
type unfinishedMessage struct {
	l     *leg
	bytes int   // as the leader counts them
	since int64 // when it was delivered or touched last, by Lease.Now
}

// windowBytes returns how many unpaid bytes each leader may have sent, if there are this many leaders.
func (r *Consumer) windowBytes(leaders int) uint32 {
	if r.maxBytes == 0 {
		return windowBytes
	}
	return uint32(max(1, min(r.maxBytes/int64(max(1, leaders)), windowBytes)))
}

// leastPaid returns the smallest number of owed bytes that is worth a frame of its own.
func (r *Consumer) leastPaid() int {
	if r.maxBytes > 0 {
		return 1
	}
	return windowBytes / 4
}

// addUnfinished records a message that is being delivered. mu is held.
func (r *Consumer) addUnfinished(l *leg, id message.ID, bytes int) {
	r.removeUnfinished(id) // it may be delivered again
	r.unfinished[id] = unfinishedMessage{l, bytes, r.rs.lease.Now()}
}

// updateUnfinished applies the client's Finish, Requeue or Touch. mu is held.
func (r *Consumer) updateUnfinished(what *wire.Consume) {
	id := message.ID(what.ID)
	if what.Kind != wire.ConsumeTouch {
		r.removeUnfinished(id)
	} else if h, ok := r.unfinished[id]; ok {
		h.since = r.rs.lease.Now()
		r.unfinished[id] = h
	}
}

// removeUnfinished forgets a message, and pays its bytes back to its leader. mu is held.
func (r *Consumer) removeUnfinished(id message.ID) {
	h, ok := r.unfinished[id]
	if !ok {
		return
	}
	delete(r.unfinished, id)
	if h.l.owed += h.bytes; !r.full {
		h.l.payOwed()
	}
}

// expireUnfinished forgets the messages that have timed out, in the order of their ids, because a simulation must
// repeat the frames that pay for them. mu is held.
func (r *Consumer) expireUnfinished() {
	now := r.rs.lease.Now()
	var late []message.ID
	for id, h := range r.unfinished {
		if now-h.since > int64(r.ask.MsgTimeoutMs)*int64(time.Millisecond) {
			late = append(late, id)
		}
	}
	slices.Sort(late)
	for _, id := range late {
		r.removeUnfinished(id)
	}
}

// forgetUnfinished forgets the messages of a leg that is removed. mu is held.
func (r *Consumer) forgetUnfinished(l *leg) {
	for id, h := range r.unfinished {
		if h.l == l {
			delete(r.unfinished, id)
		}
	}
}
