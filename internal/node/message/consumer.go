package message

import (
	"time"

	"penstock/internal/node/delivery"
)

// HeldSink is a Sink that may queue a delivery before its client gets it. It drops queued deliveries whose Until has
// passed.
type HeldSink interface {
	Sink
	// Drained says whether no delivery with an Until is queued for the client.
	Drained() bool
	// Withdraw drops the queued delivery of a message. It returns false if part of the delivery has been written
	// already, so that the rest may follow.
	Withdraw(id ID) bool
	// Dropped appends to dst the deliveries dropped since the last call, by Withdraw or because their Until had passed.
	Dropped(dst []HeldDelivery) []HeldDelivery
}

// PermitSink is a Sink whose client asks, before it begins to handle a message of an ordered channel, whether it still
// may: the sink passes permits on to it (channel.Consumer.Permit).
type PermitSink interface {
	Sink
	// Recall makes the client drop the deliveries so far of a partition that it has not begun. It does not wait: it
	// returns true once the client has done so, and is called again until then.
	Recall(partition uint32) bool
}

// In an ordered channel, HoldTime is the longest that a delivery may be on its way to a client, and the longest that a
// permit lasts. So it is also the longest that a message stays unavailable after its delivery was lost with a
// connection. HoldDrift is how much two clocks may drift apart during HoldTime.
const (
	HoldTime  = 2 * time.Second
	HoldDrift = HoldTime / 16
)

// QueueSink is a Sink that keeps deliveries until its client takes them.
type QueueSink interface {
	Sink
	// Lost drops the deliveries of a path (Deadline.Origin) that has ended: their messages are delivered again on another
	// path, so that the client must not get these, and they must not take the room of others.
	Lost(origin any)
}

// HeldDelivery identifies a delivery that a HeldSink dropped.
type HeldDelivery struct {
	ID    ID
	Until Deadline
}

// FailureSink is a Sink that learns of failures at another node: a Finish, Requeue or Touch had returned nil, but the
// leader refused it later. Failed must not block and must not call the Consumer.
type FailureSink interface {
	Failed(what FailedCall, id ID, err error)
}

// FailedCall names a method of a Consumer.
type FailedCall uint8

// The methods that can still fail after they have returned nil.
const (
	FailedFinish FailedCall = iota + 1
	FailedRequeue
	FailedTouch
)

// Deadline is the time until which a Sink may hand a delivery to its client. The zero value never passes.
type Deadline struct {
	Clock DeadlineClock
	At    int64 // by Clock

	// Origin and Serial identify the delivery for the engine that set them: Origin is the path on which the delivery
	// came, nil for this node's own channel, and Serial its Delivery.Serial there. A Sink passes them on in its
	// HeldDelivery, compares an Origin only with that of QueueSink.Lost, and does not interpret them.
	Origin any
	Serial uint64
}

// DeadlineClock says whether a time has passed. It is safe for concurrent use and does not block.
type DeadlineClock interface{ Over(at int64) bool }

// Passed says whether the delivery must not reach the client any more. A Sink must call it immediately before it writes
// to the client.
func (d *Deadline) Passed() bool { return d.Clock != nil && d.Clock.Over(d.At) }

// IsZero says whether the delivery may be handed over at any time, as long as its path has not ended.
func (d *Deadline) IsZero() bool { return d.Clock == nil }

// ConsumerStats is a snapshot with the names of NSQ's /stats.
type ConsumerStats struct {
	Label         any
	ReadyCount    int
	InFlightCount int
	MessageCount  uint64
	FinishCount   uint64
	RequeueCount  uint64
	Stopped       bool

	Client delivery.ClientID // number of the consumer in its channel at this node
}

// LatencyRecorder records the time from a message's publish to its Finish. Record is called with a channel's lock held:
// it must be fast, must not block and must not call the engine.
type LatencyRecorder interface {
	Record(ns int64)
}
