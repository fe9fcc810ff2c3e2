package engine

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"penstock/engine/base"
	"penstock/engine/core"
	"penstock/replicate/wire"
)

// Settings of a channel, as they are stored: see core.
type (
	ChannelSettings = core.ChannelSettings
	Filter          = core.Filter
	Rule            = core.Rule
	Order           = core.Order
	Match           = core.Match
)

// Values of ChannelSettings.Order and Rule.Match.
const (
	OrderNone      = core.OrderNone
	OrderPartition = core.OrderPartition
	OrderKey       = core.OrderKey
	OrderDeclared  = core.OrderDeclared

	MatchExact  = core.MatchExact
	MatchPrefix = core.MatchPrefix
	MatchGlob   = core.MatchGlob
	MatchRegexp = core.MatchRegexp
	MatchExists = core.MatchExists
)

// Settings returns the channel's settings as this node knows them. If it leads a partition of the topic, they are the
// current ones. Otherwise they come from its own copies, which may lag behind, or are the defaults. ReadSettings asks
// the leaders.
func (c *Channel) Settings() ChannelSettings {
	c.mu.Lock()
	if c.closed == nil {
		c.applyPostsLocked()
	}
	s, serves := c.settings, c.partsAssigned > 0
	c.mu.Unlock()
	if serves {
		return s
	}
	for _, pt := range c.t.partitions() {
		if !pt.rep.hasLog() {
			continue
		}
		pt.rep.mu.Lock()
		if cur := pt.fold.Channel(c.name); cur != nil && cur.Settings.Version > s.Version {
			s = cur.Settings
		}
		pt.rep.mu.Unlock()
	}
	return s
}

// ReadSettings asks the leaders of all partitions for the channel's settings, and returns the latest.
func (c *Channel) ReadSettings(ctx context.Context) (s ChannelSettings, err error) {
	if err := c.closedErr(); err != nil {
		return s, err
	}
	err = c.ask(ctx, wire.Operation{Kind: wire.OpSettings}, nil, func(result []byte) error {
		var one ChannelSettings
		err := wire.DecodeResult(result, &one)
		if one.Version > s.Version {
			s = one
		}
		return err
	})
	return s, err
}

// Configure changes the channel's settings on every leader, and returns them with their new version. s.Version is the
// version of the settings that the caller wants to replace (0: there are none yet); if it is not the current one,
// Configure returns ErrVersion. When it returns nil, the new settings are durable. After any other error they may or
// may not be in force, now or later.
func (c *Channel) Configure(ctx context.Context, s ChannelSettings) (ChannelSettings, error) {
	if err := c.checkSettings(&s); err != nil {
		return ChannelSettings{}, err
	}
	if err := c.closedErr(); err != nil {
		return ChannelSettings{}, err
	}
	s.Version++
	// If two callers change the same settings at once, the leader of partition 0 decides which wins. The other leaders
	// follow it.
	heard := false
	first := func(n uint32) bool { return n == 0 }
	err := c.ask(ctx, wire.Operation{Kind: wire.OpConfigure, Settings: &s, Flag: true}, first,
		func([]byte) error { heard = true; return nil })
	switch {
	case err != nil:
		return ChannelSettings{}, err
	case !heard:
		return ChannelSettings{}, ErrNoChannel
	}
	rest := func(n uint32) bool { return n != 0 }
	return s, c.ask(ctx, wire.Operation{Kind: wire.OpConfigure, Settings: &s}, rest, nil)
}

func (c *Channel) checkSettings(s *ChannelSettings) error {
	if c.ephemeral {
		return fmt.Errorf("%w: an ephemeral channel has none", ErrSettings)
	}
	if err := s.Validate(); err != nil {
		return err
	}
	dead := s.DeadLetterTopic(c.t.name)
	switch {
	case dead == "":
	case dead == c.t.name:
		return fmt.Errorf("%w: the dead-letter topic is the topic itself, so its messages would come again for ever",
			ErrSettings)
	case !base.ValidTopicName(dead) || base.Ephemeral(dead):
		return fmt.Errorf("%w: the dead-letter topic would be called %q, which no durable topic can be: name one in "+
			"dead_letter", ErrSettings, dead)
	}
	return nil
}

// configureLocal puts op.Settings in force in the partitions that this node serves. With op.Flag (partition 0) this
// node checks their version, and refuses with ErrVersion. Without, it takes them unless it has newer ones.
func (c *Channel) configureLocal(ctx context.Context, op wire.Operation) (ChannelSettings, error) {
	c.e.host.Lock(&c.configuring)
	defer c.configuring.Unlock()
	c.mu.Lock()
	if c.closed != nil {
		c.mu.Unlock()
		return ChannelSettings{}, c.closed
	}
	c.applyPostsLocked()
	now, next := c.settings, op.Settings
	here := c.partsAssigned
	c.mu.Unlock()
	switch {
	case here == 0:
		return ChannelSettings{}, ErrNoLeader
	case op.Flag && now.Version+1 != next.Version && !sameSettings(&now, next):
		return now, ErrVersion
	case now.Version >= next.Version:
		return now, c.rewriteSettings(ctx, &now)
	}
	ev := core.Event{Kind: core.EvConfigure, Settings: next, SharePartsHere: here, PartsAll: uint32(c.t.Partitions())}
	if err := c.change(ctx, ev); err != nil {
		return ChannelSettings{}, err
	}
	if op.Flag {
		c.reconcileLater()
	}
	return *next, nil
}

// rewriteSettings writes the settings that are in force here into every partition that this node leads. They may be in
// force only because of another partition, or because of a change that has not finished. Only after this entry each of
// these logs has them, so that a leader of just one of the partitions knows them.
func (c *Channel) rewriteSettings(ctx context.Context, now *ChannelSettings) error {
	err := c.t.writeControls(ctx, []core.Control{{Kind: core.ChannelConfigured, Channel: c.name, Settings: now}}, nil)
	if err == nil && c.closedErr() != nil {
		err = ErrNoLeader // the channel that replaces this one may have begun without these settings
	}
	return err
}

func sameSettings(a, b *ChannelSettings) bool {
	if a.Version == 0 || b.Version == 0 {
		return false
	}
	return a.Version == b.Version && bytes.Equal(a.Append(nil), b.Append(nil))
}

// learnSettings copies the machine's settings, and what is derived from them, into c. mu is held.
func (c *Channel) learnSettings() {
	s := c.m.Settings()
	if s.Version == c.settings.Version {
		return
	}
	c.settings = s
	c.keyHeader = s.Key()
	matcher, err := s.Filter.Matcher()
	// A node of another version accepted this filter. Too many messages are better than none.
	if err != nil {
		c.e.log.Error("a channel's filter cannot be read: it gets every message",
			"topic", c.t.name, "channel", c.name, "error", err)
	}
	c.matcher = matcher
	c.needsHeaders = matcher != nil || s.Order == core.OrderKey
}

// share tells the machine how many of the topic's partitions this node serves: it may use that share of a rate limit
// that is for the whole channel. mu is held.
func (c *Channel) share() {
	c.partsAssigned = 0
	for i := range c.cursors {
		if c.cursors[i].assigned {
			c.partsAssigned++
		}
	}
	c.ev = core.Event{Kind: core.EvConfigure, SharePartsHere: c.partsAssigned, PartsAll: uint32(c.t.Partitions())}
	c.step()
	c.learnSettings()
}

// reconcileAfter is the delay after a change of the settings until the leader of partition 0 checks that all leaders
// have them. The node that made the change may have died before it had told all of them.
const reconcileAfter = 2 * time.Second

func (c *Channel) reconcileLater() {
	if !c.e.members.others() || c.t.Partitions() == 1 {
		return
	}
	cn := c.e.cluster
	cn.spawn(func() {
		if c.e.host.Pause(reconcileAfter, cn.ctx.Done()) {
			c.reconcile(cn.ctx)
		}
	})
}

// reconcile brings the latest settings to every leader. An error is not retried here: the next leader, or the next
// change, reconciles again.
func (c *Channel) reconcile(ctx context.Context) {
	if c.ephemeral || c.closedErr() != nil {
		return
	}
	versions := map[uint64]bool{}
	var latest ChannelSettings
	err := c.ask(ctx, wire.Operation{Kind: wire.OpSettings}, nil, func(result []byte) error {
		var s ChannelSettings
		err := wire.DecodeResult(result, &s)
		if versions[s.Version] = true; s.Version > latest.Version {
			latest = s
		}
		return err
	})
	if err == nil && len(versions) > 1 {
		err = c.ask(ctx, wire.Operation{Kind: wire.OpConfigure, Settings: &latest}, nil, nil)
	}
	if err != nil && ctx.Err() == nil {
		c.e.log.Debug("a channel's settings could not be compared among the leaders",
			"topic", c.t.name, "channel", c.name, "error", err)
	}
}
