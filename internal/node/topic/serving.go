package topic

import (
	"context"
	"errors"
	"maps"
	"slices"

	"penstock/internal/node/errs"
	"penstock/internal/node/events"
	"penstock/internal/node/inbox"
	"penstock/internal/node/partition"
	"penstock/segment"
)

// syncChannels makes the channels of t have exactly the partitions that this node serves now. It returns at once: a new
// goroutine does so, with Local.changing held. It is called whenever this node begins or ceases to serve a partition of
// t (partition.Topic.ServingChanged).
func (l *Local) syncChannels() {
	cl := l.t.env.Cluster
	cl.Spawn(func() {
		l.t.env.Host.Lock(&l.changing)
		defer l.changing.Unlock()
		if cl.Ctx.Err() != nil || l.t.shared.Deleted.Load() {
			return
		}
		l.revokePartitions()
		before := l.adoption.Epochs()
		missing, barren := l.assignPartitions()
		l.Start()
		l.closeLeftoverConsumers()
		l.t.env.News.Raise()
		if !slices.Equal(before, l.adoption.Epochs()) {
			l.reconcileLater(0, l.t.Channels()...) // some leaders may have missed a change of a channel's settings
		}
		if len(barren) > 0 {
			cl.Spawn(func() { l.initPartitionsUntilDone(barren) })
		}
		for _, m := range missing {
			cl.Spawn(func() { l.createLater(m) })
		}
	})
}

// revokePartitions takes the partitions that this node no longer serves, or serves in a newer epoch, out of the
// channels. The consumers concerned (channel.Channel.Revoke) are closed with ErrMoved, and connect to the new leaders.
// A channel that keeps no partition is shut and removed; its next consumer makes it again. Only syncChannels calls it,
// with Local.changing held.
func (l *Local) revokePartitions() {
	serving := l.servingEpochs()
	stays, any := l.adoption.Revoke(serving, func(i int) bool { return l.hasOtherEpoch(i, serving[i]) })
	if !any {
		return
	}
	kept := map[string]*Channel{}
	for _, c := range l.t.Channels() {
		if c.local.Revoke(stays) {
			kept[c.name] = c
			continue
		}
		c.local.Shut(errs.ErrMoved)
	}
	l.mu.Lock()
	maps.DeleteFunc(l.channels, func(name string, c *Channel) bool { return kept[name] != c })
	l.mu.Unlock()
}

// servingEpochs returns, by partition, the epoch in which this node serves the partition now; 0: it does not serve it.
func (l *Local) servingEpochs() []segment.Epoch {
	parts := l.t.PartitionList()
	epochs := make([]segment.Epoch, len(parts))
	for i, pt := range parts {
		epochs[i] = pt.ServingEpoch()
	}
	return epochs
}

// hasOtherEpoch says whether a channel has partition i from another epoch than epoch. That happens if the channel was
// made while a leadership began and ended, before adoption recorded it.
func (l *Local) hasOtherEpoch(i int, epoch segment.Epoch) bool {
	return slices.ContainsFunc(l.t.Channels(), func(c *Channel) bool { return c.local.HasOtherEpoch(i, epoch) })
}

// missingChannel is a channel of this node that the log of pt lacks.
type missingChannel struct {
	pt *partition.Partition
	ch *Channel
}

// assignPartitions gives the channels the partitions that this node has begun to serve since the last call. missing are
// the channels that the logs of these partitions lack. barren are those of these partitions that may still need all of
// the topic's channels, because the partition is new (mayLackChannels). Local.changing is held.
func (l *Local) assignPartitions() (missing []missingChannel, barren []*partition.Partition) {
	var fresh []assignedPartition
	parts := l.t.PartitionList()
	for _, i := range l.adoption.Adopt(l.servingEpochs()) {
		pt := parts[i]
		l.begun(pt)
		names, paused, neverHad := pt.Adopt(func(name string) events.Subscriber {
			c, ok := l.t.LookupChannel(name)
			if !ok {
				c = newChannel(l.t, name)
				l.mu.Lock()
				l.channels[name] = c
				l.mu.Unlock()
			}
			return c.local
		})
		if neverHad && l.mayLackChannels(pt) {
			barren = append(barren, pt)
			continue
		}
		l.t.paused.Store(paused)
		fresh = append(fresh, assignedPartition{pt, names})
	}
	if len(fresh) == 0 {
		return nil, barren
	}
	for _, c := range l.t.Channels() {
		if !c.ephemeral && !c.local.HasAny() {
			l.removeChannel(c)
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
func (l *Local) createLater(m missingChannel) {
	cl := l.t.env.Cluster
	if !l.t.env.Host.Pause(l.t.env.options().PublishTimeout, cl.Ctx.Done()) {
		return
	}
	if c, ok := l.t.LookupChannel(m.ch.name); ok && !c.local.CommittedIn(int(m.pt.Number())) {
		_ = l.createIn(cl.Ctx, m.pt, c, origin{}) // after an error its next user creates it
	}
}

// removeChannel drops a channel that this node knew while it led no partition, and that is in none of the logs that it
// leads now: the channel was deleted meanwhile at its leaders. Its consumers are closed with ErrMoved and subscribe
// again.
func (l *Local) removeChannel(c *Channel) {
	l.mu.Lock()
	if l.channels[c.name] == c {
		delete(l.channels, c.name)
	}
	l.mu.Unlock()
	c.local.Shut(errs.ErrMoved)
}

// createIn writes channel c into the log of one more partition, and returns when that is committed. It does not hold
// changing while it waits, so leaderships may begin and end meanwhile, and syncChannels may have replaced c by a new
// channel. The new channel has the partition only if the entry was in the log when the channel was made, so createIn
// then calls reassign. So it does if the commit takes too long: nobody waits for it any more, and the entry is in the
// log. It returns ErrDeleted, and writes nothing, if there is no channel of this name any more. It takes changing.
func (l *Local) createIn(ctx context.Context, pt *partition.Partition, c *Channel, o origin) error {
	w, err := l.appendCreation(ctx, pt, c, o)
	if err == nil {
		err = w.Result(l.t.env.Host)
	}
	c.local.ApplyPosts()
	c.local.Wake()
	if now, _ := l.t.LookupChannel(c.name); err == nil && now != c || errors.Is(err, errs.ErrUnknown) {
		l.reassign(int(pt.Number()))
	}
	return err
}

// appendCreation puts the creation of channel c into the inbox of one more partition. It holds changing, so a deletion
// of the channel, which holds it too, is either known here or comes behind the creation in every log.
func (l *Local) appendCreation(
	ctx context.Context, pt *partition.Partition, c *Channel, o origin,
) (*inbox.Waiter, error) {
	entries, err := c.creation(pt, o)
	if err != nil {
		return nil, err
	}
	l.t.env.Host.Lock(&l.changing)
	defer l.changing.Unlock()
	if _, ok := l.t.LookupChannel(c.name); !ok {
		return nil, errs.ErrDeleted
	}
	return pt.AppendControls(ctx, &inbox.Special{
		Controls: entries,
		OnCommit: func() { pt.Follow(c.local, c.name) },
	})
}

// reassign makes syncChannels give partition i once more to the channels that are in its log. It takes changing.
func (l *Local) reassign(i int) {
	l.t.env.Host.Lock(&l.changing)
	l.adoption.Again(i)
	l.changing.Unlock()
	l.syncChannels()
}

// HasAssigned says whether the channels on this node have been given any partition that this node serves. It takes
// changing.
func (l *Local) HasAssigned() bool {
	l.t.env.Host.Lock(&l.changing)
	defer l.changing.Unlock()
	for i, epoch := range l.servingEpochs() {
		if l.adoption.Epoch(i, epoch) != 0 {
			return true
		}
	}
	return false
}

// servesAny says whether this node's channels may deliver messages of any partition of t.
func (l *Local) servesAny() bool {
	return slices.ContainsFunc(l.t.PartitionList(), (*partition.Partition).Serves)
}

// closeLeftoverConsumers closes the local consumers from Subscribe if this node serves no partition of the topic any
// more: nothing would be delivered to them. Their Sink.Closed gets ErrMoved; clients that subscribe again are served by
// the leaders. Local.changing is held.
func (l *Local) closeLeftoverConsumers() {
	if l.servesAny() {
		return
	}
	for _, c := range l.t.Channels() {
		c.local.CloseFollowing()
	}
}

// dropUnused removes this node's record of a channel and shuts it, if this node serves no partition of the topic and
// the channel has no consumer here. It removes nothing from any log.
func (l *Local) dropUnused(name string) {
	c, ok := l.t.LookupChannel(name)
	if !ok || l.servesAny() {
		return
	}
	if c.local.Used() {
		return
	}
	l.mu.Lock()
	if l.channels[name] == c {
		delete(l.channels, name)
	}
	l.mu.Unlock()
	c.local.Shut(errs.ErrDeleted)
}

// Create creates a channel in the partitions that this node leads, and returns when that is committed.
func (l *Local) Create(ctx context.Context, name string) (*Channel, error) {
	return l.create(ctx, name, origin{})
}
