package topic

import (
	"context"

	"penstock/replicate/wire"
)

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
