package history

import (
	"slices"
	"time"
)

// fin is a FIN that was written.
type fin struct {
	Event
	refused bool
}

func (c *checker) deliver(e *Event) {
	c.r.Deliveries++
	ch := c.channelOf(e)
	v := c.values[key{e.From, e.Seq}]
	if v == nil || v.pub.Topic != e.Topic {
		c.r.add(Phantom, "nobody sent it before: %v", e)
		return
	}
	if !ch.first && v.pub.acked() && v.pub.done.At < ch.asked {
		c.r.add(BeforeChannel, "%s was acknowledged at %v, channel %v was asked for at %v: %v",
			v, v.pub.done.At, ch, ch.asked, e)
	}
	c.identity(v, e)
	c.again(v, ch, e)
	c.forward(ch, e)
	v.count(ch)
	if e.Attempts == 1 && e.Conn != 0 {
		c.rising(ch, e)
	}
}

// identity holds that an id names one value and a value has one id, for all time.
func (c *checker) identity(v *value, e *Event) {
	ids := c.ids[e.Topic]
	if ids == nil {
		ids = map[uint64]*value{}
		c.ids[e.Topic] = ids
	}
	if other := ids[e.Message]; other == nil {
		ids[e.Message] = v
	} else if other != v {
		c.r.add(DivergentID, "the id also was %s's: %v", other, e)
	}
	if !v.known {
		v.id, v.known = e.Message, true
	} else if v.id != e.Message {
		c.r.add(Duplicate, "the value also came as %016x: %v", v.id, e)
	}
}

// again judges a delivery after a FIN.
func (c *checker) again(v *value, ch *channel, e *Event) {
	if v.on[ch] > 0 {
		c.r.Repeated++
	}
	f := ch.fins[e.Message]
	if f == nil || f.refused {
		return
	}
	if c.mayBeForgotten(f) {
		c.r.Forgotten++
		return
	}
	c.r.add(Redelivered, "it was confirmed at %v by %s: %v", f.At, f.Client, e)
}

// forward holds that an ordered channel goes on only when a message is done with: nobody gets it any more when somebody
// got a later one.
func (c *checker) forward(ch *channel, e *Event) {
	if !slices.Contains(c.Ordered, ch.name) {
		return
	}
	k := laneKey{ch, Partition(e.Message)}
	if last := c.highest[k]; last != nil && e.Message < last.Message {
		c.r.add(WentBack, "%016x was delivered at %v to %s, before: %v", last.Message, last.At, last.Client, e)
		return
	}
	c.highest[k] = e
}

// mayBeForgotten says whether a FIN could have been lost on its way: its connection ended soon after it, or a fault was
// near.
func (c *checker) mayBeForgotten(f *fin) bool {
	if gone, ok := c.conns[connKey{f.Client, f.Conn}]; ok && gone-f.At < c.SettleTime {
		return true
	}
	for _, fault := range c.faults {
		if f.At > fault.At-c.ConfirmWindow && (fault.heal < 0 || f.At < fault.heal+c.ReturnTime) {
			return true
		}
	}
	return false
}

func (c *checker) fin(e *Event) {
	c.channelOf(e).fins[e.Message] = &fin{Event: *e}
}

func (c *checker) finRefused(e *Event) {
	if f := c.channelOf(e).fins[e.Message]; f != nil && f.Client == e.Client && f.Conn == e.Conn {
		f.refused = true
	}
}

// rising holds that one connection gets a partition's messages in their order, as long as none came before. A
// connection to a node that leads nothing outlives a change of leaders, and may then get what the one before had given
// to others.
func (c *checker) rising(ch *channel, e *Event) {
	k := cursorKey{connKey{e.Client, e.Conn}, ch, Partition(e.Message)}
	if last := c.cursors[k]; last != nil && e.Message <= last.Message && !c.faultBetween(last.At, e.At) {
		c.r.add(Regression, "%016x was delivered before it: %v", last.Message, e)
	}
	c.cursors[k] = e
}

// faultBetween says whether leaders may have changed between two events.
func (c *checker) faultBetween(from, to time.Duration) bool {
	for _, f := range c.faults {
		if f.At < to && (f.heal < 0 || from < f.heal+c.ReturnTime) {
			return true
		}
	}
	return false
}

// losses holds that every channel got what was acknowledged while it existed, and batches whole.
func (c *checker) losses() {
	for _, ch := range c.order {
		if !ch.answered {
			continue
		}
		first, last := c.reach(ch)
		for _, p := range c.pubs {
			if p.Topic != ch.topic || !ch.first && p.At < ch.exists {
				continue
			}
			c.missing(p, ch, first, last)
		}
	}
}

// reach is when the first and the last delivered message of a channel were acknowledged.
func (c *checker) reach(ch *channel) (first, last time.Duration) {
	first = -1
	for _, v := range c.all {
		if v.on[ch] == 0 || !v.pub.acked() {
			continue
		}
		at := v.pub.done.At
		if first < 0 || at < first {
			first = at
		}
		last = max(last, at)
	}
	return first, last
}

func (c *checker) missing(p *publish, ch *channel, first, last time.Duration) {
	got := uint64(0)
	for i := range p.count() {
		if v := c.values[key{p.Client, p.Seq + i}]; v.on[ch] > 0 {
			got++
		}
	}
	switch {
	case got == p.count() || got == 0 && !p.acked():
		return
	case got > 0:
		c.r.add(TornBatch, "channel %v got %d of %d: %v", ch, got, p.count(), p.Event)
		return
	}
	where := "in the middle: that is proof"
	switch at := p.done.At; {
	case first < 0:
		where = "like everything"
	case at < first:
		where = "before all that came"
	case at > last:
		where = "after all that came: perhaps the consumer was slow"
	}
	c.r.add(Lost, "channel %v did not get it, acknowledged at %v, %s: %v", ch, p.done.At, where, p.Event)
}
