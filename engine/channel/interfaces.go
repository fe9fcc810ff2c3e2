package channel

import (
	"context"
	"sync/atomic"

	"github.com/google/uuid"

	"penstock/engine/base"
	"penstock/engine/core"
	"penstock/segment"
)

// Topic is what a channel needs of its topic. The engine implements it. A channel may hold its lock while it calls the
// methods, except WriteControls and OpenDeadLetters, which wait, and Unused, which shuts the channel.
type Topic interface {
	Name() string
	ID() uuid.UUID
	// Count is the number of partitions, which only grows. Partition returns one of them.
	Count() int
	Partition(n int) Partition
	// Unwatch ends what the engine began when it gave the channel a partition: no events of the partition come any more.
	Unwatch(c *Channel, n int)
	// ServesAny says whether this node's channels may deliver messages of any partition of the topic.
	ServesAny() bool

	// FenceMs is how long ordered channels of a partition that begin in an epoch wait for EvUnfence at most, in ms.
	FenceMs(n int, epoch segment.Epoch) int64
	// Fence asks all nodes whether deliveries of earlier leaders of a partition are still under way. EvUnfence is posted
	// when none is.
	Fence(n int, epoch segment.Epoch)

	// WriteControls writes the same control entries into every partition that this node leads, and returns when they are
	// committed.
	WriteControls(ctx context.Context, controls []core.Control) error
	// OpenDeadLetters finds or makes the dead-letter topic of that name. publish stores messages there, and returns an
	// error or nil for each.
	OpenDeadLetters(ctx context.Context, name string) (
		publish func(context.Context, []base.Outgoing) []error, err error)

	// Unused is called when an ephemeral channel has lost its last consumer.
	Unused(c *Channel)
	// Reconfigured is called when settings came into force here that other leaders may not have yet.
	Reconfigured(c *Channel)
}

// Partition is what a channel sees of a partition of its topic. The partitions of the engine implement it. A
// channel may hold its lock while it calls the methods, except OnlyCarried and ReadRecord, which wait.
type Partition interface {
	Number() uint32
	// Log is the partition's log. It has a lock of its own.
	Log() *segment.Log
	// Ends returns where the partition keeps the ends, exclusive, of its messages: of those that are committed, and of
	// those that no paused topic holds back. A channel reads them for every delivery, so it keeps the pointers.
	Ends() (committed, unpaused *atomic.Uint64)
	// CommittedMark is the end of what is committed of the log.
	CommittedMark() segment.Position
	// Leads says whether control entries can be appended on this node. It may end at any time.
	Leads() bool
	// ServesIn says whether a channel may deliver from here that got the partition in this leader epoch (0: on a single
	// node), and no leader of a later one is known.
	ServesIn(epoch segment.Epoch) bool
	// StateFull says whether count more deferred messages would exceed the limit of the partition or of the node.
	StateFull(count int) bool
	// NewControls returns a function that hands batches of control entries over, one at a time. done hears what became of
	// each: with ErrUnknown if that is not known after a while, unless patient is set. done must not block. A batch is not
	// stored if revoked (nil: never) is set before the committer has it.
	NewControls(revoked *atomic.Bool, patient bool, done func(error)) func([]core.Control) error
	// OnlyCarried lists at most count messages, from the id from on, whose bytes are only in control batches that carry
	// them, and the first id of the log.
	OnlyCarried(from segment.MsgID, count int) ([]core.CarrySource, segment.MsgID)
	// ReadRecord copies a stored message. at is the offset of its batch; 0: the place where it was published.
	ReadRecord(id segment.MsgID, at segment.Offset) (core.CarriedMessage, error)
}
