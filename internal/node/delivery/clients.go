package delivery

// channelClient is one subscription of a consumer.
type channelClient struct {
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
	ringPrev, ringNext *channelClient

	messageCount, finishCount, requeueCount uint64
}

// choosy says whether the client takes only some messages: those with its tag, or of one partition.
func (cl *channelClient) choosy() bool { return cl.tag != 0 || cl.only != 0 }

func (c *Channel) subscribe(ev *Event) error {
	if c.clients[ev.Client] != nil {
		panic("BUG: client subscribes twice")
	}
	if c.cfg.MaxConsumers > 0 && len(c.order) >= c.cfg.MaxConsumers {
		return ErrTooManyConsumers
	}
	cl := &channelClient{id: ev.Client, timeoutMs: ev.MsgTimeoutMs, holdMs: ev.HoldMs}
	if cl.timeoutMs <= 0 {
		cl.timeoutMs = DefaultMsgTimeoutMs
	}
	cl.timeoutMs = min(cl.timeoutMs, c.cfg.MaxMsgTimeoutMs)
	if 0 < ev.SampleRate && ev.SampleRate < 100 {
		cl.sampleRate = ev.SampleRate
	}
	if cl.tag, cl.only = ev.Tag, ev.Only; cl.choosy() {
		c.choosy++
		c.special = true
	}
	c.clients[ev.Client] = cl
	c.order = append(c.order, cl)
	c.tags(cl.tag)
	return nil
}

// unsubscribe removes a client and moves its messages in flight to the front of their queues, oldest first, so
// that nobody has to wait for the timeouts of a client that is gone. Messages whose deliveries are held wait for the
// end of their hold first.
func (c *Channel) unsubscribe(ev *Event) {
	id := ev.Client
	cl := c.clients[id]
	if cl == nil {
		return
	}
	cl.stopped = true
	c.refresh(cl)
	for e := cl.flight.last; e != nil; e = cl.flight.last {
		if e.run != 0 {
			c.breakRun(e)
			continue
		}
		c.land(e)
		if ev.Flag {
			e.heldMs = 0
		}
		c.comeAgain(e, true)
	}
	if cl.choosy() {
		c.choosy--
		c.special = c.isSpecial()
	}
	c.goneMessageCount += cl.messageCount
	c.goneFinishCount += cl.finishCount
	delete(c.clients, id)
	for i, other := range c.order {
		if other == cl {
			c.order = append(c.order[:i], c.order[i+1:]...)
			break
		}
	}
	c.tags(cl.tag)
}

func (c *Channel) ready(ev *Event) error {
	if ev.Count < 0 || c.cfg.MaxReadyCount > 0 && ev.Count > c.cfg.MaxReadyCount {
		return ErrReadyOutOfRange
	}
	if cl := c.clients[ev.Client]; cl != nil && !cl.stopped {
		cl.ready = ev.Count
		c.refresh(cl)
	}
	return nil
}

// hinder handles EvStop and EvBlocked.
func (c *Channel) hinder(ev *Event) {
	cl := c.clients[ev.Client]
	if cl == nil {
		return
	}
	if ev.Kind == EvStop {
		cl.stopped, cl.ready = true, 0
	} else {
		cl.blocked = ev.Flag
	}
	c.refresh(cl)
}

// refresh adds the client to the ring or removes it, depending on its credit. A client that gains credit is served last
// in the round, so that it overtakes nobody.
func (c *Channel) refresh(cl *channelClient) {
	credit := !cl.stopped && !cl.blocked && cl.inFlight < cl.ready
	if credit == (cl.ringNext != nil) {
		return
	}
	if !credit {
		if cl.ringNext == cl {
			c.ring = nil
		} else {
			cl.ringPrev.ringNext, cl.ringNext.ringPrev = cl.ringNext, cl.ringPrev
			if c.ring == cl {
				c.ring = cl.ringNext
			}
		}
		cl.ringPrev, cl.ringNext = nil, nil
		return
	}
	if c.ring == nil {
		c.ring, cl.ringPrev, cl.ringNext = cl, cl, cl
		return
	}
	cl.ringPrev, cl.ringNext = c.ring.ringPrev, c.ring
	cl.ringPrev.ringNext, cl.ringNext.ringPrev = cl, cl
}

// hasCredit says whether both some client and the channel as a whole may have one more message in flight.
func (c *Channel) hasCredit() bool {
	return c.ring != nil && (c.maxInFlight <= 0 || c.inFlight < c.maxInFlight)
}
