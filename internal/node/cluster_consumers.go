package node

import (
	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node/clock"
	"penstock/internal/node/errs"
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

func (cn *clusterNode) Find(id segment.Identity) (remote.Topic, remote.Partition) {
	at := cn.topics.placed(id)
	if at.Partition == nil {
		return nil, nil
	}
	return at.topic.View(), at.Partition
}

func (cn *clusterNode) Attach(
	topic uuid.UUID, channel string, o message.ConsumerOptions, s message.Sink,
) (remote.Served, error) {
	t := cn.topics.placed(meta.PartitionID{Topic: topic}).topic
	if t == nil {
		return nil, errs.ErrNoLeader
	}
	ctx, cancel := cn.e.host.WithTimeout(cn.Ctx, remote.ServeTime)
	defer cancel()
	if cn.Await(ctx, t.Local().HasAssigned) != nil { // this node may have been elected a moment ago
		return nil, errs.ErrNoLeader
	}
	c, ok := t.LookupChannel(channel)
	if !ok {
		if !names.Ephemeral(channel) || !names.ValidChannel(channel) {
			return nil, errs.ErrNoChannel
		}
		var err error
		if c, err = t.Local().Create(ctx, channel); err != nil {
			return nil, err
		}
	}
	k, err := c.Local().Attach(o, s, false)
	if err != nil {
		return nil, err
	}
	return k, nil
}
