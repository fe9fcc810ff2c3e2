package remote

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node/message"
	"penstock/internal/node/platform"
	"penstock/replicate"
	"penstock/segment"
)

// Env is what Consumers needs of its node.
type Env struct {
	Host       platform.Host
	Peers      *platform.Peers
	Log        *slog.Logger
	Lease      Lease
	Above      Above
	First      uint64                // number of the first leg; no earlier process may have used it
	Level      func() int            // the feature level that is in force
	Snapshot   func() *meta.Snapshot // the known nodes, and whether they are alive
	MsgTimeout func() time.Duration  // of consumers that do not ask for one: Options.MsgTimeout of now
}

// Lease says until when this node may serve, by a clock that also counts the time in which the machine was suspended.
// The cluster node implements it. Its methods take no lock.
type Lease interface {
	// Over says whether at, a time of Now, has passed or this node has no lease. Without a lease nothing may be handed
	// over.
	message.DeadlineClock
	// Now is the time since the node began, in ns.
	Now() int64
	// Leased says whether this node has a lease now. Until returns when the lease ends, by Now.
	Leased() bool
	Until() int64
	// Lapsed says whether this node has no lease now, or had none at some moment after since, a time of Now. If so, the
	// store may have seen the lease end, and a new leader does not wait for deliveries that were on their way to this
	// node at that time.
	Lapsed(since int64) bool
}

// Above is the part of the engine that Consumers calls on behalf of clients of other nodes. The cluster node implements
// it. The caller holds no lock of this package.
type Above interface {
	// Attach attaches a client of another node to a channel of this one. It waits, at most ServeTime, until this node
	// serves partitions of the topic. Sink.Deliver may be called before it returns.
	Attach(topic uuid.UUID, channel string, o message.ConsumerOptions, s message.Sink) (Served, error)
	// Find returns a partition and its topic, or nil if this node does not know the partition.
	Find(id segment.Identity) (Topic, Partition)
}

// Topic is a topic as the client's node sees it. The engine implements it with comparable values. Leader, Partitions
// and NewestEpoch may be called with the lock of a Consumer held; the other methods may wait.
type Topic interface {
	ID() uuid.UUID
	Name() string
	Partitions() int
	// Leader returns the leader of a partition; 0: this node knows of none. Leaders returns the leader of each
	// partition.
	Leader(partition uint32) replicate.NodeID
	Leaders() []replicate.NodeID
	// NewestEpoch returns the newest epoch of a partition that this node has heard of.
	NewestEpoch(partition uint32) segment.Epoch
	// CreateAtLeaders creates a channel at all leaders, and waits until they have committed it.
	CreateAtLeaders(ctx context.Context, channel string) error
	// Recall makes the clients of this node that have permits drop the deliveries of a partition that they have not
	// begun. It does not wait: it returns true once none can begin any more.
	Recall(partition uint32) bool
	// DropUnused removes this node's record of a channel, unless the channel is served or used here.
	DropUnused(channel string)
}

// Partition is a partition that a fence is about: see fencing. The engine's partitions implement it. The caller holds
// no lock of this package.
type Partition interface {
	// NoteFence notes that a leadership of this epoch has begun. Deliveries of older epochs are not handed over any
	// more.
	NoteFence(epoch segment.Epoch)
	// EndFence lets the ordered channels of this node deliver, if it leads the partition in this epoch.
	EndFence(epoch segment.Epoch)
}

// Served is a consumer at its channel, with the methods of *channel.Consumer, where they are documented. They are
// called without the lock of the subscription.
type Served interface {
	Ready(n int) error
	FinishSeen(id message.ID, seen uint64) error
	RequeueSeen(id message.ID, delay time.Duration, seen uint64) error
	TouchSeen(id message.ID, seen uint64) error
	ReturnDelivery(id message.ID, serial uint64)
	StopDelivery()
	HasRoom() bool
	Hold(ms int64)
	Wake()
	InFlight() int
	Close()
	CloseRemote(clean bool)
}
