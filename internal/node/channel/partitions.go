package channel

import (
	"slices"

	"github.com/google/uuid"

	"penstock/internal/node/clock"
	"penstock/internal/node/delivery"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/segment"
)

// HasPartition says whether the machine has the partition with this index. It takes mu.
func (c *Channel) HasPartition(i int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.applyPostsLocked()
	return i < len(c.cursors) && c.cursors[i].assigned
}

// CommittedIn says whether the channel has the partition, and the whole log is committed that existed when the channel
// was found in it. The last entry of that log may be the channel's creation. It takes mu.
func (c *Channel) CommittedIn(i int) bool {
	if !c.HasPartition(i) {
		return false
	}
	c.mu.Lock()
	pt, behind := c.cursors[i].part, c.cursors[i].foundEnd
	c.mu.Unlock()
	return pt.CommittedMark() >= behind
}

// Revoke removes partitions from a channel because this node no longer leads them. stays says by index which partitions
// it still leads. The channel keeps its state of those: above all, an ordered channel must not forget deliveries that
// another node may still hand to its client. A consumer that reads only one of the partitions that stay notices
// nothing. All other consumers are told ErrMoved, so that they find the new leader; their messages in flight go to
// other consumers.
//
// If no partition stays, or the channel is ephemeral, Revoke changes nothing and returns false; the caller then shuts
// the channel. Only one goroutine at a time may call it.
func (c *Channel) Revoke(stays []bool) bool {
	here := func(index int) bool { return index < len(stays) && stays[index] }
	c.mu.Lock()
	c.applyPostsLocked()
	keeps := func(k *Consumer) bool {
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
		c.topic.Unwatch(c, i)
		if cur.assigned {
			c.ev = delivery.Event{Kind: delivery.EvRemovePartition, Part: cur.number}
			c.step()
		}
		cur.put.revoked.Store(true)
		c.syncs.fail(cur.put, errs.ErrMoved)
		cur.ahead.drop(c.node)
		*cur = c.newCursor(cur.part) // controls in flight still belong to the old control put
	}
	var ended []*Consumer
	for _, id := range c.clientIDs() {
		if k := c.consumers[id]; !keeps(k) {
			c.unsubscribeLocked(k)
			ended = append(ended, k)
		}
	}
	c.share()
	c.mu.Unlock()
	for _, k := range ended {
		k.sink.Closed(errs.ErrMoved)
	}
	c.Wake()
	return true
}

// unsubscribeLocked unsubscribes a consumer. mu is held.
func (c *Channel) unsubscribeLocked(k *Consumer) {
	delete(c.consumers, k.id)
	if k.runs != nil {
		c.runSinks--
	}
	if len(c.consumers) == 0 {
		c.dropAhead()
	}
	permitted := c.node.leavers.add(k, c.node.Clock.NowNs())
	c.ev = delivery.Event{
		Kind: delivery.EvUnsubscribe, Client: k.id, Flag: k.clean, HoldMs: clock.CeilMs(permitted),
	}
	c.step()
}

// sampleSeed is the same at every leader of a partition and after every restart, so a message that a sample leaves out
// at one leader is not delivered by another.
func sampleSeed(topic uuid.UUID, channel string) uint64 {
	return fold.HashKey(append(topic[:], channel...))
}

// HasOtherEpoch says whether the machine has the partition with this index, and got it in another epoch. It takes mu.
func (c *Channel) HasOtherEpoch(i int, epoch segment.Epoch) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.applyPostsLocked()
	return i < len(c.cursors) && c.cursors[i].assigned && c.cursors[i].epoch != epoch
}

// HasAny says whether the machine has any partition. It takes mu.
func (c *Channel) HasAny() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.applyPostsLocked()
	return slices.ContainsFunc(c.cursors, func(cur cursor) bool { return cur.assigned })
}
