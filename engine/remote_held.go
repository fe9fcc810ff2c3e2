package engine

import (
	"time"

	"penstock/replicate/wire"
)

// A client whose unfinished bytes are bounded pays a leader when a message is finished, requeued or timed out, not when the sink has taken it: so a
// leader sends no more than the client may have. The leader does not tell of timeouts; each message is forgotten when the client's is over.

// holding is a message that a bounded client has.
type holding struct {
	l     *leg
	bytes int   // as the leader counts
	since int64 // delivered or touched last
}

// windowBytes is how much a leader may send before it is paid, if there are so many leaders.
func (r *remoteConsumer) windowBytes(leaders int) uint32 {
	if r.bound == 0 {
		return remoteWindowBytes
	}
	return uint32(max(1, min(r.bound/int64(max(1, leaders)), remoteWindowBytes)))
}

// leastPaid is what is worth a frame of its own.
func (r *remoteConsumer) leastPaid() int {
	if r.bound > 0 {
		return 1
	}
	return remoteWindowBytes / 4
}

// hold counts a message that is delivered; mu is held.
func (r *remoteConsumer) hold(l *leg, id ID, bytes int) {
	r.release(id) // it may have come before
	r.held[id] = holding{l, bytes, r.rs.cn.now()}
}

// heldSaid takes what the client says of a message; mu is held.
func (r *remoteConsumer) heldSaid(what *wire.Consume) {
	id := ID(what.ID)
	if what.Kind != wire.ConsumeTouch {
		r.release(id)
	} else if h, ok := r.held[id]; ok {
		h.since = r.rs.cn.now()
		r.held[id] = h
	}
}

// release owes a message's leader its bytes; mu is held.
func (r *remoteConsumer) release(id ID) {
	h, ok := r.held[id]
	if !ok {
		return
	}
	delete(r.held, id)
	if h.l.owed += h.bytes; !r.full {
		h.l.payOwed()
	}
}

// expireHeld releases what has timed out; mu is held.
func (r *remoteConsumer) expireHeld() {
	now := r.rs.cn.now()
	for id, h := range r.held {
		if now-h.since > int64(r.ask.MsgTimeoutMs)*int64(time.Millisecond) {
			r.release(id)
		}
	}
}

// letGo forgets what came from a leader that is none any more; mu is held.
func (r *remoteConsumer) letGo(l *leg) {
	for id, h := range r.held {
		if h.l == l {
			delete(r.held, id)
		}
	}
}
