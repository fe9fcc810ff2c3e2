package channel

import (
	"slices"
	"time"

	"penstock/internal/node/delivery"
	"penstock/internal/node/message"
)

// Stats is a snapshot of a channel, with the names of NSQ's /stats.
type Stats struct {
	Name          string
	Depth         int64
	BackendDepth  int64
	InFlightCount int
	DeferredCount int
	MessageCount  uint64
	DeliverCount  uint64 // deliveries to consumers, also repeated ones, since this node serves the channel
	FinishCount   uint64 // messages that consumers finished, likewise
	RequeueCount  uint64
	TimeoutCount  uint64
	Paused        bool
	DroppedCount  uint64 // messages that retention or a quota removed before they were finished, likewise
	Dropping      bool   // DroppedCount grew in the last droppingFor
	// Starved says that messages wait and somebody consumes, but nothing is in flight and nothing was delivered for 10 s:
	// no consumer asks for any, as those do that back off, or something here fails.
	Starved      bool
	Skipping     bool   // what is published is discarded
	SkippedCount uint64 // messages that were discarded because the channel skips or skipped, since SkippingSince
	// SkippingSince is when the channel was made to skip, or began to serve here, if that is later; by the engine's clock.
	// The zero time: it does not skip.
	SkippingSince time.Time
	// SkippedBefore: it skipped already before SkippingSince, and may have discarded more than SkippedCount.
	SkippedBefore bool
	DeadLettered  uint64 // dead letters that this node moved to their topic since it leads
	OutboxCount   int    // dead letters that wait to be moved
	AsideCount    int    // those of them that could not be moved when they were tried last
	AsideWhy      string // why the last of these could not
	// DeadLetterTopic is where dead letters go and wait for a redrive; "": the channel has no limit of attempts.
	DeadLetterTopic string
	// FullPartitions counts the partitions that deliver no new messages, because too many wait between confirmed ones:
	// they are in flight, delayed, or wait for room in the outbox.
	FullPartitions int
	// OldestNs is when the oldest visible message that is not finished was stored, or earlier (segment.Log.AppendedBy), in
	// ns since 1970; of one that retention has removed or that was carried, when the log begins. 0: all are finished.
	OldestNs  int64
	Latencies message.LatencyRecorder // made by Options.Latencies; nil: none are measured
	Consumers []message.ConsumerStats
}

// Stats returns the counts of the channel and its consumers. It takes mu.
func (c *Channel) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed == nil {
		c.look()
	}
	m, now := c.m.Stats(), c.troubles.last()
	s := Stats{
		Name: c.name, Depth: int64(m.Depth), BackendDepth: int64(m.Depth), InFlightCount: m.InFlightCount,
		DeferredCount: m.DeferredCount, MessageCount: m.MessageCount, RequeueCount: m.RequeueCount,
		DeliverCount: m.DeliverCount, FinishCount: m.FinishCount,
		TimeoutCount: m.TimeoutCount, DroppedCount: m.DroppedCount, Paused: m.Paused, DeadLettered: c.deadMoved,
		SkippedCount: m.SkippedCount, Skipping: now.Skipping, Dropping: now.DroppedCount > 0,
		SkippingSince: now.SkippingSince, SkippedBefore: now.SkippedBefore, Starved: now.Starved,
		FullPartitions: now.FullPartitions,
	}
	if c.closed == nil && c.settings.Version > 0 {
		s.DeadLetterTopic = c.settings.DeadLetterTopic(c.topic.Name())
		s.OutboxCount = c.outboxCount()
		s.AsideCount, s.AsideWhy = c.aside.Count(s.OutboxCount)
	}
	if c.closed == nil {
		s.OldestNs = c.oldestNs()
	}
	if c.timed != nil {
		s.Latencies = c.timed.Recorder()
	}
	c.m.EachClient(func(cs delivery.ClientStats) {
		k := c.consumers[cs.Client]
		if k == nil {
			return
		}
		s.Consumers = append(s.Consumers, message.ConsumerStats{
			Label: k.label, ReadyCount: cs.ReadyCount, InFlightCount: cs.InFlightCount, MessageCount: cs.MessageCount,
			FinishCount: cs.FinishCount, RequeueCount: cs.RequeueCount, Stopped: k.stopped, Client: k.id,
		})
	})
	s.Consumers = slices.Clip(s.Consumers)
	return s
}

// syncStarts tells the machine where the logs begin: retention may remove messages just now. mu is held.
func (c *Channel) syncStarts() {
	for i := range c.cursors {
		cur := &c.cursors[i]
		if !cur.assigned {
			continue
		}
		if _, _, start := cur.part.Log().Start(); start > c.m.ReadFrom(cur.number) {
			c.trimmed(cur, start, 0)
		}
	}
}

// oldestNs computes Stats.OldestNs, from memory only. mu is held.
func (c *Channel) oldestNs() (oldest int64) {
	for i := range c.cursors {
		if ns := c.oldestIn(&c.cursors[i]); ns > 0 && (oldest == 0 || ns < oldest) {
			oldest = ns
		}
	}
	return oldest
}

// oldestIn is oldestNs of one partition. mu is held.
func (c *Channel) oldestIn(cur *cursor) int64 {
	if !cur.assigned {
		return 0
	}
	id := c.m.OldestUnconfirmed(cur.number)
	if id >= cur.end {
		return 0
	}
	return cur.part.Log().AppendedBy(id)
}
