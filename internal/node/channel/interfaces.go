package channel

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"penstock/internal/node/fold"
	"penstock/internal/node/message"
	"penstock/segment"
)

// Topic is the channel's view of its topic. The engine implements it. A channel may hold Channel.mu while it calls the
// methods, except WriteControls and OpenDeadLetters, which wait, and Unused, which shuts the channel.
type Topic interface {
	Name() string
	ID() uuid.UUID
	// Count is the number of partitions, which only grows. Partition returns one of them.
	Count() int
	Partition(n int) Partition
	// Unwatch stops the events of partition n, which began when the engine gave the partition to the channel.
	Unwatch(c *Channel, n int)
	// ServesAny says whether this node's channels may deliver messages of any partition of the topic.
	ServesAny() bool

	// FenceMs returns for how many ms, at most, ordered channels wait for EvUnfence in partition n when this node
	// begins to lead it in epoch.
	FenceMs(n int, epoch segment.Epoch) int64
	// Fence asks all nodes whether deliveries of earlier leaders of partition n are still under way. When none is,
	// EvUnfence is posted.
	Fence(n int, epoch segment.Epoch)

	// WriteControls writes the same control entries into every partition that this node leads. It returns when they are
	// committed.
	WriteControls(ctx context.Context, controls []fold.Control) error
	// OpenDeadLetters finds or creates the dead-letter topic of that name. publish stores messages there, and returns
	// for each of them an error or nil.
	OpenDeadLetters(ctx context.Context, name string) (
		publish func(context.Context, []message.Outgoing) []error, err error)

	// Unused is called when an ephemeral channel has lost its last consumer.
	Unused(c *Channel)
	// Reconfigured is called when settings took effect here. Other leaders may not have them yet.
	Reconfigured(c *Channel)
}

// Partition is the channel's view of a partition of its topic. Package internal/node/partition implements it. A channel
// may hold Channel.mu while it calls the methods, except OnlyCarried and ReadRecord, which wait.
type Partition interface {
	Number() uint32
	// Log is the partition's log. It has a lock of its own.
	Log() *segment.Log
	// Ends returns the partition's counters of two ends, exclusive: of the committed messages, and of those that no
	// paused topic holds back. A channel keeps the pointers, because it reads the ends for every delivery.
	Ends() (committed, unpaused *atomic.Uint64)
	// CommittedMark returns the end of the committed part of the log.
	CommittedMark() segment.Position
	// Leads says whether this node leads the partition, so that control entries can be appended here. That may end at
	// any time.
	Leads() bool
	// ServesIn says whether a channel that got the partition in this leader epoch (0: on a single node) may still
	// deliver: this node serves the partition, and knows of no leader with a later epoch.
	ServesIn(epoch segment.Epoch) bool
	// RefusesDelay returns why the partition refuses count more messages deferred by delay now, or nil.
	RefusesDelay(count int, delay time.Duration) error
	// NewControls returns a function that appends batches of control entries to the inbox, one at a time: the next one
	// only after done was called for the one before. done gets the outcome. If that is not known after a while, done
	// gets ErrUnknown; with patient, it waits for the outcome. done must not block. A batch is not stored if revoked
	// (nil: never) is set while the batch is still in the inbox.
	NewControls(revoked *atomic.Bool, patient bool, done func(error)) func([]fold.Control) error
	// OnlyCarried returns at most count messages, with ids at or above from, that exist only as copies in control
	// batches, and the first id of the log.
	OnlyCarried(from segment.MsgID, count int) ([]fold.CarrySource, segment.MsgID)
	// ReadRecord returns a copy of a stored message. at is the offset of its batch; 0: the place where it was
	// published.
	ReadRecord(id segment.MsgID, at segment.Offset) (fold.CarriedMessage, error)
}
