package channel

import (
	"slices"

	"penstock/engine/base"
	"penstock/engine/core"
)

// Stats is a snapshot of a channel, with the names of NSQ's /stats.
type Stats struct {
	Name          string
	Depth         int64
	BackendDepth  int64
	InFlightCount int
	DeferredCount int
	MessageCount  uint64
	RequeueCount  uint64
	TimeoutCount  uint64
	Paused        bool
	DeadLettered  uint64               // dead letters that this node moved to their topic since it leads
	OutboxCount   int                  // dead letters that wait to be moved
	Latencies     base.LatencyRecorder // made by Options.Latencies; nil: none are measured
	Consumers     []base.ConsumerStats
}

// Stats returns the counts of the channel and its consumers. It takes mu.
func (c *Channel) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed == nil {
		c.syncVisible()
	}
	m := c.m.Stats()
	s := Stats{
		Name: c.name, Depth: int64(m.Depth), BackendDepth: int64(m.Depth), InFlightCount: m.InFlightCount,
		DeferredCount: m.DeferredCount, MessageCount: m.MessageCount, RequeueCount: m.RequeueCount,
		TimeoutCount: m.TimeoutCount, Paused: m.Paused, DeadLettered: c.deadMoved,
	}
	if c.closed == nil && c.settings.Version > 0 {
		s.OutboxCount = c.outboxCount()
	}
	if c.timed != nil {
		s.Latencies = c.timed.Recorder
	}
	c.m.EachClient(func(cs core.ClientStats) {
		k := c.consumers[cs.Client]
		if k == nil {
			return
		}
		s.Consumers = append(s.Consumers, base.ConsumerStats{
			Label: k.label, ReadyCount: cs.ReadyCount, InFlightCount: cs.InFlightCount, MessageCount: cs.MessageCount,
			FinishCount: cs.FinishCount, RequeueCount: cs.RequeueCount, Stopped: k.stopped, Client: k.id,
		})
	})
	s.Consumers = slices.Clip(s.Consumers)
	return s
}
