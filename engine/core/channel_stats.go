package core

// ChannelStats is what /stats shows of a channel; counts are since NewChannel.
type ChannelStats struct {
	Depth         uint64 // visible, not read yet, plus the redelivery queue; neither in flight nor delayed
	InFlightCount int
	DeferredCount int
	QueuedCount   int // the redelivery queue, which is part of Depth
	ParkedCount   int // behind another message of their order, which is part of Depth
	// wait until their last delivery to a client of another node is surely over, which is part of Depth
	RecalledCount int
	OutboxCount   int    // dead letters that are not in the dead-letter topic yet
	DeadCount     uint64 // dead letters
	FilteredCount uint64 // messages that the filter did not want
	MessageCount  uint64 // messages that became visible
	RequeueCount  uint64
	TimeoutCount  uint64
	RecallCount   uint64 // messages that had to wait so
	ReturnCount   uint64 // deliveries that the client's node gave back
	ClientCount   int
	Paused        bool
	Skipped       bool
}

// ClientStats is what /stats shows of one client of a channel.
type ClientStats struct {
	Client        ClientID
	ReadyCount    int
	InFlightCount int
	MessageCount  uint64
	FinishCount   uint64
	RequeueCount  uint64
}

// Depth returns how many messages wait for a client: visible and not read yet, or
// in the redelivery queue.
func (c *Channel) Depth() uint64 {
	depth := uint64(c.queue.count) + uint64(c.parked) + uint64(c.recalled)
	for _, p := range c.parts {
		if p != nil && p.next < p.end {
			depth += uint64(p.end-p.next) - uint64(p.holes) - p.ranges.Count(p.next, p.end)
		}
	}
	return depth
}

// Stats returns the channel's numbers.
func (c *Channel) Stats() ChannelStats {
	outbox := 0
	for _, p := range c.parts {
		if p != nil {
			outbox += len(p.outbox)
		}
	}
	return ChannelStats{
		ParkedCount: c.parked, RecalledCount: c.recalled, RecallCount: c.recallCount, ReturnCount: c.returnCount,
		OutboxCount: outbox, DeadCount: c.deadCount, FilteredCount: c.filteredCount,
		Depth: c.Depth(), InFlightCount: c.inFlight, DeferredCount: c.waiting, QueuedCount: c.queue.count,
		MessageCount: c.messageCount, RequeueCount: c.requeueCount, TimeoutCount: c.timeoutCount,
		ClientCount: len(c.order), Paused: c.paused, Skipped: c.skipped,
	}
}

// ClientInFlight is how many messages a client has in flight.
func (c *Channel) ClientInFlight(id ClientID) int {
	if cl := c.clients[id]; cl != nil {
		return cl.flight.count
	}
	return 0
}

// EachClient visits the clients in the order of their subscription.
func (c *Channel) EachClient(visit func(ClientStats)) {
	for _, cl := range c.order {
		visit(ClientStats{
			Client: cl.id, ReadyCount: cl.ready, InFlightCount: cl.flight.count,
			MessageCount: cl.messageCount, FinishCount: cl.finishCount, RequeueCount: cl.requeueCount,
		})
	}
}
