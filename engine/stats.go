package engine

import (
	"slices"

	"penstock/engine/core"
)

// Stats returns a snapshot of the topic of that name ("": of all topics, sorted by name), with the channel of that name
// ("": all, sorted by name). Consumers are always counted and listed.
func (e *Engine) Stats(topic, channel string) []TopicStats {
	var topics []*Topic
	if topic == "" {
		topics = e.Topics()
	} else if t, ok := e.LookupTopic(topic); ok {
		topics = []*Topic{t}
	}
	out := make([]TopicStats, 0, len(topics))
	for _, t := range topics {
		if !t.deleted.Load() {
			out = append(out, t.stats(channel))
		}
	}
	return out
}

func (t *Topic) stats(channel string) TopicStats {
	s := TopicStats{
		Name: t.name, MessageCount: t.messages.Load(), MessageBytes: t.bytes.Load(),
		Paused: t.paused.Load(), Partitions: len(t.partitions()),
	}
	for _, pt := range t.partitions() {
		if pt.rep.hasLog() {
			s.StoredBytes += pt.log.Bytes()
		}
		s.Depth += pt.waitingAtTopic()
	}
	s.BackendDepth = s.Depth
	if !t.servesAny() { // this node's channels only serve clients of what other nodes lead, which show them
		return s
	}
	for _, c := range t.Channels() {
		if channel == "" || channel == c.name {
			s.Channels = append(s.Channels, c.stats(true))
		}
	}
	return s
}

// waitingAtTopic is how many messages no channel can get yet, because the topic has no channel or is paused.
func (pt *partition) waitingAtTopic() int64 {
	end := pt.visible.Load()
	from := min(pt.unclaimed.Load(), pt.pausedFrom.Load())
	if from == noMsgID || from >= end {
		return 0
	}
	return int64(end - from)
}

func (c *Channel) stats(consumers bool) ChannelStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed == nil {
		c.syncVisible()
	}
	m := c.m.Stats()
	s := ChannelStats{
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
	if !consumers {
		return s
	}
	c.m.EachClient(func(cs core.ClientStats) {
		k := c.consumers[cs.Client]
		if k == nil {
			return
		}
		s.Consumers = append(s.Consumers, ConsumerStats{
			Label: k.label, ReadyCount: cs.ReadyCount, InFlightCount: cs.InFlightCount, MessageCount: cs.MessageCount,
			FinishCount: cs.FinishCount, RequeueCount: cs.RequeueCount, Stopped: k.stopped, Client: k.id,
		})
	})
	s.Consumers = slices.Clip(s.Consumers)
	return s
}
