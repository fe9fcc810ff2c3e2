package node

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node/channel"
	"penstock/internal/node/clock"
	"penstock/internal/node/message"
	"penstock/internal/node/names"
	"penstock/internal/node/remote"
	"penstock/segment"
)

// This file implements remote.Above: the channels of this node that clients of other nodes subscribe to.

var (
	_ remote.Lease = (*clock.Lease)(nil)
	_ remote.Above = (*clusterNode)(nil)
)

// Find implements remote.Above.
func (cn *clusterNode) Find(id segment.Identity) (remote.Topic, remote.Partition) {
	at := cn.placed(id)
	if at.Partition == nil {
		return nil, nil
	}
	return topicView{at.topic}, at.Partition
}

// Attach implements remote.Above.
func (cn *clusterNode) Attach(
	topic uuid.UUID, channel string, o message.ConsumerOptions, s message.Sink,
) (remote.Served, error) {
	t := cn.placed(meta.PartitionID{Topic: topic}).topic
	if t == nil {
		return nil, ErrNoLeader
	}
	ctx, cancel := cn.e.host.WithTimeout(cn.Ctx, remote.ServeTime)
	defer cancel()
	if cn.Await(ctx, t.hasAssigned) != nil { // this node may have been elected a moment ago
		return nil, ErrNoLeader
	}
	c, ok := t.LookupChannel(channel)
	if !ok {
		if !names.Ephemeral(channel) || !names.ValidChannel(channel) {
			return nil, ErrNoChannel
		}
		var err error
		if c, err = t.createChannelLocal(ctx, channel, origin{}); err != nil {
			return nil, err
		}
	}
	k, err := c.local.Attach(o, s, false)
	if err != nil {
		return nil, err
	}
	return k, nil
}

// subscribe subscribes at the leaders of all partitions, over frames to this node itself where it is one of them. That
// this node's part of the channel was shut because its leaderships moved does not matter.
func (cn *clusterNode) subscribe(
	ctx context.Context, c *Channel, o ConsumerOptions, s Sink,
) (servedConsumer, error) {
	return cn.remotes.Subscribe(ctx, remote.Client{
		Topic: topicView{c.t}, Channel: c.name, Text: channel.LabelText(o.Label),
		Closed: func() error {
			if err := c.local.Err(); !errors.Is(err, ErrMoved) {
				return err
			}
			return nil
		},
	}, o, s)
}

// RemoteStats counts deliveries of ordered channels that a node received from a leader and did not hand over to its
// client, and fences that ended late.
type RemoteStats = remote.Stats

// RemoteStats returns these counters of this node, since Open; zeros on a single node.
func (e *Engine) RemoteStats() RemoteStats {
	return e.members.remoteStats()
}

func (cn *clusterNode) remoteStats() RemoteStats { return cn.remotes.Stats() }

// hasAssigned says whether the channels on this node have been given any partition that this node serves. It takes
// changing.
func (t *Topic) hasAssigned() bool {
	t.e.host.Lock(&t.changing)
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
	for _, pt := range t.partitions() {
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
	c.local.Shut(ErrDeleted)
}
