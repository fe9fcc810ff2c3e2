package engine

import (
	"context"
	"sync/atomic"

	"penstock/engine/core"
	"penstock/segment"
)

// channelPartition is what a channel sees of a partition of its topic; *partition implements it. No method but Log,
// FencedAbove, VisibleEnd and ServingEpoch may be called per message. A channel may hold its lock while it calls them,
// except OnlyCarried and ReadRecord, which wait.
type channelPartition interface {
	Number() uint32
	// Log is the partition's log. It has a lock of its own.
	Log() *segment.Log
	// VisibleEnd is the end, exclusive, of the messages that channels may deliver now.
	VisibleEnd() segment.MsgID
	// CommittedMark is the end of what is committed of the log.
	CommittedMark() segment.Position
	// Leads says whether control entries can be appended on this node. It may end at any time.
	Leads() bool
	// ServingEpoch is the leader epoch in which channels may deliver from here; 0: they may not, or there are no epochs,
	// on a single node.
	ServingEpoch() segment.Epoch
	// FencedAbove says whether the leader of a later epoch may be delivering.
	FencedAbove(epoch segment.Epoch) bool
	// FenceMs is how long ordered channels that begin in an epoch wait for EvUnfence at most, in ms.
	FenceMs(epoch segment.Epoch) int64
	// Fence asks all nodes whether deliveries of earlier leaders are still under way. EvUnfence is posted when none is.
	Fence(epoch segment.Epoch)
	// StateFull says whether count more deferred messages would exceed the limit of the partition or of the node.
	StateFull(count int) bool
	// NewControls returns a function that hands batches of control entries over, one at a time. done hears what became of
	// each: with ErrUnknown if that is not known after a while, unless patient is set. done must not block. A batch is not
	// stored if revoked (nil: never) is set before the committer has it.
	NewControls(revoked *atomic.Bool, patient bool, done func(error)) func([]core.Control) error
	// OnlyCarried lists at most count messages, from the id from on, whose bytes are only in control batches that carry
	// them, and the first id of the log.
	OnlyCarried(ctx context.Context, from segment.MsgID, count int) ([]core.CarrySource, segment.MsgID, error)
	// ReadRecord copies a stored message. at is the offset of its batch; 0: the place where it was published.
	ReadRecord(id segment.MsgID, at segment.Offset) (core.CarriedMessage, error)
}

var (
	_ channelPartition = (*partition)(nil)
	_ subscriber       = (*Channel)(nil)
)
