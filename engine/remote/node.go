package remote

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"penstock/engine/base"
	"penstock/engine/host"
	"penstock/engine/meta"
	"penstock/replicate"
	"penstock/segment"
)

// Node is what Consumers needs of its node.
type Node struct {
	Host       host.Host
	Peers      *host.Peers
	Log        *slog.Logger
	Lease      Lease
	Above      Above
	First      uint64                // number of the first leg; no process before may have used it
	Level      func() int            // the feature level that is in force
	Snapshot   func() *meta.Snapshot // which nodes there are, and whether they are alive
	MsgTimeout time.Duration         // of consumers that ask for none: Options.MsgTimeout
}

// Lease is until when this node may serve, by a clock that counts the time in which the machine was suspended. The
// cluster node implements it. Its methods take no lock.
type Lease interface {
	// Over says whether a time of Now has passed, or this node has no lease: without one nothing may be handed over.
	base.DeadlineClock
	// Now is the time since the node began, in ns.
	Now() int64
	// Leased says whether this node has a lease now. Until is when it ends, by Now.
	Leased() bool
	Until() int64
	// Lapsed says whether this node has no lease, or has had none at some moment after since, a time of Now. If so, the
	// store may have seen its lease end, and a new leader does not wait for what was under way to this node then.
	Lapsed(since int64) bool
}

// Above is what Consumers asks of the engine for clients of other nodes. The cluster node implements it. It is called
// without a lock of this package.
type Above interface {
	// Attach attaches a client of another node to a channel of this one. It waits, at most ServeTime, until this node
	// serves partitions of the topic. Sink.Deliver may be called before it returns.
	Attach(topic uuid.UUID, channel string, o base.ConsumerOptions, s base.Sink) (Served, error)
	// Find returns a partition and its topic; nil if this node does not know it.
	Find(id segment.Identity) (Topic, Partition)
}

// Topic is a topic as the node of its clients sees it. The engine implements it with values that can be compared. The
// lock of a Consumer may be held when Leader, Partitions and NewestEpoch are called; the others may wait.
type Topic interface {
	ID() uuid.UUID
	Name() string
	Partitions() int
	// Leader returns the node that leads a partition; 0: this node knows of none. Leaders returns that of each partition.
	Leader(partition uint32) replicate.NodeID
	Leaders() []replicate.NodeID
	// NewestEpoch is the newest epoch of a partition that this node has heard of.
	NewestEpoch(partition uint32) segment.Epoch
	// CreateAtLeaders creates a channel at all leaders. It waits until they have committed it.
	CreateAtLeaders(ctx context.Context, channel string) error
	// DropUnused removes this node's record of a channel, unless the channel is served or used here.
	DropUnused(channel string)
}

// Partition is a partition that is fenced: see fencing. The engine's partitions implement it. No lock of this package
// is held when it is called.
type Partition interface {
	// NoteFence remembers that a leader of this epoch has begun: what older ones delivered is not handed over any more.
	NoteFence(epoch segment.Epoch)
	// EndFence lets the ordered channels of this node deliver, if it leads the partition in this epoch.
	EndFence(epoch segment.Epoch)
}

// Served is a consumer at its channel: *channel.Consumer, whose methods say what each does. The lock of a subscription
// is not held when they are called.
type Served interface {
	Ready(n int) error
	FinishSeen(id base.ID, seen uint64) error
	RequeueSeen(id base.ID, delay time.Duration, seen uint64) error
	TouchSeen(id base.ID, seen uint64) error
	ReturnDelivery(id base.ID, serial uint64)
	StopDelivery()
	HasRoom() bool
	Hold(ms int64)
	Wake()
	InFlight() int
	Close()
	CloseRemote(clean bool)
}
