package delivery

import (
	"slices"

	"penstock/batch"
	"penstock/internal/node/fold"
)

// client is one subscription of a consumer.
type client struct {
	id         ClientID
	ready      int       // RDY: how many messages may be in flight to the client
	flight     entryList // oldest delivery first
	inFlight   int       // messages of flight
	timeoutMs  int64
	sampleRate int // percent, 1..99; 0: the client takes all messages
	tag        uint64
	only       uint32 // the only partition whose messages it wants, plus one; 0: it wants those of all
	holdMs     int64  // how long a delivery may be on its way to the client; 0: deliveries are not held
	stopped    bool   // EvStop: it gets no more deliveries
	blocked    bool   // EvBlocked: its socket is full

	// Neighbours in the ring of clients with credit; nil while the client has none.
	ringPrev, ringNext *client

	messageCount, finishCount, requeueCount uint64
}

// choosy says whether the client takes only some messages: those with its tag, or of one partition.
func (cl *client) choosy() bool { return cl.tag != 0 || cl.only != 0 }

func (c *Channel) subscribe(ev *Event) error {
	if c.clients.byID[ev.Client] != nil {
		panic("BUG: client subscribes twice")
	}
	if c.cfg.MaxConsumers > 0 && len(c.clients.all) >= c.cfg.MaxConsumers {
		return ErrTooManyConsumers
	}
	cl := &client{id: ev.Client, timeoutMs: ev.MsgTimeoutMs, holdMs: ev.HoldMs}
	if cl.timeoutMs <= 0 {
		cl.timeoutMs = DefaultMsgTimeoutMs
	}
	cl.timeoutMs = min(cl.timeoutMs, c.cfg.MaxMsgTimeoutMs)
	if 0 < ev.SampleRate && ev.SampleRate < 100 {
		cl.sampleRate = ev.SampleRate
	}
	cl.tag, cl.only = ev.Tag, ev.Only
	c.clients.add(cl)
	c.special = c.special || cl.choosy()
	c.tags(cl.tag)
	return nil
}

// unsubscribe removes a client and moves its messages in flight to the front of their queues, oldest first, so
// that nobody has to wait for the timeouts of a client that is gone. Messages whose deliveries are held wait for the
// end of their hold first.
func (c *Channel) unsubscribe(ev *Event) {
	id := ev.Client
	cl := c.clients.byID[id]
	if cl == nil {
		return
	}
	cl.stopped = true
	c.clients.refresh(cl)
	for e := cl.flight.last; e != nil; e = cl.flight.last {
		if e.run != 0 {
			c.part(e.id.Partition()).breakRun(e)
			continue
		}
		c.land(e)
		switch {
		case ev.Flag:
			e.heldMs = 0
		case ev.HoldMs > 0 && c.settings.Order != fold.OrderNone:
			e.heldMs = max(e.heldMs, c.soonMs()+ev.HoldMs)
		}
		c.comeAgain(e, true)
	}
	if c.clients.remove(cl); cl.choosy() {
		c.special = c.isSpecial()
	}
	c.tags(cl.tag)
}

// clients are the subscriptions of a channel. They decide who may get one more message, and who is next: those with
// credit are in a ring, and are served in turn. They count the messages in flight, to each and to all together.
type clients struct {
	byID     map[ClientID]*client // for lookups only, because iterating over a map has no fixed order
	all      []*client            // in the order of subscription
	ring     *client              // circular list of clients with credit; points to the next to serve; nil: empty
	choosy   int                  // clients that have a tag, or that want one partition only
	inFlight int                  // messages in flight to all
	limit    int                  // most of them, this node's share of it; 0: no limit, see Channel.limit

	goneMessageCount, goneFinishCount uint64 // of clients that have unsubscribed
}

func (cs *clients) add(cl *client) {
	if cs.byID == nil {
		cs.byID = make(map[ClientID]*client)
	}
	cs.byID[cl.id] = cl
	cs.all = append(cs.all, cl)
	if cl.choosy() {
		cs.choosy++
	}
}

// remove removes a client that has nothing in flight any more.
func (cs *clients) remove(cl *client) {
	if cl.choosy() {
		cs.choosy--
	}
	cs.goneMessageCount += cl.messageCount
	cs.goneFinishCount += cl.finishCount
	delete(cs.byID, cl.id)
	i := slices.Index(cs.all, cl)
	cs.all = slices.Delete(cs.all, i, i+1)
}

// ready handles EvReady.
func (cs *clients) ready(ev *Event, most int) error {
	if ev.Count < 0 || most > 0 && ev.Count > most {
		return ErrReadyOutOfRange
	}
	if cl := cs.byID[ev.Client]; cl != nil && !cl.stopped {
		cl.ready = ev.Count
		cs.refresh(cl)
	}
	return nil
}

// hinder applies EvStop, after which the client gets nothing more, and EvBlocked, which holds its deliveries back while
// its connection takes no output.
func (cs *clients) hinder(ev *Event) {
	cl := cs.byID[ev.Client]
	if cl == nil {
		return
	}
	if ev.Kind == EvStop {
		cl.stopped, cl.ready = true, 0
	} else {
		cl.blocked = ev.Flag
	}
	cs.refresh(cl)
}

// hold sets the hold of the client's later deliveries.
func (cs *clients) hold(ev *Event) {
	if cl := cs.byID[ev.Client]; cl != nil {
		cl.holdMs = ev.HoldMs
	}
}

// begin counts n deliveries to a client that begin now.
func (cs *clients) begin(cl *client, n int) {
	cl.messageCount += uint64(n)
	cl.inFlight += n
	cs.inFlight += n
	cs.refresh(cl)
}

// end counts n deliveries to a client that have ended.
func (cs *clients) end(cl *client, n int) {
	cl.inFlight -= n
	cs.inFlight -= n
	cs.refresh(cl)
}

// refresh adds the client to the ring or removes it, depending on its credit. A client that gains credit is served last
// in the round, so that it overtakes nobody.
func (cs *clients) refresh(cl *client) {
	credit := !cl.stopped && !cl.blocked && cl.inFlight < cl.ready
	if credit == (cl.ringNext != nil) {
		return
	}
	if !credit {
		if cl.ringNext == cl {
			cs.ring = nil
		} else {
			cl.ringPrev.ringNext, cl.ringNext.ringPrev = cl.ringNext, cl.ringPrev
			if cs.ring == cl {
				cs.ring = cl.ringNext
			}
		}
		cl.ringPrev, cl.ringNext = nil, nil
		return
	}
	if cs.ring == nil {
		cs.ring, cl.ringPrev, cl.ringNext = cl, cl, cl
		return
	}
	cl.ringPrev, cl.ringNext = cs.ring.ringPrev, cs.ring
	cl.ringPrev.ringNext, cl.ringNext.ringPrev = cl, cl
}

// served moves a client of the ring to its end: all others are served before it is again.
func (cs *clients) served(cl *client) {
	if cl == cs.ring {
		cs.ring = cl.ringNext
		return
	}
	cl.ringPrev.ringNext, cl.ringNext.ringPrev = cl.ringNext, cl.ringPrev
	cl.ringPrev, cl.ringNext = cs.ring.ringPrev, cs.ring
	cl.ringPrev.ringNext, cl.ringNext.ringPrev = cl, cl
}

// hasCredit says whether both some client and the channel as a whole may have one more message in flight.
func (cs *clients) hasCredit() bool {
	return cs.ring != nil && (cs.limit <= 0 || cs.inFlight < cs.limit)
}

// choose returns the client that gets a message of this tag and partition: the next in the ring with the same tag or,
// if no client with the tag is subscribed, the next without a tag. It returns nil if no such client has credit. The
// ring is not empty.
func (cs *clients) choose(tag uint64, part uint32) *client {
	if cs.choosy == 0 {
		return cs.ring
	}
	var untagged *client
	for cl := cs.ring; ; {
		wants := cl.only == 0 || cl.only-1 == part
		if wants && cl.tag == tag && tag != 0 {
			return cl
		}
		if wants && cl.tag == 0 && untagged == nil {
			untagged = cl
		}
		if cl = cl.ringNext; cl == cs.ring {
			break
		}
	}
	if untagged != nil && tag != 0 && cs.awaited(tag, part) {
		return nil
	}
	return untagged
}

// anyOf says whether some client with credit wants messages of the partition.
func (cs *clients) anyOf(part uint32) bool {
	for cl := cs.ring; ; {
		if cl.only == 0 || cl.only-1 == part {
			return true
		}
		if cl = cl.ringNext; cl == cs.ring {
			return false
		}
	}
}

// awaited says whether a client that takes messages of the tag and the partition is subscribed, with credit or without.
// A stopped client does not count, because it takes no message ever again.
func (cs *clients) awaited(tag uint64, part uint32) bool {
	return slices.ContainsFunc(cs.all, func(cl *client) bool {
		return cl.tag == tag && !cl.stopped && (cl.only == 0 || cl.only-1 == part)
	})
}

// sampledOut says whether the sample of client cl, which is next in the ring, leaves the message out. As in nsqd, the
// message is then lost for the whole channel, and the next client's turn comes. The decision depends only on the id and
// the seed, so that a replay decides the same.
func (cs *clients) sampledOut(cl *client, id batch.ID, seed uint64) bool {
	if cl.sampleRate == 0 || int(mix(uint64(id)^seed)%100) < cl.sampleRate {
		return false
	}
	cs.ring = cl.ringNext
	return true
}
