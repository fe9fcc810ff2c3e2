package node

import (
	"context"
	"time"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node/channel"
	"penstock/internal/node/health"
	"penstock/internal/node/machine"
)

// membership has the operations that differ between a node of a cluster and a single node: which topics exist, and when
// this node may serve. Engine.members is a *clusterNode in a cluster, and alone otherwise. How a partition commits
// depends on its replica instead (Replica.solo), and who executes an operation on a topic on topic.Env.Cluster.
//
// Any goroutine may call the methods, except those under the headings about recovery, start and end: only Open and
// Close call these.
type membership interface {
	// others says whether there are other nodes, or may be. If so, the disk of this node may hang while the cluster
	// goes on, damaged data can be repaired from other replicas, and the store knows which topics exist.
	others() bool
	// context returns a context that ends when the node closes; that of a single node never ends.
	context() context.Context
	channel.Lease

	// createTopic and deleteTopic return when the change is durable: see Engine.CreateTopic and Engine.DeleteTopic.
	createTopic(ctx context.Context, name string, o TopicOptions) (*Topic, error)
	deleteTopic(ctx context.Context, name string) error

	// Recovery, before any goroutine of the engine runs.

	// noteUnreadable notes a topic directory whose metadata cannot be read.
	noteUnreadable(topic uuid.UUID)
	// opened is called when the partitions of a topic are open.
	opened(t *Topic)

	// The engine's start and end.

	// join runs after recovery and before the commit log takes anything.
	join(ctx context.Context) error
	// start runs last in Open.
	start()
	// leaveCluster hands this node's leaderships over and deregisters the node. leaveBeforeClose does so within
	// ClusterOptions.LeaveTimeout.
	leaveCluster(ctx context.Context) error
	leaveBeforeClose()
	// close runs when the commit log has stopped. If join fails, Open calls close, and none of the other methods of the
	// end.
	close() error

	// diskJudged is called with what each step of the disk watch found. It must not wait.
	diskJudged(v machine.DiskVerdict)

	// Statistics and metadata. A single node has no snapshot, no row of its own, and no tombstones.

	// look returns what the node knows of its cluster; nil on a single node.
	look() *health.Cluster
	describe(out *StorageStats)
	snapshot() *meta.Snapshot
	node() meta.Node
	tombstone(ctx context.Context, key meta.TombstoneKey, until time.Time) error
}

var (
	_ membership = (*clusterNode)(nil)
	_ membership = alone{}
)
