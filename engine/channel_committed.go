package engine

import (
	"context"

	"penstock/replicate/wire"
)

// The machine of a channel, and the fold of a leader's log, include batches that are in the log but not committed. A
// failover can undo those. So a caller that asks for an existing channel must wait until its creation is committed,
// like the caller that created it.

// committedChannel returns a channel that this node has, once its creation is committed: another caller may have asked
// for it a moment ago. A node that leads nothing only remembers channels, so it asks the leaders.
func (t *Topic) committedChannel(ctx context.Context, c *Channel) (*Channel, error) {
	if !t.e.members.others() || c.ephemeral {
		return c, nil
	}
	cn := t.e.cluster
	// Wait only for the partitions that this client will get messages from. A partition without a leader must not keep the
	// client from the others.
	only := func(n uint32) bool { return t.partitions()[n].Serves() }
	switch {
	case t.servesAny():
		if c.isCommitted() {
			return c, nil
		}
	case t.e.opts.DisableAutoCreate:
		return c, nil // the leaders must not create it
	default:
		only = func(n uint32) bool {
			to := t.partitions()[n].Target()
			return to != 0 && (to == cn.Self.ID || cn.IsLive(to))
		}
	}
	if err := cn.gather(ctx, t, wire.Operation{Kind: wire.OpCreateChannel, Channel: c.name}, only, nil); err != nil {
		return nil, err
	}
	return t.createChannelLocal(ctx, c.name)
}

// isCommitted is Channel.CommittedIn, of the local part, for all partitions that this node serves.
func (c *Channel) isCommitted() bool {
	for i, pt := range c.t.partitions() {
		if pt.Serves() && !c.local.CommittedIn(i) {
			return false
		}
	}
	return true
}
