package channel

import "penstock/internal/node/delivery"

// PartitionLag is what waits in one partition of a channel.
type PartitionLag struct {
	delivery.Lag
	OldestNs int64 // see Stats.OldestNs
}

// Lags returns the lag of each partition that this node serves. It takes mu, and looks at every message in flight or
// deferred.
func (c *Channel) Lags() []PartitionLag {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed != nil {
		return nil
	}
	c.look()
	var all []PartitionLag
	for _, l := range c.m.Lags() {
		if n := int(l.Partition); n < len(c.cursors) && c.cursors[n].assigned {
			all = append(all, PartitionLag{l, c.oldestIn(&c.cursors[n])})
		}
	}
	return all
}
