package delivery

import (
	"slices"

	"penstock/batch"
	"penstock/internal/node/fold"
)

// partShare is the share of the topic's partitions that a node leads: here of all.
type partShare struct{ here, all uint64 }

// inFlightShare returns a node's part of a limit on the messages in flight in a whole channel (0: no limit). The limit
// is divided among the topic's partitions (all; 0: unknown): each has an equal share, and the first ones have one more
// until nothing is left. A node has the shares of the partitions that it leads. A partition has one leader at a time,
// so the parts of all nodes are the limit together.
//
// If the limit is below the number of partitions (see LacksShares), a node may have no share. It takes one
// message at a time then, or its partitions would stand still: only in this case the nodes exceed the limit together.
func inFlightShare(limit, all int, leads []*partition) int {
	if limit == 0 || all == 0 {
		return limit
	}
	n := 0
	for _, p := range leads {
		if p == nil {
			continue
		}
		n += limit / all
		if int(p.number) < limit%all {
			n++
		}
	}
	return max(n, 1)
}

// shareOf returns the share that these partitions are of all; the whole if that is not known.
func shareOf(parts []*partition, all uint32) partShare {
	here := uint64(0)
	for _, p := range parts {
		if p != nil {
			here++
		}
	}
	if here == 0 || here >= uint64(all) {
		return partShare{1, 1}
	}
	return partShare{here, uint64(all)}
}

// Settings returns the settings in force. The caller must not change what they refer to.
func (c *Channel) Settings() fold.ChannelSettings { return c.settings }

// configure applies settings that are newer than the channel's, and the number of the topic's partitions.
func (c *Channel) configure(ev *Event) error {
	if s := ev.Settings; s != nil && s.Version > c.settings.Version {
		if err := s.Validate(); err != nil {
			return err
		}
		c.partsAll = ev.PartsAll
		c.adopt(*s)
		return nil
	}
	c.partsAll = ev.PartsAll
	c.limit()
	return nil
}

// adopt puts settings in force.
func (c *Channel) adopt(s fold.ChannelSettings) {
	old := c.settings
	c.settings = s
	for _, p := range c.parts {
		if p != nil {
			p.log.settingsUnlogged = true
		}
	}
	c.limit()
	c.special = c.isSpecial()
	if old.MaxAttempts == 0 && s.MaxAttempts != 0 {
		c.noteFailures()
	}
	if old.Order != s.Order || s.Order == fold.OrderKey && old.Key() != s.Key() {
		c.reorder()
	}
	for _, p := range c.parts {
		if p != nil {
			c.retryDoomed(p, true)
			c.passed(p) // a leader without these settings would deliver messages that they leave out
		}
	}
}

// limit computes this node's share of the limits that hold for the whole channel.
func (c *Channel) limit() {
	c.clients.limit = c.cfg.MaxInFlight
	n := inFlightShare(int(c.settings.MaxInFlight), int(c.partsAll), c.parts)
	if n > 0 && (c.clients.limit <= 0 || n < c.clients.limit) {
		c.clients.limit = n
	}
	c.pace.set(&c.settings, shareOf(c.parts, c.partsAll), c.nowNs)
}

// relimit takes the limits of a channel from now on: see EvLimit.
func (c *Channel) relimit(to *ChannelConfig) {
	c.cfg.MaxRanges, c.cfg.MaxDeferred, c.cfg.MaxConsumers = to.MaxRanges, to.MaxDeferred, to.MaxConsumers
	c.cfg.MaxMsgTimeoutMs, c.cfg.MaxReqTimeoutMs = to.MaxMsgTimeoutMs, to.MaxReqTimeoutMs
	c.cfg.setLimits()
	for _, p := range c.parts {
		if p != nil {
			p.maxRanges = c.cfg.MaxRanges
		}
	}
}

// isSpecial says whether offers and redeliveries must check more than which client is next in the ring.
func (c *Channel) isSpecial() bool {
	s := &c.settings
	if c.clients.choosy > 0 || s.Order != fold.OrderNone || s.MaxAttempts != 0 || s.SampleRate != 0 ||
		c.pace.limits() {
		return true
	}
	return slices.ContainsFunc(c.parts, func(p *partition) bool { return p != nil && len(p.remembered) > 0 })
}

// sampleSalt makes the channel's sample independent of its clients' samples.
const sampleSalt = 0x5851f42d4c957f2d

// outOfSample says whether the channel's own sample leaves the message out.
func (c *Channel) outOfSample(id batch.ID) bool {
	rate := int(c.settings.SampleRate)
	return rate != 0 && int(mix(uint64(id)^c.cfg.SampleSeed^sampleSalt)%100) >= rate
}
