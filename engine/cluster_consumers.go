package engine

import (
	"github.com/google/uuid"

	"penstock/engine/base"
	"penstock/engine/meta"
	"penstock/engine/remote"
	"penstock/segment"
)

// What engine/remote needs of the cluster node: the channels that clients of other nodes subscribe to.

var (
	_ remote.Lease = (*base.Lease)(nil)
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
	topic uuid.UUID, channel string, o base.ConsumerOptions, s base.Sink,
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
		if !base.Ephemeral(channel) || !base.ValidChannelName(channel) {
			return nil, ErrNoChannel
		}
		var err error
		if c, err = t.createChannelLocal(ctx, channel); err != nil {
			return nil, err
		}
	}
	k, err := c.local.Attach(o, s, false)
	if err != nil {
		return nil, err
	}
	return k, nil
}

// RemoteStats counts deliveries of ordered channels through a node that were not handed over.
type RemoteStats = remote.Stats

// RemoteStats returns the counters of this node; zeros on a single node.
func (e *Engine) RemoteStats() RemoteStats {
	return e.members.remoteStats()
}

func (cn *clusterNode) remoteStats() RemoteStats { return cn.remotes.Stats() }

// hasAssigned says whether the channels on this node serve any partition of t.
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

// closeLeftoverConsumers closes the consumers that were attached here because this node led a partition of the topic,
// once it leads none: nothing would be delivered to them. Clients that subscribe now are served by the leaders.
func (t *Topic) closeLeftoverConsumers() {
	if t.servesAny() {
		return
	}
	for _, c := range t.Channels() {
		c.local.CloseFollowing()
	}
}

// dropUnused removes this node's record of a channel, if this node serves no partition of the topic and the channel has
// no consumer here.
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
