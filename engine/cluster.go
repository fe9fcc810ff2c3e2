package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"penstock/engine/host"
	"penstock/engine/meta"
	"penstock/internal/lock"
	"penstock/replicate"
	"penstock/replicate/peer"
	"penstock/replicate/wire"
	"penstock/segment"
)

// ClusterOptions make an engine a node of a cluster. Store and Listener are required; the engine closes both.
type ClusterOptions struct {
	Store    meta.Store
	Listener net.Listener // between nodes
	// Node has what others are told: addresses, host, version. The rest is filled in.
	Node        meta.Node
	Replication replicate.Config
	Replicas    int           // of a new topic; 0: the store's default
	JoinTimeout time.Duration // longest wait for the store at Open; 0: 60 s
	// PreferredLeader says who should lead a partition when nothing stands against it; 0: whoever does. nil: leaderships are not
	// moved back after a node returned.
	PreferredLeader func(*meta.Snapshot, meta.PartitionID) replicate.NodeID
	// LeaveTimeout bounds the handing over of leaderships at Close. 0: 5 s.
	LeaveTimeout time.Duration
}

const (
	tickInterval  = 50 * time.Millisecond
	storeTimeout  = 5 * time.Second
	maxReadCount  = 2 // ranges of the past that are read at once
	retryInterval = 200 * time.Millisecond
	// openRetryInterval is between two tries to open what this node should have a copy of.
	openRetryInterval = time.Second

	balanceInterval = 2 * time.Second
	maxBalanceCount = 16 // leaderships moved per round
	handOverTime    = time.Second
)

// clusterNode is the engine's part in a cluster: what the store says goes to replicas and topics, what the network brings to replicas.
type clusterNode struct {
	e     *Engine
	opts  ClusterOptions
	log   *slog.Logger
	store meta.Store
	self  meta.Node
	net   *host.Network
	began time.Time
	awake time.Duration // Host.Awake at began
	lease atomic.Int64  // until when this node may serve, by now()
	// leaseBegan is since when it had leases without a gap, by now(). extend stores it.
	leaseBegan atomic.Int64

	ctx     context.Context // ends when the engine closes
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	readers chan struct{}
	forward *forwarder
	ops     operations
	remotes remotes

	table atomic.Pointer[map[segment.Identity]*partition] // of all topics, copied on write

	changeMu lock.Mutex[lock.ClusterChange]
	change   *meta.Change // what the worker has not seen
	kick     chan struct{}
	topics   map[uuid.UUID]*Topic // the worker's
	halfMade map[uuid.UUID]string // the worker's: names of topics whose files this process began and did not finish
	leaving  atomic.Bool
	raising  atomic.Bool // raiseLater is at work
	leave    sync.Once
	leaveErr error

	diskWanted    atomic.Uint32 // core.DiskState that the other nodes should know
	reportingDisk atomic.Bool
	evacuating    atomic.Bool

	// Topics that Open found and that Engine.topics does not have: a newer topic has the name, or the cluster deleted the
	// topic and its metadata does not read. start passes them to the worker.
	unlisted []*Topic
	// Directories under topics/ with the name of a UUID whose metadata Open could not read. restoreMetadata looks at them.
	unreadable []uuid.UUID

	shortened *shortenedCopies
	live      struct { // runTicker's
		of    *meta.Snapshot
		nodes []replicate.NodeID
	}

	drops   atomic.Uint64 // copies that were given up and fetched anew; see replica.drop
	losses  atomic.Uint64 // see replicate.LeaderCounts.Losses
	blocked atomic.Int64  // partitions led here whose replica.blocked is not 0
	yields  atomic.Uint64 // leaderships given to a replica with more than this one's shortened log

	comparingWaits atomic.Uint64 // see logComparing

	decoders sync.Pool
	absent   absentCopies
	isrLogs  isrLogs

	exitedMu lock.Mutex[lock.ClusterExited]
	exited   map[replicate.NodeID]bool // their processes ended, and nothing was heard since
}

func newClusterNode(e *Engine) *clusterNode {
	o := *e.opts.Cluster
	if o.JoinTimeout == 0 {
		o.JoinTimeout = time.Minute
	}
	if o.LeaveTimeout == 0 {
		o.LeaveTimeout = 5 * time.Second
	}
	cfg := &o.Replication
	if cfg.MaxSendBytes == 0 || cfg.MaxSendBytes > maxRangeBytes {
		cfg.MaxSendBytes = replicate.DefaultMaxSendBytes
	}
	if cfg.MaxRangeBytes == 0 || cfg.MaxRangeBytes > maxRangeBytes {
		cfg.MaxRangeBytes = replicate.DefaultMaxRangeBytes
	}
	cn := &clusterNode{
		e: e, opts: o, log: e.log.With("node", e.node.NodeID), store: o.Store, began: e.host.Instant(), awake: e.host.Awake(),
		readers: make(chan struct{}, maxReadCount), kick: make(chan struct{}, 1), topics: map[uuid.UUID]*Topic{}, halfMade: map[uuid.UUID]string{}, exited: map[replicate.NodeID]bool{},
		decoders: sync.Pool{New: func() any { return new(wire.Decoder) }},
	}
	cn.ctx, cn.cancel = context.WithCancel(context.Background())
	cn.forward = newForwarder(cn)
	cn.ops.cn, cn.ops.next = cn, e.firstRequest()
	cn.remotes.init(cn)
	cn.absent.cn = cn
	cn.table.Store(&map[segment.Identity]*partition{})
	return cn
}

// now is the time since began in ns, the time in which the whole machine stood still included.
func (cn *clusterNode) now() int64 {
	return int64(cn.e.host.Awake() - cn.awake)
}

// leaseClock is now as the store takes it: see meta.Registration.Clock.
func (cn *clusterNode) leaseClock() time.Time { return cn.began.Add(time.Duration(cn.now())) }

// leased says whether this node may serve just now.
func (cn *clusterNode) leased() bool { return cn.now() < cn.lease.Load() }

// spawn runs f on a goroutine that Close waits for.
func (cn *clusterNode) spawn(f func()) { cn.e.host.SpawnIn(&cn.wg, f) }

// join registers the node and makes the machines of what recovery found. Nothing runs yet. The store knows of the damaged copies before it shows this
// process to an election.
func (cn *clusterNode) join(ctx context.Context, damaged []segment.Identity, all bool) error {
	ctx, cancel := cn.e.host.WithTimeout(ctx, cn.opts.JoinTimeout)
	defer cancel()
	n := cn.opts.Node
	n.Name, n.Store, n.Boot = cn.e.node.NodeID, cn.e.node.StoreID, cn.e.host.NewUUID()
	n.Level, n.StoreLevel = cn.e.opts.MaxLevel, cn.e.DirectoryLevel()
	if n.Peer == "" && cn.opts.Listener != nil {
		n.Peer = cn.opts.Listener.Addr().String()
	}
	self, err := cn.store.Join(ctx, meta.Registration{
		Node: n, Cluster: cn.e.node.Cluster, Import: cn.imports(), Damaged: damaged, AllDamaged: all, Changed: cn.changed,
		Founding: cn.foundingLevel(), Raise: cn.e.raiseDirectory,
		Clock: cn.leaseClock, Lease: func(until time.Time) { cn.extend(int64(until.Sub(cn.began))) },
	})
	if err != nil {
		return fmt.Errorf("engine: the node could not join the cluster: %w", err)
	}
	cn.self = self
	snap := cn.store.Snapshot()
	if err := cn.e.node.adopt(cn.e.disk, snap.Cluster); err != nil {
		return err
	}
	cn.e.level.Store(int32(min(snap.FeatureLevel(), cn.e.DirectoryLevel())))
	if err := cn.e.restoreMetadata(snap); err != nil {
		return err
	}
	if err := cn.listUnnamed(snap); err != nil {
		return err
	}
	for _, pt := range cn.e.partitionList() {
		if pt.t.quarantined {
			continue
		}
		if err := pt.rep.open(pt.recovered); err != nil {
			// It can be filled anew from another replica, but not lead.
			cn.log.Error("a copy of a partition cannot be read from its beginning: it does not take part", "topic", pt.t.name, "partition", pt.number, "error", err)
			pt.rep.closed = true
		}
	}
	cn.net, err = cn.e.host.Listen(peer.Options{Self: self, Cluster: snap.Cluster, Listener: cn.opts.Listener, Handler: cn, Logger: cn.e.log})
	return err
}

// imports are the topics of a directory that was a single node's.
func (cn *clusterNode) imports() (all []meta.ImportedTopic) {
	if cn.e.node.Cluster != uuid.Nil {
		return nil
	}
	for _, t := range cn.e.topics {
		im := meta.ImportedTopic{Topic: meta.Topic{ID: t.uuid, Name: t.name, Partitions: len(t.partitions()), CreatedNs: t.created, Settings: t.Settings().Stored()}}
		im.Topic.Settings.MinISR = 0 // one node says nothing of a cluster's replicas
		for _, pt := range t.partitions() {
			epoch := segment.Epoch(0)
			if pt.machine != nil {
				epoch = pt.machine.State().Epoch
			}
			im.Epochs = append(im.Epochs, epoch)
		}
		all = append(all, im)
	}
	return all
}

// extend takes a lease from the store; until is by now(). If the last one is over, the store may have seen it end: a new
// span of service begins. leaseBegan is stored first, so that whoever sees the new lease sees where it began.
func (cn *clusterNode) extend(until int64) {
	for old := cn.lease.Load(); until > old; old = cn.lease.Load() {
		if now := cn.now(); now >= old {
			cn.leaseBegan.Store(now)
		}
		if cn.lease.CompareAndSwap(old, until) {
			return
		}
	}
}

// start begins to work on what the store says and to keep time.
func (cn *clusterNode) start() {
	for _, t := range append(cn.e.Topics(), cn.unlisted...) {
		cn.topics[t.uuid] = t
		cn.addToTable(t.partitions())
	}
	cn.spawn(cn.work)
	cn.spawn(cn.runTicker)
	if cn.opts.PreferredLeader != nil {
		cn.spawn(cn.balance)
	}
}

// changed collects what the store says for the worker.
func (cn *clusterNode) changed(ch *meta.Change) {
	cn.changeMu.Lock()
	if cn.change == nil {
		own := *ch
		own.Partitions, own.Topics, own.Nodes = slices.Clone(ch.Partitions), slices.Clone(ch.Topics), slices.Clone(ch.Nodes)
		cn.change = &own
	} else {
		c := cn.change
		c.Snapshot = ch.Snapshot
		c.Partitions, c.Topics, c.Nodes = append(c.Partitions, ch.Partitions...), append(c.Topics, ch.Topics...), append(c.Nodes, ch.Nodes...)
	}
	cn.changeMu.Unlock()
	select {
	case cn.kick <- struct{}{}:
	default:
	}
}

func (cn *clusterNode) work() {
	first := true
	for cn.e.host.Either(cn.kick, cn.ctx.Done()) {
		cn.changeMu.Lock()
		ch := cn.change
		cn.change = nil
		cn.changeMu.Unlock()
		if ch != nil {
			cn.apply(ch, first)
			first = false
		}
	}
}

func (cn *clusterNode) apply(ch *meta.Change, first bool) {
	cn.net.SetNodes(ch.Snapshot.Nodes)
	cn.learnLevel(ch.Snapshot)
	if first {
		for _, id := range sortedIDs(ch.Snapshot.Topics) {
			cn.applyTopic(ch.Snapshot, id)
		}
		for _, id := range sortedIDs(cn.topics) {
			cn.applyTopic(ch.Snapshot, id)
		}
		for _, id := range sortedPartitions(ch.Snapshot.Partitions) {
			cn.applyRow(ch.Snapshot, id)
		}
	}
	for _, id := range ch.Topics {
		cn.applyTopic(ch.Snapshot, id)
	}
	for _, id := range ch.Partitions {
		cn.applyRow(ch.Snapshot, id)
	}
	for _, id := range ch.Nodes {
		if n := ch.Snapshot.Nodes[id]; id != cn.self.ID && n != nil && !n.Live {
			cn.peerDown(id)
		}
	}
	if n := ch.Snapshot.Nodes[cn.self.ID]; n != nil && n.Draining && !cn.leaving.Load() {
		cn.spawn(func() { _ = cn.handOver(cn.ctx) })
	}
	cn.forward.wake()
	cn.remotes.refresh()
}

// applyTopic makes this node's view of a topic what the store says.
func (cn *clusterNode) applyTopic(snap *meta.Snapshot, id uuid.UUID) {
	t, mt := cn.topics[id], snap.Topics[id]
	if t != nil && mt != nil {
		cn.e.showTopic(t)
		t.learnSettings(mt)
	}
	switch {
	case mt != nil && t == nil:
		t, err := cn.e.makeReplicas(snap, mt)
		if err != nil {
			cn.log.Error("a topic of the cluster could not be opened on this node; it is tried again", "topic", mt.Name, "error", err)
			cn.halfMade[id] = mt.Name
			cn.tryLater(mt)
			return
		}
		delete(cn.halfMade, id)
		cn.topics[id] = t
		cn.addToTable(t.partitions())
	case mt != nil && mt.Partitions > t.Partitions():
		if err := cn.e.expandTopic(snap, mt, t); err != nil {
			cn.log.Error("new partitions of a topic could not be opened on this node; it is tried again", "topic", mt.Name, "error", err)
			cn.tryLater(mt)
		}
	case mt == nil && t == nil && snap.Deleted[id]:
		if name, ok := cn.halfMade[id]; ok && cn.e.poisoned.Load() == nil { // as in dropTopic
			delete(cn.halfMade, id)
			cn.spawn(func() { cn.e.trashFiles(id, name, func() {}) })
		}
	case mt == nil && t != nil && snap.Deleted[id]:
		delete(cn.topics, id)
		cn.removeFromTable(id)
		cn.e.dropTopic(t)
	case mt == nil && t != nil:
		// Absent metadata deletes nothing: the bytes stay where they are, and nobody sees them.
		cn.log.Warn("the cluster does not know a topic of this node's data directory: it is kept and not served", "topic", t.name, "uuid", id)
		delete(cn.topics, id)
		cn.removeFromTable(id)
		cn.e.hideTopic(t)
	}
}

// applyRow passes a partition's row on.
func (cn *clusterNode) applyRow(snap *meta.Snapshot, id meta.PartitionID) {
	pt, row := cn.partition(id), snap.Partitions[id]
	if pt == nil || row == nil {
		return
	}
	mine := slices.Contains(row.State.Replicas, cn.self.ID)
	if mine && pt.rep.isTearingDown() {
		cn.tryLater(snap.Topics[id.Topic], id.Partition)
		return
	}
	if mine && !pt.rep.present() {
		switch err := cn.e.openReplica(pt); {
		case errors.Is(err, ErrClosed):
			return
		case err != nil:
			cn.log.Error("a copy of a partition could not be opened; it is tried again", "topic", pt.t.name, "partition", pt.number, "error", err)
			cn.tryLater(snap.Topics[id.Topic], id.Partition)
			return
		}
	}
	pt.rep.learn(row)
	if !mine && pt.rep.present() {
		cn.log.Info("a copy of a partition is not needed any more", "topic", pt.t.name, "partition", pt.number)
		pt.rep.retire()
	}
	cn.removeIfUnneeded(snap, pt, row)
}

// tryLater does again what could not be opened, on a full disk say: the store has no reason to speak of it again. Without partitions it is
// about all of the topic.
func (cn *clusterNode) tryLater(mt *meta.Topic, partitions ...uint32) {
	if mt == nil {
		return
	}
	ch := &meta.Change{Topics: []uuid.UUID{mt.ID}}
	for n := range uint32(mt.Partitions) {
		if len(partitions) == 0 || slices.Contains(partitions, n) {
			ch.Partitions = append(ch.Partitions, meta.PartitionID{Topic: mt.ID, Partition: n})
		}
	}
	cn.spawn(func() {
		cn.pause(openRetryInterval)
		if ch.Snapshot = cn.store.Snapshot(); cn.ctx.Err() == nil && ch.Snapshot != nil {
			cn.changed(ch)
		}
	})
}

func (cn *clusterNode) partition(id meta.PartitionID) *partition { return (*cn.table.Load())[id] }

func (cn *clusterNode) addToTable(parts []*partition) {
	old := *cn.table.Load()
	table := make(map[segment.Identity]*partition, len(old)+len(parts))
	for id, pt := range old {
		table[id] = pt
	}
	for _, pt := range parts {
		table[pt.identity()] = pt
	}
	cn.table.Store(&table)
}

func (cn *clusterNode) removeFromTable(topic uuid.UUID) {
	old := *cn.table.Load()
	table := make(map[segment.Identity]*partition, len(old))
	for id, pt := range old {
		if id.Topic != topic {
			table[id] = pt
		}
	}
	cn.table.Store(&table)
}

// runTicker lets the machines see the time pass.
func (cn *clusterNode) runTicker() {
	for cn.e.host.Pause(tickInterval, cn.ctx.Done()) {
		cn.e.host.ReadAwake()
		lease := cn.lease.Load()
		live := cn.liveNodes()
		for _, pt := range cn.e.partitionList() {
			if pt.rep != nil {
				pt.rep.tick(lease, live)
			}
		}
		cn.forward.tick()
		cn.remotes.tick()
	}
}

// reportDamaged tells the store whether a copy can be read; it repeats itself until the store has heard.
func (cn *clusterNode) reportDamaged(pt *partition, why error) {
	cn.spawn(func() {
		for cn.ctx.Err() == nil {
			ctx, cancel := cn.e.host.WithTimeout(cn.ctx, storeTimeout)
			err := cn.store.ReportDamaged(ctx, pt.identity(), cn.member(), why != nil)
			cancel()
			if err == nil || errors.Is(err, meta.ErrNotFound) {
				return
			}
			cn.pause(retryInterval)
		}
	})
}

func (cn *clusterNode) pause(d time.Duration) {
	cn.e.host.Pause(d, cn.ctx.Done())
}

// trimTo removes what the leader's retention has removed.
func (cn *clusterNode) trimTo(pt *partition, pos segment.Position) {
	cn.spawn(func() {
		if at, err := pt.log.SeekPosition(pos); err == nil || errors.Is(err, segment.ErrAtEnd) {
			cn.e.flusher.trim(pt, at)
		}
	})
}

// lingerTime is how long no put may have come from other nodes before one that has led leaves them.
const lingerTime = 50 * time.Millisecond

// linger waits until the others have heard who leads now. Until then they send their puts here, are told to send them elsewhere, and do: if this
// process ended first, they would not know what became of them.
func (cn *clusterNode) linger(ctx context.Context) {
	led := false
	for _, pt := range cn.e.partitionList() {
		led = led || pt.rep != nil && pt.rep.hasLed()
	}
	for begin := cn.now(); led && cn.now()-max(begin, cn.forward.lastRemotePut.Load()) < int64(lingerTime); {
		if cn.sleep(ctx, lingerTime/10) != nil {
			return
		}
	}
}

// close ends everything that talks to others.
func (cn *clusterNode) close() error {
	cn.cancel()
	var err error
	if cn.net != nil {
		cn.net.Close()
	} else if cn.opts.Listener != nil {
		err = cn.opts.Listener.Close()
	}
	cn.forward.close()
	cn.ops.close()
	cn.remotes.close()
	if !cn.e.host.Wait(&cn.wg, cn.e.disks.hangs) {
		err = errors.Join(err, ErrDiskHung)
	}
	return errors.Join(err, cn.store.Close())
}

// Snapshot is what the cluster agrees on; nil on a single node.
func (e *Engine) Snapshot() *meta.Snapshot {
	if e.cluster == nil {
		return nil
	}
	return e.cluster.store.Snapshot()
}

// Node is this node as the cluster knows it; the zero Node on a single node.
func (e *Engine) Node() meta.Node {
	if e.cluster == nil {
		return meta.Node{}
	}
	return e.cluster.self
}

// Tombstone hides a node from the lookups of a topic until then, in the whole cluster.
func (e *Engine) Tombstone(ctx context.Context, key meta.TombstoneKey, until time.Time) error {
	if e.cluster == nil {
		panic("BUG: engine: a tombstone on a single node")
	}
	return e.cluster.store.Tombstone(ctx, key, until)
}
