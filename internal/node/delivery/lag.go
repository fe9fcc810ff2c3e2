package delivery

import "penstock/batch"

// Lag is what waits in one partition of a channel; its counts add up to those of [ChannelStats].
type Lag struct {
	Partition     uint32
	Depth         uint64
	InFlightCount int
	DeferredCount int
	// Blocker is, in an ordered channel, the message for which the most others of the partition wait, in flight or
	// deferred itself; Behind is how many they are. 0: none waits for another one.
	Blocker batch.ID
	Behind  uint64
}

// Lags returns the lag of each partition, by number. It looks at every entry.
func (c *Channel) Lags() []Lag {
	all, at := []Lag{}, make([]int, len(c.parts))
	for n, p := range c.parts {
		if p == nil {
			continue
		}
		at[n] = len(all)
		all = append(all, Lag{Partition: uint32(n), Depth: p.unreadCount()})
	}
	block := func(e *entry) {
		p, l := c.parts[e.id.Partition()], &all[at[e.id.Partition()]]
		if e.lane == nil {
			return
		}
		behind := uint64(e.lane.parked.count)
		if e.lane == &p.lane {
			behind += p.unreadCount()
		}
		if behind > l.Behind || behind > 0 && behind == l.Behind && e.id < l.Blocker {
			l.Blocker, l.Behind = e.id, behind
		}
	}
	for _, cl := range c.clients.all {
		for e := cl.flight.first; e != nil; e = e.next {
			e.each(func(id batch.ID, _ uint64) { all[at[id.Partition()]].InFlightCount++ })
			block(e)
		}
	}
	c.entries.each(func(e *entry) {
		l := &all[at[e.id.Partition()]]
		switch e.state {
		case entryWaiting, entryHeld, entryDoomed:
			l.DeferredCount++
			block(e)
		case entryQueued, entryParked, entryRecalled:
			l.Depth++
		}
	})
	return all
}

// unreadCount returns how many visible messages have no entry and are not confirmed.
func (p *partition) unreadCount() uint64 {
	if p.next >= p.end {
		return 0
	}
	return uint64(p.end-p.next) - uint64(p.holes) - p.ranges.Count(p.next, p.end)
}
