package partition

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/internal/node/clock"
	"penstock/internal/node/datadir"
	"penstock/internal/node/errs"
	"penstock/internal/node/inbox"
	"penstock/internal/node/platform"
	"penstock/replicate"
	"penstock/segment"
)

// Env is this node of a cluster as its replicas see it: the metadata store, the network, the node's lease and clock,
// and counters over all replicas. The engine's cluster node embeds it. That node makes it before recovery, and sets
// Self and Net when it has joined; Recovery sets Shortened. These fields do not change after that. Any goroutine may
// call the methods that do not say otherwise.
//
// A crash loses all of it: the next process joins again and gets all rows from the store.
type Env struct {
	clock.Lease // until when this node may serve, and the clock that measures it

	store *Store
	Log   *slog.Logger
	Rows  meta.Store
	above Above
	Ctx   context.Context // ends when the engine closes
	// The cluster options that replicas use. ClusterOptions documents them.
	replication     replicate.Config // of which those of rates may change
	preferredLeader func(*meta.Snapshot, meta.PartitionID) replicate.NodeID

	lagMaxNs, catchUp atomic.Int64 // see rates

	Self      meta.Node
	Net       *platform.Network
	Shortened *datadir.Shortened

	wg      sync.WaitGroup
	readers chan struct{} // semaphore: one value for each range that is being read, at most maxReadCount
	Leaving atomic.Bool   // clusterNode.handOver runs: this node hands over all that it leads
	live    struct {      // the cache of LiveNodes; only runTicker uses it
		of    *meta.Snapshot
		nodes []replicate.NodeID
	}

	drops   atomic.Uint64 // copies that were dropped and fetched again; see Replica.discard
	losses  atomic.Uint64 // see replicate.LeaderCounts.Losses
	blocked atomic.Int64  // partitions led here whose Replica.blocked is not 0
	yields  atomic.Uint64 // leaderships handed to a replica whose log has more than the shortened log here

	comparingWaits atomic.Uint64 // see logComparing
	shortenedAt    atomic.Int64  // see ShortenedFor
	isrLogs        isrLogs
}

// NewEnv returns this node of a cluster. Its partitions are in s. It has not joined the cluster yet. ctx ends when the
// engine closes.
func NewEnv(
	ctx context.Context, s *Store, log *slog.Logger, rows meta.Store, cfg replicate.Config,
	preferred func(*meta.Snapshot, meta.PartitionID) replicate.NodeID, above Above,
) *Env {
	if cfg.MaxSendBytes == 0 || cfg.MaxSendBytes > maxRangeBytes {
		cfg.MaxSendBytes = replicate.DefaultMaxSendBytes
	}
	if cfg.MaxRangeBytes == 0 || cfg.MaxRangeBytes > maxRangeBytes {
		cfg.MaxRangeBytes = replicate.DefaultMaxRangeBytes
	}
	cn := &Env{
		store: s, Log: log, Rows: rows, above: above, Ctx: ctx, replication: cfg, preferredLeader: preferred,
		readers: make(chan struct{}, maxReadCount),
	}
	cn.Retune(&cfg)
	cn.Begin(s.host.Awake)
	return cn
}

// Retune takes LagMaxNs and CatchUpBytesPerSec of a configuration, for the leaders that there are within a tick. Any
// goroutine may call it.
func (cn *Env) Retune(cfg *replicate.Config) {
	cn.lagMaxNs.Store(cmp.Or(cfg.LagMaxNs, replicate.DefaultLagMaxNs))
	cn.catchUp.Store(cfg.CatchUpBytesPerSec)
}

// rates returns what Retune has set last.
func (cn *Env) rates() (lagMaxNs, catchUpBytesPerSec int64) {
	return cn.lagMaxNs.Load(), cn.catchUp.Load()
}

// maxReadCount is how many ranges of old batches this node reads for other replicas at the same time.
const maxReadCount = 2

const (
	StoreTimeout  = 5 * time.Second // limits one request to the metadata store
	RetryInterval = 200 * time.Millisecond
)

// Above lists what replicas need from the cluster node above them. clusterNode implements it.
type Above interface {
	// ForwardPut queues a put for the node that leads its partition. It is called without a lock.
	ForwardPut(pt *Partition, p *inbox.Put) error
	// Freeze stops the forwarder from sending the queued puts of pt until Reroute. Replica.mu may be held.
	Freeze(pt *Partition)
	// Reroute moves the puts from the inbox of a partition that this node no longer leads to the forwarder, which sends
	// them to the leader. It is called after Freeze, without a lock.
	Reroute(pt *Partition)
	// Confirm writes what the consumers of the topic's channels at this node have finished so far, and waits until it is
	// committed, but not for long. No lock is held.
	Confirm(ctx context.Context, topic uuid.UUID)
	// HasExited says whether the last process of a node is known to have ended. Replica.mu may be held.
	HasExited(node replicate.NodeID) bool
	// TryLater makes the worker apply the row of a partition again after a while. It is called without a lock.
	TryLater(topic *meta.Topic, partition uint32)
	// News returns the notice that is raised at every step of a hand-over.
	News() *platform.Notice
}

// Spawn runs f on a new goroutine. Close waits until f returns.
func (cn *Env) Spawn(f func()) { cn.store.host.SpawnIn(&cn.wg, f) }

// Pause waits for d, or until the engine closes.
func (cn *Env) Pause(d time.Duration) {
	cn.store.host.Pause(d, cn.Ctx.Done())
}

// member returns this node as a member of an ISR: its id, and the identity of its data directory.
func (cn *Env) member() replicate.Member {
	return replicate.Member{Node: cn.Self.ID, Store: cn.Self.Store}
}

// IsLive says whether node has a lease, by the newest snapshot that this node has of the metadata store.
func (cn *Env) IsLive(node replicate.NodeID) bool {
	snap := cn.Rows.Snapshot()
	n := snap.Nodes[node]
	return n != nil && n.Live
}

// LiveNodes returns the nodes that the store says are alive, sorted. Only runTicker calls it. The returned slice is not
// changed later.
func (cn *Env) LiveNodes() []replicate.NodeID {
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

// trimTo removes the segments of pt below pos, because the leader's retention has removed them at the leader. It seeks
// and removes on a goroutine of its own.
func (cn *Env) trimTo(pt *Partition, pos segment.Position) {
	cn.Spawn(func() {
		if at, err := pt.log.SeekPosition(pos); err == nil || errors.Is(err, segment.ErrAtEnd) {
			cn.store.flusher.Trim(&pt.flush, at)
		}
	})
}

// Wait waits for the goroutines of Spawn and returns true. It returns false when hangs reports that they hang in the
// disk.
func (cn *Env) Wait(hangs func() bool) bool { return cn.store.host.Wait(&cn.wg, hangs) }

// Counts are totals over all replicas of a node since it started. Blocked and Shortened are the present numbers.
type Counts struct {
	Dropped        uint64 // copies that were dropped and fetched again
	Losses         uint64 // see replicate.LeaderCounts.Losses
	Blocked        int    // partitions led here that wait for a replica that cannot lead, see noteBlocked
	Yielded        uint64 // leaderships handed to a replica whose log has more than the shortened log here
	ComparingWaits uint64 // times that a leader here had to wait for the log of another replica, see logComparing
	Shortened      int    // copies that a recovery shortened and that are not whole yet
}

// Counts returns the present counts. Any goroutine may call it.
func (cn *Env) Counts() Counts {
	return Counts{
		Dropped: cn.drops.Load(), Losses: cn.losses.Load(), Blocked: int(cn.blocked.Load()), Yielded: cn.yields.Load(),
		ComparingWaits: cn.comparingWaits.Load(), Shortened: cn.Shortened.Count(),
	}
}

// Await waits until reached returns true. It calls reached whenever news is raised (see Engine.news). It returns
// ErrClosed when the engine closes, and the error of ctx when ctx ends first.
func (cn *Env) Await(ctx context.Context, reached func() bool) error {
	for {
		news := cn.above.News().Next()
		switch {
		case reached():
			return nil
		case cn.Ctx.Err() != nil:
			return errs.ErrClosed
		case !cn.store.host.Either(news, ctx.Done()):
			return ctx.Err()
		}
	}
}
