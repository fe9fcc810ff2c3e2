package engine

import (
	"time"

	"penstock/replicate/wire"
)

// A client whose unfinished bytes are bounded pays a leader when a message is finished, requeued or timed out, not when the sink has taken it: so a
// leader sends no more than the client may have. The leader does not tell of timeouts; each message is forgotten when the client's is over.

// unfinishedMessage is a message that a bounded client has.
type unfinishedMessage struct {
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

// addUnfinished counts a message that is delivered; mu is held.
func (r *remoteConsumer) addUnfinished(l *leg, id ID, bytes int) {
	r.removeUnfinished(id) // it may have come before
	r.unfinished[id] = unfinishedMessage{l, bytes, r.rs.cn.now()}
}

// updateUnfinished takes what the client says of a message; mu is held.
func (r *remoteConsumer) updateUnfinished(what *wire.Consume) {
	id := ID(what.ID)
	if what.Kind != wire.ConsumeTouch {
		r.removeUnfinished(id)
	} else if h, ok := r.unfinished[id]; ok {
		h.since = r.rs.cn.now()
		r.unfinished[id] = h
	}
}

// removeUnfinished owes a message's leader its bytes; mu is held.
func (r *remoteConsumer) removeUnfinished(id ID) {
	h, ok := r.unfinished[id]
	if !ok {
		return
	}
	delete(r.unfinished, id)
	if h.l.owed += h.bytes; !r.full {
		h.l.payOwed()
	}
}

// expireUnfinished releases what has timed out; mu is held.
func (r *remoteConsumer) expireUnfinished() {
	now := r.rs.cn.now()
	for id, h := range r.unfinished {
		if now-h.since > int64(r.ask.MsgTimeoutMs)*int64(time.Millisecond) {
			r.removeUnfinished(id)
		}
	}
}

// forgetUnfinished forgets what came from a leader that is none any more; mu is held.
func (r *remoteConsumer) forgetUnfinished(l *leg) {
	for id, h := range r.unfinished {
		if h.l == l {
			delete(r.unfinished, id)
		}
	}
}
