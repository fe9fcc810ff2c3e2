package delivery

// ChannelStats is what /stats shows of a channel. Counts without another comment begin at NewChannel.
type ChannelStats struct {
	Depth         uint64 // visible messages that wait for a client: unread, queued, parked or recalled
	InFlightCount int
	DeferredCount int // messages that wait for their time
	QueuedCount   int // in the queues of what comes due or again; part of Depth
	ParkedCount   int // behind another message of their order; part of Depth
	// waiting for the end of the hold of their last delivery to a client of another node; part of Depth
	RecalledCount int
	OutboxCount   int    // dead letters in the outboxes: the dead-letter topic does not have them yet
	DeadCount     uint64 // messages that became dead letters
	DroppedCount  uint64 // messages that retention or a quota removed, and that no client had finished or has in flight
	SkippedCount  uint64 // messages that were discarded because the channel skips, since it was last made to skip
	FilteredCount uint64 // messages that the filter rejected, or that were for another channel
	MessageCount  uint64 // messages that became visible
	DeliverCount  uint64 // deliveries, also repeated ones
	FinishCount   uint64 // messages that clients finished
	RequeueCount  uint64
	TimeoutCount  uint64
	RecallCount   uint64 // how often a message had to wait for the end of a hold
	ReturnCount   uint64 // deliveries that the clients' nodes gave back
	ClientCount   int
	Paused        bool
	Skipped       bool
	// SkippedSinceNs is when the channel was made to skip, or when this machine learned of it: the nowNs of that step. 0:
	// it does not skip.
	SkippedSinceNs int64
	// SkippedBefore: the log of a partition that was added said that the channel skips. So it has skipped for longer than
	// since SkippedSinceNs, and may have discarded more than SkippedCount says: neither is in the log.
	SkippedBefore bool
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

// Depth returns how many visible messages wait for a client: unread, queued, parked or recalled.
func (c *Channel) Depth() uint64 {
	depth := uint64(c.turns.queued) + uint64(c.lanes.parked) + uint64(c.recalled)
	for _, p := range c.parts {
		if p != nil {
			depth += p.unreadCount()
		}
	}
	return depth
}

// Stats returns the channel's counts.
func (c *Channel) Stats() ChannelStats {
	outbox := 0
	for _, p := range c.parts {
		if p != nil {
			outbox += len(p.outbox.letters)
		}
	}
	delivered, finished := c.clients.goneMessageCount, c.clients.goneFinishCount
	for _, cl := range c.clients.all {
		delivered, finished = delivered+cl.messageCount, finished+cl.finishCount
	}
	return ChannelStats{
		DeliverCount: delivered, FinishCount: finished,
		ParkedCount: c.lanes.parked, RecalledCount: c.recalled, RecallCount: c.recallCount, ReturnCount: c.returnCount,
		OutboxCount: outbox, DeadCount: c.deadCount, DroppedCount: c.droppedCount, FilteredCount: c.filteredCount,
		SkippedCount: c.skippedCount,
		Depth:        c.Depth(), InFlightCount: c.clients.inFlight, DeferredCount: c.waiting, QueuedCount: c.turns.queued,
		MessageCount: c.messageCount, RequeueCount: c.requeueCount, TimeoutCount: c.timeoutCount,
		ClientCount: len(c.clients.all), Paused: c.paused, Skipped: c.skipped,
		SkippedSinceNs: c.skippedSinceNs, SkippedBefore: c.skippedBefore,
	}
}

// ClientInFlight returns how many messages a client has in flight.
func (c *Channel) ClientInFlight(id ClientID) int {
	if cl := c.clients.byID[id]; cl != nil {
		return cl.inFlight
	}
	return 0
}

// EachClient visits the clients in the order of their subscription.
func (c *Channel) EachClient(visit func(ClientStats)) {
	for _, cl := range c.clients.all {
		visit(ClientStats{
			Client: cl.id, ReadyCount: cl.ready, InFlightCount: cl.inFlight,
			MessageCount: cl.messageCount, FinishCount: cl.finishCount, RequeueCount: cl.requeueCount,
		})
	}
}
