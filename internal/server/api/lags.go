package api

import (
	"cmp"
	"slices"
	"time"
)

// PartitionLag is what waits in one partition of a channel.
type PartitionLag struct {
	Partition     uint32  `json:"partition"`
	Leader        string  `json:"leader"`
	Depth         uint64  `json:"depth"`
	InFlightCount int     `json:"in_flight_count"`
	DeferredCount int     `json:"deferred_count"`
	OldestSeconds float64 `json:"oldest_seconds"` // age of the oldest message that is not finished; 0: none
	// BlockedBy is the message, in flight or deferred, behind which the most others of an ordered channel wait here, and
	// BlockedCount how many they are. Its key is a header of it: see /channel/peek.
	BlockedBy    string `json:"blocked_by,omitempty"`
	BlockedCount uint64 `json:"blocked_count,omitempty"`
}

// lagsOf returns the lags of a channel in the partitions that this node serves.
func (s *Service) lagsOf(topic, channel string, now time.Time) []PartitionLag {
	t, ok := s.engine.Catalog().LookupTopic(topic)
	if !ok {
		return nil
	}
	c, ok := t.LookupChannel(channel)
	if !ok {
		return nil
	}
	out := []PartitionLag{}
	for _, l := range c.Lags() {
		row := PartitionLag{
			Partition: l.Partition, Depth: l.Depth, InFlightCount: l.InFlightCount, DeferredCount: l.DeferredCount,
			BlockedCount: l.Behind,
		}
		if l.OldestNs > 0 {
			row.OldestSeconds = max(0, now.Sub(time.Unix(0, l.OldestNs)).Seconds())
		}
		if l.Behind > 0 {
			row.BlockedBy = l.Blocker.String()
		}
		out = append(out, row)
	}
	return mostWaiting(out)
}

// mostWaiting sorts partitions by what waits in them, and returns the first MaxPageCount.
func mostWaiting(all []PartitionLag) []PartitionLag {
	slices.SortFunc(all, func(a, b PartitionLag) int {
		return cmp.Or(cmp.Compare(b.Depth, a.Depth), cmp.Compare(b.OldestSeconds, a.OldestSeconds),
			cmp.Compare(a.Partition, b.Partition))
	})
	return part(all, 0, MaxPageCount)
}
