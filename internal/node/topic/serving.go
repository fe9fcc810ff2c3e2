package topic

import (
	"context"
	"errors"
	"maps"
	"slices"

	"penstock/internal/node/errs"
	"penstock/internal/node/inbox"
	"penstock/internal/node/partition"
	"penstock/segment"
)

// syncChannels makes the channels of t have exactly the partitions that this node serves now. It returns at once: a new
// goroutine does so, with Topic.changing held. It is called whenever this node begins or ceases to serve a partition of
// t (partition.Topic.ServingChanged).
func (t *Topic) syncChannels() {
	cl := t.env.Cluster
	cl.Spawn(func() {
		t.env.Host.Lock(&t.changing)
		defer t.changing.Unlock()
		if cl.Ctx.Err() != nil || t.shared.Deleted.Load() {
			return
		}
		t.revokePartitions()
		before := t.adoption.Epochs()
		missing, barren := t.assignPartitions()
		t.Start()
		t.closeLeftoverConsumers()
		t.env.News.Raise()
		if !slices.Equal(before, t.adoption.Epochs()) {
			t.reconcileLater(0, t.Channels()...) // some leaders may have missed a change of a channel's settings
		}
		if len(barren) > 0 {
			cl.Spawn(func() { t.initPartitionsUntilDone(barren) })
		}
		for _, m := range missing {
			cl.Spawn(func() { t.createLater(m) })
		}
	})
}

// revokePartitions takes the partitions that this node no longer serves, or serves in a newer epoch, out of the
// channels. The consumers concerned (channel.Channel.Revoke) are closed with ErrMoved, and connect to the new leaders.
// A channel that keeps no partition is shut and removed; its next consumer makes it again. Only syncChannels calls it,
// with Topic.changing held.
func (t *Topic) revokePartitions() {
	serving := t.servingEpochs()
	stays, any := t.adoption.Revoke(serving, func(i int) bool { return t.hasOtherEpoch(i, serving[i]) })
	if !any {
		return
	}
	kept := map[string]*Channel{}
	for _, c := range t.Channels() {
		if c.local.Revoke(stays) {
			kept[c.name] = c
			continue
		}
		c.local.Shut(errs.ErrMoved)
	}
	t.mu.Lock()
	maps.DeleteFunc(t.channels, func(name string, c *Channel) bool { return kept[name] != c })
	t.mu.Unlock()
}

// servingEpochs returns, by partition, the epoch in which this node serves the partition now; 0: it does not serve it.
func (t *Topic) servingEpochs() []segment.Epoch {
	parts := t.PartitionList()
	epochs := make([]segment.Epoch, len(parts))
	for i, pt := range parts {
		epochs[i] = pt.ServingEpoch()
	}
	return epochs
}

// hasOtherEpoch says whether a channel has partition i from another epoch than epoch. That happens if the channel was
// made while a leadership began and ended, before adoption recorded it.
func (t *Topic) hasOtherEpoch(i int, epoch segment.Epoch) bool {
	return slices.ContainsFunc(t.Channels(), func(c *Channel) bool { return c.local.HasOtherEpoch(i, epoch) })
}

// missingChannel is a channel of this node that the log of pt lacks.
type missingChannel struct {
	pt *partition.Partition
	ch *Channel
}

// assignPartitions gives the channels the partitions that this node has begun to serve since the last call. missing are
// the channels that the logs of these partitions lack. barren are those of these partitions that may still need all of
// the topic's channels, because the partition is new (mayLackChannels). Topic.changing is held.
func (t *Topic) assignPartitions() (missing []missingChannel, barren []*partition.Partition) {
	var fresh []assignedPartition
	parts := t.PartitionList()
	for _, i := range t.adoption.Adopt(t.servingEpochs()) {
		pt := parts[i]
		t.begun(pt)
		names, paused, neverHad := pt.Adopt(func(name string) partition.Subscriber {
			c, ok := t.LookupChannel(name)
			if !ok {
				c = newChannel(t, name)
				t.mu.Lock()
				t.channels[name] = c
				t.mu.Unlock()
			}
			return c.local
		})
		if neverHad && t.mayLackChannels(pt) {
			barren = append(barren, pt)
			continue
		}
		t.paused.Store(paused)
		fresh = append(fresh, assignedPartition{pt, names})
	}
	if len(fresh) == 0 {
		return nil, barren
	}
	for _, c := range t.Channels() {
		if !c.ephemeral && !c.local.HasAny() {
			t.removeChannel(c)
			continue
		}
		for _, f := range fresh {
			if !c.ephemeral && !slices.Contains(f.names, c.name) {
				missing = append(missing, missingChannel{f.pt, c})
			}
		}
		c.local.ApplyPosts()
		c.local.Wake()
	}
	return missing, barren
}

// assignedPartition is a partition that this node has begun to serve, and the channels in its log.
type assignedPartition struct {
	pt    *partition.Partition
	names []string
}

// createLater creates a channel that the log lacks because its creation has not reached all partitions. The request to
// create it may still be on its way to this partition, and only that request says where the channel begins. So
// createLater first waits for PublishTimeout, which bounds such requests. If the log still lacks the channel then, it
// begins where channels begin by default. syncChannels runs it on a goroutine of its own; no lock is held. A crash ends
// the wait, and the next leader begins it anew.
func (t *Topic) createLater(m missingChannel) {
	cl := t.env.Cluster
	if !t.env.Host.Pause(t.env.Options.PublishTimeout, cl.Ctx.Done()) {
		return
	}
	if c, ok := t.LookupChannel(m.ch.name); ok && !c.local.CommittedIn(int(m.pt.Number())) {
		_ = t.createIn(cl.Ctx, m.pt, c, origin{}) // after an error its next user creates it
	}
}

// removeChannel drops a channel that this node knew while it led no partition, and that is in none of the logs that it
// leads now: the channel was deleted meanwhile at its leaders. Its consumers are closed with ErrMoved and subscribe
// again.
func (t *Topic) removeChannel(c *Channel) {
	t.mu.Lock()
	if t.channels[c.name] == c {
		delete(t.channels, c.name)
	}
	t.mu.Unlock()
	c.local.Shut(errs.ErrMoved)
}

// createIn writes channel c into the log of one more partition, and returns when that is committed. It does not hold
// changing while it waits, so leaderships may begin and end meanwhile, and syncChannels may have replaced c by a new
// channel. The new channel has the partition only if the entry was in the log when the channel was made, so createIn
// then calls reassign. So it does if the commit takes too long: nobody waits for it any more, and the entry is in the
// log. It returns ErrDeleted, and writes nothing, if there is no channel of this name any more. It takes changing.
func (t *Topic) createIn(ctx context.Context, pt *partition.Partition, c *Channel, o origin) error {
	w, err := t.appendCreation(ctx, pt, c, o)
	if err == nil {
		err = w.Result(t.env.Host)
	}
	c.local.ApplyPosts()
	c.local.Wake()
	if now, _ := t.LookupChannel(c.name); err == nil && now != c || errors.Is(err, errs.ErrUnknown) {
		t.reassign(int(pt.Number()))
	}
	return err
}

// appendCreation puts the creation of channel c into the inbox of one more partition. It holds changing, so a deletion
// of the channel, which holds it too, is either known here or comes behind the creation in every log.
func (t *Topic) appendCreation(
	ctx context.Context, pt *partition.Partition, c *Channel, o origin,
) (*inbox.Waiter, error) {
	entries, err := c.creation(pt, o)
	if err != nil {
		return nil, err
	}
	t.env.Host.Lock(&t.changing)
	defer t.changing.Unlock()
	if _, ok := t.LookupChannel(c.name); !ok {
		return nil, errs.ErrDeleted
	}
	return pt.AppendControls(ctx, &inbox.Special{
		Controls: entries,
		OnCommit: func() { pt.Follow(c.local, c.name) },
	})
}

// reassign makes syncChannels give partition i once more to the channels that are in its log. It takes changing.
func (t *Topic) reassign(i int) {
	t.env.Host.Lock(&t.changing)
	t.adoption.Again(i)
	t.changing.Unlock()
	t.syncChannels()
}

// HasAssigned says whether the channels on this node have been given any partition that this node serves. It takes
// changing.
func (t *Topic) HasAssigned() bool {
	t.env.Host.Lock(&t.changing)
	defer t.changing.Unlock()
	for i, epoch := range t.servingEpochs() {
		if t.adoption.Epoch(i, epoch) != 0 {
			return true
		}
	}
	return false
}

// servesAny says whether this node's channels may deliver messages of any partition of t.
func (t *Topic) servesAny() bool {
	for _, pt := range t.PartitionList() {
		if pt.Serves() {
			return true
		}
	}
	return false
}

// closeLeftoverConsumers closes the local consumers from Subscribe if this node serves no partition of the topic any
// more: nothing would be delivered to them. Their Sink.Closed gets ErrMoved; clients that subscribe again are served by
// the leaders. Topic.changing is held.
func (t *Topic) closeLeftoverConsumers() {
	if t.servesAny() {
		return
	}
	for _, c := range t.Channels() {
		c.local.CloseFollowing()
	}
}

// dropUnused removes this node's record of a channel and shuts it, if this node serves no partition of the topic and
// the channel has no consumer here. It removes nothing from any log.
func (t *Topic) dropUnused(name string) {
	c, ok := t.LookupChannel(name)
	if !ok || t.servesAny() {
		return
	}
	if c.local.Used() {
		return
	}
	t.mu.Lock()
	if t.channels[name] == c {
		delete(t.channels, name)
	}
	t.mu.Unlock()
	c.local.Shut(errs.ErrDeleted)
}

// CreateHere creates a channel in the partitions that this node leads, and returns when that is committed.
func (t *Topic) CreateHere(ctx context.Context, name string) (*Channel, error) {
	return t.createChannelLocal(ctx, name, origin{})
}
