package channel

import (
	"bytes"
	"context"

	"penstock/internal/node/delivery"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/replicate/wire"
)

// Settings returns the channel's settings as the machine knows them. current says that they are the current ones,
// because the channel has a partition on this node. It takes mu.
func (c *Channel) Settings() (s fold.ChannelSettings, current bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed == nil {
		c.applyPostsLocked()
	}
	return c.settings, c.partsAssigned > 0
}

// State returns the part of the channel's state that a new partition of the topic must get. ok is false if the channel
// is closed. It takes mu.
func (c *Channel) State() (s wire.ChannelState, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil {
		return s, false
	}
	c.applyPostsLocked()
	now := c.m.Stats()
	return wire.ChannelState{Name: c.name, Paused: now.Paused, Skipped: now.Skipped, Settings: c.settings}, true
}

// configure puts op.Settings into effect in the partitions that this node serves. With op.Flag (partition 0), this node
// checks their version, and may refuse them with ErrVersion. Without it, the node accepts them unless it has newer
// ones.
func (c *Channel) configure(ctx context.Context, op wire.Operation) (fold.ChannelSettings, error) {
	c.node.Host.Lock(&c.configuring)
	defer c.configuring.Unlock()
	c.mu.Lock()
	if c.closed != nil {
		c.mu.Unlock()
		return fold.ChannelSettings{}, c.closed
	}
	c.applyPostsLocked()
	now, next := c.settings, op.Settings
	here := c.partsAssigned
	c.mu.Unlock()
	switch {
	case here == 0:
		return fold.ChannelSettings{}, errs.ErrNoLeader
	case op.Flag && now.Version+1 != next.Version && !sameSettings(&now, next):
		return now, errs.ErrVersion
	case now.Version >= next.Version:
		return now, c.rewriteSettings(ctx, &now)
	}
	ev := delivery.Event{Kind: delivery.EvConfigure, Settings: next, PartsAll: uint32(c.topic.Count())}
	if err := c.change(ctx, ev); err != nil {
		return fold.ChannelSettings{}, err
	}
	if op.Flag {
		c.topic.Reconfigured(c)
	}
	return *next, nil
}

// rewriteSettings writes the channel's settings into every partition that this node leads. The channel may have them
// only from the log of another partition, or from a change that has not finished. Only after this entry does each of
// the logs have them, so that a leader of just one of the partitions knows them.
func (c *Channel) rewriteSettings(ctx context.Context, now *fold.ChannelSettings) error {
	err := c.topic.WriteControls(ctx, []fold.Control{{Kind: fold.ChannelConfigured, Channel: c.name, Settings: now}})
	if err == nil && c.Err() != nil {
		err = errs.ErrNoLeader // the channel that replaces this one may have begun without these settings
	}
	return err
}

// sameSettings says whether two settings are equal. Settings of version 0 equal none.
func sameSettings(a, b *fold.ChannelSettings) bool {
	if a.Version == 0 || b.Version == 0 {
		return false
	}
	return a.Version == b.Version && bytes.Equal(a.Append(nil), b.Append(nil))
}

// learnSettings copies the machine's settings, and the fields that are derived from them, into c. mu is held.
func (c *Channel) learnSettings() {
	s := c.m.Settings()
	if s.Version == c.settings.Version {
		return
	}
	c.settings = s
	c.keyHeader = s.Key()
	matcher, err := s.Filter.Matcher()
	// Another node, of another version, accepted this filter. Too many messages are better than none.
	if err != nil {
		c.node.Log.Error("a channel's filter cannot be read: it gets every message",
			"topic", c.topic.Name(), "channel", c.name, "error", err)
	}
	c.matcher = matcher
	c.needsHeaders = matcher != nil || s.Order == fold.OrderKey
	c.startSweeper()
}

// share tells the machine how many partitions the topic has: this node may use the share of its partitions of the
// limits that hold for the whole channel. mu is held.
func (c *Channel) share() {
	c.partsAssigned = 0
	for i := range c.cursors {
		if c.cursors[i].assigned {
			c.partsAssigned++
		}
	}
	c.partsAll = uint32(c.topic.Count())
	c.ev = delivery.Event{Kind: delivery.EvConfigure, PartsAll: c.partsAll}
	c.step()
	c.learnSettings()
}
