package topic

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"

	"penstock/internal/node/errs"
	"penstock/internal/node/fanout"
	"penstock/internal/node/fold"
	"penstock/internal/node/names"
	"penstock/internal/node/partition"
	"penstock/replicate/wire"
)

// This file has a topic's set of channels: looking them up, creating and deleting them. Channel itself, and what can be
// done with one, is in channel.go.

// LookupChannel returns the channel of that name if this node has it. It creates nothing. In a cluster, a node that
// leads no partition of the topic may lack a channel that the leaders have: see ReadChannelNames.
func (t *Topic) LookupChannel(name string) (*Channel, bool) {
	t.local.mu.Lock()
	defer t.local.mu.Unlock()
	c, ok := t.local.channels[name]
	return c, ok
}

// Channels returns the channels that this node has, sorted by name. The slice belongs to the caller.
func (t *Topic) Channels() []*Channel {
	t.local.mu.Lock()
	out := slices.AppendSeq(make([]*Channel, 0, len(t.local.channels)), maps.Values(t.local.channels))
	t.local.mu.Unlock()
	sort.Slice(out, func(i, j int) bool { return out[i].name < out[j].name })
	return out
}

// Channel returns the channel of that name, and creates it if it does not exist. It returns when the creation is on
// stable storage in every partition, so that no failure can make the channel miss a message that is published
// afterwards. Ephemeral channels are not stored. Channel returns ErrChannelName, ErrAutoCreateOff, ErrTooManyChans,
// ErrStateFull, ErrDeleted (the topic was deleted) or ErrClosed. After any other error the channel may exist in some
// partitions; Channel can be called again.
func (t *Topic) Channel(ctx context.Context, name string) (*Channel, error) {
	return t.channelOr(ctx, name, func() (*Channel, error) { return t.CreateChannel(ctx, name) })
}

// ChannelFrom is Channel for a channel that starts at from if it does not exist yet: see CreateChannelFrom.
func (t *Topic) ChannelFrom(ctx context.Context, name string, from wire.SeekTo) (*Channel, error) {
	return t.channelOr(ctx, name, func() (*Channel, error) { return t.CreateChannelFrom(ctx, name, from) })
}

// channelOr returns the channel of that name, or creates it.
func (t *Topic) channelOr(ctx context.Context, name string, create func() (*Channel, error)) (*Channel, error) {
	if c, ok := t.LookupChannel(name); ok {
		return t.committedChannel(ctx, c)
	}
	if !names.ValidChannel(name) {
		return nil, errs.ErrChannelName
	}
	if t.env.options().DisableAutoCreate {
		return nil, errs.ErrAutoCreateOff
	}
	return create()
}

// CreateChannel does what Channel does, even if DisableAutoCreate is set.
func (t *Topic) CreateChannel(ctx context.Context, name string) (*Channel, error) {
	return t.createChannel(ctx, name, origin{})
}

// CreateChannelFrom is CreateChannel for a channel that starts at from: at the oldest message that is kept, behind the
// newest one, at a time, or at an id (in the partitions that the id is not in, where other channels start). A channel
// that exists stays where it is. CreateChannelFrom returns ErrSeek for a count and for an ephemeral channel,
// ErrNoPartition for an id in a partition that the topic does not have, and ErrFromLevel.
func (t *Topic) CreateChannelFrom(ctx context.Context, name string, from wire.SeekTo) (*Channel, error) {
	if err := t.checkStart(name, from); err != nil {
		return nil, err
	}
	return t.createChannel(ctx, name, origin{from: &from})
}

// checkStart returns why a new channel of this name cannot start at from, or nil.
func (t *Topic) checkStart(name string, from wire.SeekTo) error {
	switch from.Kind {
	case wire.SeekBeginning, wire.SeekEnd, wire.SeekTime:
	case wire.SeekID:
		if err := t.checkHas(from.ID); err != nil {
			return err
		}
	default:
		return fmt.Errorf("%w (a new channel starts at the beginning, the end, an id or a time)", errs.ErrSeek)
	}
	switch {
	case names.Ephemeral(name):
		return fmt.Errorf("%w (an ephemeral channel starts at the end)", errs.ErrSeek)
	case !t.mayStartAnywhere():
		return errs.ErrFromLevel
	}
	return nil
}

// mayStartAnywhere says whether all leaders look where a new channel is to start.
func (t *Topic) mayStartAnywhere() bool { return t.env.Cluster == nil || t.env.level() >= fromLevel }

// fromLevel is the feature level of CreateChannelFrom in a cluster: leaders of an older version would not look where
// the channel is to start.
const fromLevel = 3

// createChannel creates a channel that begins as o says, unless it exists.
func (t *Topic) createChannel(ctx context.Context, name string, o origin) (*Channel, error) {
	if !names.ValidChannel(name) {
		return nil, errs.ErrChannelName
	}
	if t.env.Cluster != nil && !names.Ephemeral(name) {
		if err := t.createAtLeaders(ctx, name, o); err != nil {
			return nil, err
		}
	}
	return t.local.create(ctx, name, o)
}

// createAtLeaders creates the channel at the leaders of all partitions, and returns when all of them have committed it.
func (t *Topic) createAtLeaders(ctx context.Context, name string, o origin) error {
	return t.env.Cluster.Operations.OnAllLeaders(ctx, t.View(), wire.Operation{
		Kind: wire.OpCreateChannel, Channel: name, Seek: o.from, Settings: o.settings,
	})
}

// DeleteChannel deletes a channel. Each consumer's Sink.Closed is called with ErrDeleted. When DeleteChannel returns
// nil, the deletion is on stable storage. It returns ErrNoChannel if there is no such channel, as a GoneError if the
// channel was deleted a moment ago. After any other error the deletion may be repeated.
func (t *Topic) DeleteChannel(ctx context.Context, name string) error {
	if t.env.Cluster == nil {
		return t.local.deleteNamed(ctx, name)
	}
	var d fanout.Deletion
	err := t.onLeaders(ctx, wire.Operation{Kind: wire.OpDeleteChannel, Channel: name}, nil, d.Add)
	if err != nil {
		return err
	}
	// This node may have a record of it without leading a partition.
	if err = t.local.deleteNamed(ctx, name); errors.Is(err, errs.ErrNoChannel) {
		err = nil
	}
	return errors.Join(err, d.Err())
}

// ChannelNames returns the sorted names of the topic's channels, as far as this node knows them: those in the logs of
// its copies, and its own channels. Of the latter it omits those that may be out of date, because this node serves no
// partition; ephemeral channels are in no log and are always included. The names may lag behind the leaders. The slice
// belongs to the caller.
func (t *Topic) ChannelNames() []string {
	seen := map[string]bool{}
	serves := t.local.servesAny()
	for _, c := range t.Channels() {
		if serves || c.ephemeral { // otherwise the channel here may only have served clients of other leaders
			seen[c.name] = true
		}
	}
	for _, pt := range t.PartitionList() {
		if !pt.Replica().HasLog() {
			continue
		}
		pt.ReadChannels(func(cur *fold.Cursor) { seen[cur.Name] = true })
	}
	return slices.Sorted(maps.Keys(seen))
}

// ReadChannelNames is ChannelNames if this node has a copy of any partition. Otherwise it asks the leader of partition
// 0, which does not name ephemeral channels, and returns ErrNoLeader if that leader does not answer within
// Options.PublishTimeout.
func (t *Topic) ReadChannelNames(ctx context.Context) ([]string, error) {
	hasCopy := func(pt *partition.Partition) bool { return pt.Replica().HasLog() }
	if slices.ContainsFunc(t.PartitionList(), hasCopy) {
		return t.ChannelNames(), nil
	}
	s, err := t.fetchState(ctx, false)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(s.Channels))
	for i := range s.Channels {
		names = append(names, s.Channels[i].Name)
	}
	return names, nil
}

// A channel's machine and the fold of a leader's log include batches that are in the log but not committed. A failover
// can undo those. So a caller that asks for an existing channel must wait until its creation is committed, as the
// caller that created it did.

// committedChannel returns a channel that this node has, once its creation is committed: another caller may have
// created it a moment ago. If this node leads no partition of the topic, its record of the channel may be out of date,
// and it asks the leaders.
func (t *Topic) committedChannel(ctx context.Context, c *Channel) (*Channel, error) {
	if t.env.Cluster == nil || c.ephemeral {
		return c, nil
	}
	cl := t.env.Cluster
	// Wait only for the partitions that can deliver messages to this client now. A partition without a leader must not
	// keep the client from the others.
	only := func(n uint32) bool { return t.PartitionList()[n].Serves() }
	switch {
	case t.local.servesAny():
		if c.isCommitted() {
			return c, nil
		}
	case t.env.options().DisableAutoCreate:
		return c, nil // the leaders must not create it
	default:
		only = func(n uint32) bool {
			to := t.PartitionList()[n].Target()
			return to != 0 && (to == cl.Self.ID || cl.IsLive(to))
		}
	}
	if err := t.onLeaders(ctx, wire.Operation{Kind: wire.OpCreateChannel, Channel: c.name}, only, nil); err != nil {
		return nil, err
	}
	return t.local.create(ctx, c.name, origin{})
}

// isCommitted says whether the channel's creation is committed in all partitions that this node serves: see
// channel.Channel.CommittedIn.
func (c *Channel) isCommitted() bool {
	for i, pt := range c.t.PartitionList() {
		if pt.Serves() && !c.local.CommittedIn(i) {
			return false
		}
	}
	return true
}

// ChannelElsewhere returns a Channel for operations that the leaders of all partitions execute (settings, lists, seeks,
// pauses). It serves a cluster node that leads no partition of the topic, and so may not have the channel. It creates
// nothing: if no leader has a channel of that name, the operations return ErrNoChannel. The Channel belongs to the
// caller and needs no close. It delivers nothing: to consume, use the result of Topic.Channel.
func (t *Topic) ChannelElsewhere(name string) *Channel { return newChannel(t, name) }

// LacksChannel reports whether it is certain that the topic has no channel of that name. A node of a cluster that has
// none asks the leaders, because it may lead nothing of the topic, and waits for their answers until ctx ends.
func (t *Topic) LacksChannel(ctx context.Context, name string) bool {
	if _, known := t.LookupChannel(name); known {
		return false
	}
	if t.env.Cluster == nil {
		return true
	}
	_, err := t.ChannelElsewhere(name).ReadSettings(ctx)
	return errors.Is(err, errs.ErrNoChannel)
}
