package engine

import "penstock/engine/core"

// concerns says whether an event is about the channel as a whole, or about a partition that the channel still has here.
// mu is held.
func (c *Channel) concerns(ev *core.Event) bool {
	number, one := partOf(ev)
	return !one || int(number) < len(c.cursors) && c.cursors[number].assigned
}

// partOf returns the partition that an event is about. If one is false, the event is about the channel as a whole.
func partOf(ev *core.Event) (number uint32, one bool) {
	switch ev.Kind {
	case core.EvReset:
		return ev.Part, true
	case core.EvDrop:
		return ev.ID.Partition(), true
	}
	return 0, false
}

// sampleSeed is the same at every leader of a partition and after every restart, so a message that a sample leaves out
// at one leader is not delivered by another.
func (t *Topic) sampleSeed(channel string) uint64 {
	return core.HashKey(append(t.uuid[:], channel...))
}

// revoke takes partitions out of a channel because this node no longer leads them. stays says by index which partitions
// it still leads. The channel keeps its state of those: above all, an ordered channel must not forget deliveries that
// another node may still hand to its client. A consumer of only one partition, one that stays, notices nothing. All
// other consumers are told ErrMoved, so that they find the new leader; their messages in flight go to other consumers.
//
// If no partition stays, or the channel is ephemeral, revoke changes nothing and returns false; the caller then shuts
// the channel. revokePartitions calls it. Topic.changing is held.
func (c *Channel) revoke(stays []bool) bool {
	here := func(index int) bool { return index < len(stays) && stays[index] }
	c.mu.Lock()
	c.applyPostsLocked()
	keeps := func(k *localConsumer) bool {
		return k.only != nil && here(int(*k.only)) && int(*k.only) < len(c.cursors) && c.cursors[*k.only].assigned
	}
	keep := false
	for i := range c.cursors {
		keep = keep || here(i) && c.cursors[i].assigned
	}
	if c.closed != nil || c.ephemeral || !keep {
		c.mu.Unlock()
		return false
	}
	for i := range c.cursors {
		cur := &c.cursors[i]
		if here(i) {
			continue
		}
		c.t.partitions()[i].unwatch(c)
		if cur.assigned {
			c.ev = core.Event{Kind: core.EvRemovePartition, Part: cur.number}
			c.step()
		}
		cur.put.revoked.Store(true)
		*cur = c.newCursor(cur.part) // controls in flight belong to the old cursor
	}
	var ended []*localConsumer
	for _, id := range c.clientIDs() {
		if k := c.consumers[id]; !keeps(k) {
			c.unsubscribeLocked(k)
			ended = append(ended, k)
		}
	}
	c.share()
	c.mu.Unlock()
	for _, k := range ended {
		k.sink.Closed(ErrMoved)
	}
	c.Wake()
	return true
}

// unsubscribeLocked unsubscribes a consumer. mu is held.
func (c *Channel) unsubscribeLocked(k *localConsumer) {
	delete(c.consumers, k.id)
	c.ev = core.Event{Kind: core.EvUnsubscribe, Client: k.id, Flag: k.clean}
	c.step()
}
