package topic

import (
	"context"
	"fmt"
	"strings"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node/delivery"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/message"
	"penstock/internal/node/names"
	"penstock/replicate/wire"
)

// Settings returns the channel's settings as this node knows them. If this node leads a partition of the topic, they
// are the current ones. Otherwise they come from this node's copies, which may lag behind, or are the defaults if it
// has none. ReadSettings asks the leaders.
func (c *Channel) Settings() fold.ChannelSettings {
	s, current := c.local.Settings()
	if current {
		return s
	}
	for _, pt := range c.t.PartitionList() {
		if !pt.Replica().HasLog() {
			continue
		}
		pt.ReadChannels(func(cur *fold.Cursor) {
			if cur.Name == c.name && cur.Settings.Version > s.Version {
				s = cur.Settings
			}
		})
	}
	return s
}

// ReadSettings asks the leaders of all partitions for the channel's settings, and returns those with the highest
// version. It returns ErrNoChannel if no leader has the channel, and ErrNoLeader if leaders cannot be reached within
// Options.PublishTimeout.
func (c *Channel) ReadSettings(ctx context.Context) (s fold.ChannelSettings, err error) {
	if err := c.local.Err(); err != nil {
		return s, err
	}
	err = c.ask(ctx, wire.Operation{Kind: wire.OpSettings}, nil, func(result []byte) error {
		var one fold.ChannelSettings
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
// Configure returns ErrVersion. When Configure returns nil, the new settings are durable. After ErrVersion, ErrSettings
// or ErrNoChannel nothing was changed. After any other error the new settings may come into force, now or later.
//
// The leader of partition 0 alone checks the version. So nil does not say that every leader follows the new settings,
// if an earlier change that was answered with an error is in the log of another partition, and partition 0 lost it in a
// failover: that leader keeps what it has. The leaders compare their settings reconcileAfter later. If the earlier
// change has the same version, the settings of this call reach every leader then, under the next version. If there were
// several such changes, one has a higher version, and its settings replace those of this call everywhere. ReadSettings
// shows which settings won.
func (c *Channel) Configure(ctx context.Context, s fold.ChannelSettings) (fold.ChannelSettings, error) {
	if err := c.checkSettings(&s); err != nil {
		return fold.ChannelSettings{}, err
	}
	if err := c.local.Err(); err != nil {
		return fold.ChannelSettings{}, err
	}
	if err := c.checkWaiting(ctx, &s); err != nil {
		return fold.ChannelSettings{}, err
	}
	if err := c.checkInFlight(&s); err != nil {
		return fold.ChannelSettings{}, err
	}
	if err := c.checkCycle(ctx, &s); err != nil {
		return fold.ChannelSettings{}, err
	}
	s.Version++
	// If two callers change the same settings at once, the leader of partition 0 decides which change wins, and the
	// other leaders take that one. So it is asked first.
	heard := false
	first := func(n uint32) bool { return n == 0 }
	err := c.ask(ctx, wire.Operation{Kind: wire.OpConfigure, Settings: &s, Flag: true}, first,
		func([]byte) error { heard = true; return nil })
	switch {
	case err != nil:
		return fold.ChannelSettings{}, err
	case !heard:
		return fold.ChannelSettings{}, errs.ErrNoChannel
	}
	rest := func(n uint32) bool { return n != 0 }
	return s, c.ask(ctx, wire.Operation{Kind: wire.OpConfigure, Settings: &s}, rest, nil)
}

// checkSettings returns an ErrSettings if the channel cannot have these settings. It looks at no other node.
func (c *Channel) checkSettings(s *fold.ChannelSettings) error {
	if c.ephemeral {
		return fmt.Errorf("%w: an ephemeral channel has none", errs.ErrSettings)
	}
	if err := s.Validate(); err != nil {
		return err
	}
	if err := c.t.checkSettingsLevel(s); err != nil {
		return err
	}
	if s.Order == fold.OrderKey && s.Key() != message.KeyHeader {
		return fmt.Errorf("%w: key_header is %q, but the header %q chooses the partition of a message, so messages of one "+
			"key would be in several partitions and out of order: publish the key as %q, and leave key_header empty",
			errs.ErrSettings, s.Key(), message.KeyHeader, message.KeyHeader)
	}
	dead := s.DeadLetter // also while max_attempts is 0: earlier dead letters may wait to be moved there
	if dead == "" {
		dead = s.DeadLetterTopic(c.t.Name())
	}
	switch {
	case dead == "":
	case dead == c.t.Name():
		return fmt.Errorf("%w: the dead-letter topic is the topic itself, so its messages would come again for ever",
			errs.ErrSettings)
	case !names.ValidTopic(dead) || names.Ephemeral(dead):
		return fmt.Errorf("%w: the dead-letter topic would be called %q, which no durable topic can be: name one in "+
			"dead_letter", errs.ErrSettings, dead)
	}
	return nil
}

// checkSettingsLevel returns an ErrSettings if the feature level in force does not allow the settings. The leader
// checks it, too, because a level comes into force at one node after the other.
func (t *Topic) checkSettingsLevel(s *fold.ChannelSettings) error {
	if need, name := s.Level(); need > t.env.level() {
		return fmt.Errorf("%w: %s needs feature level %d, because older versions would not obey it; this is level %d: "+
			"upgrade it first", errs.ErrSettings, name, need, t.env.level())
	}
	return nil
}

// checkCycle returns an ErrSettings if dead letters would come back to the topic, through the dead-letter topics of
// other channels.
func (c *Channel) checkCycle(ctx context.Context, s *fold.ChannelSettings) error {
	dead := s.DeadLetterTopic(c.t.Name())
	if dead == "" {
		return nil
	}
	targets := func(topic string) []string { return c.env.deadTargets(ctx, topic) }
	cycle := delivery.DeadLetterCycle(c.t.Name(), dead, targets)
	if cycle == nil {
		return nil
	}
	return fmt.Errorf("%w: dead letters would come back to the topic for ever, from %s: name another topic in "+
		"dead_letter", errs.ErrSettings, strings.Join(cycle, " to "))
}

// checkInFlight returns an ErrSettings if partitions of the topic would get no share of max_in_flight. A single node
// leads all partitions, so it divides nothing.
func (c *Channel) checkInFlight(s *fold.ChannelSettings) error {
	n := c.t.Partitions()
	if c.env.Cluster == nil || !s.LacksShares(n) {
		return nil
	}
	return fmt.Errorf("%w: max_in_flight is %d, but topic %s has %d partitions, and the limit is divided among them: set "+
		"it to %d or more, or to 0 for no limit, or use a topic with at most %d",
		errs.ErrSettings, s.MaxInFlight, c.t.Name(), n, n, s.MaxInFlight)
}

// checkTime is how long CheckPartitions waits for leaders. A topic can get more partitions while some have no leader.
const checkTime = time.Second

// CheckPartitions returns ErrTooManyPartitions if the node has no room for that many partitions of the topic, and an
// ErrTopicSettings if the topic must not get that many, because some would get no share of a channel's max_in_flight.
// ConfigureAs calls it. If leaders do not answer within checkTime, what this node knows decides.
func (t *Topic) CheckPartitions(ctx context.Context, partitions int) (err error) {
	if err := t.env.Catalog.RoomToGrow(t, partitions); err != nil || t.env.Cluster == nil || partitions <= t.Partitions() {
		return err
	}
	ctx, cancel := t.env.Host.WithTimeout(ctx, checkTime)
	defer cancel()
	t.readAllSettings(ctx, func(channel string, s *fold.ChannelSettings) {
		if err == nil && s.LacksShares(partitions) {
			err = fmt.Errorf("%w: topic %s cannot have %d partitions, because max_in_flight of its channel %s is %d, and the "+
				"limit is divided among the partitions: raise it to %d first, or set it to 0 for no limit",
				meta.ErrSettings, t.Name(), partitions, channel, s.MaxInFlight, partitions)
		}
	})
	return err
}

// deadTargets returns the topics to which the channels of a topic send dead letters. delivery.MaxDeadHops ends a cycle
// that is missed.
func (s *Shared) deadTargets(ctx context.Context, topic string) (targets []string) {
	t, ok := s.Catalog.LookupTopic(topic)
	if !ok {
		return nil
	}
	t.readAllSettings(ctx, func(_ string, c *fold.ChannelSettings) {
		if dead := c.DeadLetterTopic(topic); dead != "" {
			targets = append(targets, dead)
		}
	})
	return targets
}

// readAllSettings passes the settings of the topic's channels to take, except ephemeral channels, which have none. Of
// leaders that do not answer, it takes what this node knows.
func (t *Topic) readAllSettings(ctx context.Context, take func(channel string, s *fold.ChannelSettings)) {
	all, err := t.ReadChannelNames(ctx)
	if err != nil {
		all = t.ChannelNames()
	}
	for _, name := range all {
		if names.Ephemeral(name) {
			continue
		}
		c, ok := t.LookupChannel(name)
		if !ok {
			c = t.ChannelElsewhere(name)
		}
		s, err := c.ReadSettings(ctx)
		if err != nil {
			s = c.Settings()
		}
		take(name, &s)
	}
}

// checkWaiting returns an ErrSettings if earlier dead letters, which may wait to be moved, would have no topic any
// more. Those move to the topic that the settings in force name, or to the one named after the topic; in a topic with a
// long name, that one cannot be.
func (c *Channel) checkWaiting(ctx context.Context, s *fold.ChannelSettings) error {
	dead := c.t.Name() + fold.DeadLetterSuffix
	if s.DeadLetter != "" || s.MaxAttempts != 0 || names.ValidTopic(dead) {
		return nil
	}
	now, err := c.ReadSettings(ctx)
	if err != nil || now.DeadLetter == "" {
		return err
	}
	return fmt.Errorf("%w: dead letters that wait to be moved would go to %q, which no topic can be called: leave a "+
		"topic in dead_letter", errs.ErrSettings, dead)
}
