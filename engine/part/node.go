package part

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"penstock/engine/base"
	"penstock/engine/dir"
	"penstock/engine/host"
	"penstock/engine/inbox"
	"penstock/engine/meta"
	"penstock/replicate"
	"penstock/segment"
)

// Node is this node of a cluster, as its replicas see it: the store of metadata, the network, the node's lease
// and time, and what is counted for all replicas together. The engine's cluster node embeds it, makes it before
// recovery, and fills in Self and Net when it has joined; Recovery fills in Shortened. None of them changes after that.
// Any goroutine may call the methods that do not say otherwise.
//
// All of it is lost in a crash: the next process joins again and gets all rows from the store.
type Node struct {
	base.Lease // until when this node may serve, and the clock of that

	store *Store
	Log   *slog.Logger
	Rows  meta.Store
	above Above
	Ctx   context.Context // ends when the engine closes
	// The options of the cluster that replicas use; ClusterOptions says what they mean.
	replication     replicate.Config
	preferredLeader func(*meta.Snapshot, meta.PartitionID) replicate.NodeID

	Self      meta.Node
	Net       *host.Network
	Shortened *dir.Shortened

	wg      sync.WaitGroup
	readers chan struct{} // has a value for each range that is being read, at most maxReadCount
	Leaving atomic.Bool   // clusterNode.handOver runs: this node hands over all that it leads
	live    struct {      // LiveNodes' cache; only runTicker uses it
		of    *meta.Snapshot
		nodes []replicate.NodeID
	}

	drops   atomic.Uint64 // copies that were dropped and fetched again; see Replica.discard
	losses  atomic.Uint64 // see replicate.LeaderCounts.Losses
	blocked atomic.Int64  // partitions led here whose Replica.blocked is not 0
	yields  atomic.Uint64 // leaderships handed to a replica because it has more than the shortened log here

	comparingWaits atomic.Uint64 // see logComparing
	isrLogs        isrLogs
	absent         absentCopies
}

// NewNode returns the node of a cluster whose partitions are in s. It has not joined. ctx ends when the engine
// closes.
func NewNode(
	ctx context.Context, s *Store, log *slog.Logger, rows meta.Store, cfg replicate.Config,
	preferred func(*meta.Snapshot, meta.PartitionID) replicate.NodeID, above Above,
) *Node {
	if cfg.MaxSendBytes == 0 || cfg.MaxSendBytes > maxRangeBytes {
		cfg.MaxSendBytes = replicate.DefaultMaxSendBytes
	}
	if cfg.MaxRangeBytes == 0 || cfg.MaxRangeBytes > maxRangeBytes {
		cfg.MaxRangeBytes = replicate.DefaultMaxRangeBytes
	}
	cn := &Node{
		store: s, Log: log, Rows: rows, above: above, Ctx: ctx, replication: cfg, preferredLeader: preferred,
		readers: make(chan struct{}, maxReadCount),
	}
	cn.Begin(s.host.Awake)
	return cn
}

// maxReadCount is how many ranges of old batches are read for followers at the same time.
const maxReadCount = 2

const (
	StoreTimeout  = 5 * time.Second // of one request to the store
	RetryInterval = 200 * time.Millisecond
)

// Above is what replicas ask of the node above them. clusterNode implements it; see its methods for the locks.
type Above interface {
	// ForwardPut queues a put for the node that leads its partition. It is called without a lock.
	ForwardPut(pt *Partition, p *inbox.Put) error
	// Freeze stops what is queued for other nodes of a partition until Reroute. Replica.mu may be held.
	Freeze(pt *Partition)
	// Reroute sends the puts in the inbox of a partition that this node no longer leads to its leader. It is called
	// without a lock, after Freeze.
	Reroute(pt *Partition)
	// Confirm writes what consumers have confirmed, and waits for it. No lock is held.
	Confirm()
	// HasExited says whether the process of a node is known to have ended. Replica.mu may be held.
	HasExited(node replicate.NodeID) bool
	// TryLater has the row of a partition applied again after a while.
	TryLater(topic *meta.Topic, partition uint32)
	// News is raised at every step of a leadership that is handed over.
	News() *base.Notice
}

// Spawn runs f on a goroutine that Close waits for.
func (cn *Node) Spawn(f func()) { cn.store.host.SpawnIn(&cn.wg, f) }

// Pause waits for d, or until the engine closes.
func (cn *Node) Pause(d time.Duration) {
	cn.store.host.Pause(d, cn.Ctx.Done())
}

// member is this node as a member of an ISR: its id, and the disk that it has.
func (cn *Node) member() replicate.Member {
	return replicate.Member{Node: cn.Self.ID, Store: cn.Self.Store}
}

// IsLive says whether the node has a lease, as far as this node has heard from the store.
func (cn *Node) IsLive(node replicate.NodeID) bool {
	snap := cn.Rows.Snapshot()
	n := snap.Nodes[node]
	return n != nil && n.Live
}

// LiveNodes returns the nodes that the store says are alive, sorted. Only runTicker calls it. The result is not changed
// later.
func (cn *Node) LiveNodes() []replicate.NodeID {
	snap := cn.Rows.Snapshot()
	if snap == nil || cn.live.of == snap {
		return cn.live.nodes
	}
	var nodes []replicate.NodeID
	for id, n := range snap.Nodes {
		if n.Live {
			nodes = append(nodes, id)
		}
	}
	slices.Sort(nodes)
	cn.live.of, cn.live.nodes = snap, nodes
	return nodes
}

// trimTo removes the segments that the leader's retention has removed.
func (cn *Node) trimTo(pt *Partition, pos segment.Position) {
	cn.Spawn(func() {
		if at, err := pt.log.SeekPosition(pos); err == nil || errors.Is(err, segment.ErrAtEnd) {
			cn.store.flusher.Trim(&pt.flush, at)
		}
	})
}

// Wait returns when the goroutines of Spawn have ended, or false when hangs says that they hang in the disk.
func (cn *Node) Wait(hangs func() bool) bool { return cn.store.host.Wait(&cn.wg, hangs) }

// Counts are totals over all replicas of a node since it started; Blocked is how many are blocked now.
type Counts struct {
	Dropped        uint64 // copies that were dropped and fetched again
	Losses         uint64 // see replicate.LeaderCounts.Losses
	Blocked        int    // partitions led here that wait for a replica
	Yielded        uint64 // leaderships handed to a replica because it has more than the shortened log here
	ComparingWaits uint64 // leaders that waited long for the logs of others
	Shortened      int    // copies that a recovery shortened, and that are not whole yet
}

// Counts returns what was counted so far. Any goroutine may call it.
func (cn *Node) Counts() Counts {
	return Counts{
		Dropped: cn.drops.Load(), Losses: cn.losses.Load(), Blocked: int(cn.blocked.Load()), Yielded: cn.yields.Load(),
		ComparingWaits: cn.comparingWaits.Load(), Shortened: cn.Shortened.Count(),
	}
}

// Await returns when reached says true. It asks whenever news is raised: see Engine.news. It returns ErrClosed
// when the engine closes, and ctx's error when ctx ends first.
func (cn *Node) Await(ctx context.Context, reached func() bool) error {
	for {
		news := cn.above.News().Next()
		switch {
		case reached():
			return nil
		case cn.Ctx.Err() != nil:
			return base.ErrClosed
		case !cn.store.host.Either(news, ctx.Done()):
			return ctx.Err()
		}
	}
}
