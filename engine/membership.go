package engine

import (
	"context"
	"time"

	"github.com/google/uuid"

	"penstock/engine/core"
	"penstock/engine/meta"
	"penstock/replicate/wire"
	"penstock/segment"
)

// membership is what depends on whether this node is one of several: who knows the topics, who carries out an
// operation, and when this node may serve. Engine.members is a *clusterNode in a cluster, and alone otherwise. How a
// partition commits does not depend on it but on its replica (Replica.solo).
//
// Any goroutine may call the methods, except those of recovery and of the engine's start and end, which Open and Close
// call.
type membership interface {
	// others says whether there are other nodes, or may be: then a caller may not wait for this node's disk, what is
	// damaged can be repaired, and the store knows which topics exist.
	others() bool
	// context ends when there is nobody left to wait for; that of a single node never does.
	context() context.Context
	// Leased says whether consumers may settle messages here now: no other node delivers them.
	Leased() bool

	// createTopic, deleteTopic and configureTopic return when the change is durable: see Engine.CreateTopic,
	// Engine.DeleteTopic and Topic.Configure.
	createTopic(ctx context.Context, name string, partitions int) (*Topic, error)
	deleteTopic(ctx context.Context, name string) error
	configureTopic(ctx context.Context, t *Topic, s TopicSettings) (TopicSettings, error)
	// createChannel creates a channel, which is not ephemeral, at the leaders of all partitions.
	createChannel(ctx context.Context, t *Topic, name string) error
	deleteChannel(ctx context.Context, t *Topic, name string) error
	// gather carries out op in the partitions that only selects (nil: all), on whichever nodes lead them, and passes the
	// results to take (nil: nobody wants them).
	gather(
		ctx context.Context, t *Topic, op wire.Operation, only func(partition uint32) bool, take func([]byte) error,
	) error
	// closeTopic ends the consumers that this node has at other nodes' leaders of t.
	closeTopic(t *Topic, why error)

	// Recovery, before any goroutine of the engine runs.

	// noteUnreadable is told of a directory of a topic whose metadata cannot be read.
	noteUnreadable(topic uuid.UUID)
	// opened is told of a topic whose partitions are open.
	opened(t *Topic)

	// The engine's start and end.

	// join runs after recovery and before the commit log takes anything.
	join(ctx context.Context) error
	// start runs last in Open.
	start()
	// leaveCluster hands over what this node leads. leaveBeforeClose does so within a limit of its own.
	leaveCluster(ctx context.Context) error
	leaveBeforeClose()
	// close runs when the commit log has stopped. If join fails, it runs without the rest.
	close() error

	// diskJudged is told what the watch over the disk found.
	diskJudged(v core.DiskVerdict)

	// What is shown. A single node has no snapshot, no row of its own, and no tombstones.

	describe(out *StorageStats)
	remoteStats() RemoteStats
	snapshot() *meta.Snapshot
	node() meta.Node
	tombstone(ctx context.Context, key meta.TombstoneKey, until time.Time) error
	verifySome(ctx context.Context, t *Topic, partition uint32, at segment.Offset) (*Verified, error)
}

var (
	_ membership = (*clusterNode)(nil)
	_ membership = alone{}
)
