package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"penstock/internal/lock"
	"penstock/internal/meta"
	"penstock/internal/node/diskwatch"
	"penstock/internal/node/errs"
	"penstock/internal/node/fanout"
	"penstock/internal/node/forward"
	"penstock/internal/node/health"
	"penstock/internal/node/partition"
	"penstock/internal/node/platform"
	"penstock/internal/node/remote"
	"penstock/replicate"
	"penstock/replicate/peer"
	"penstock/replicate/wire"
)

// ClusterOptions make an engine a node of a cluster. Store and Listener are required; the engine closes both.
type ClusterOptions struct {
	Store    meta.Store
	Listener net.Listener // accepts the connections of other nodes
	Trust    peer.Trust   // what nodes prove to each other; zero: nothing, and Listener must be out of strangers' reach
	// Node has the addresses, host and version that the other nodes are told. The engine fills in the other fields.
	Node        meta.Node
	Replication replicate.Config // zero fields: the defaults of package replicate
	Replicas    int              // replication factor of a new topic; 0: the store's default
	JoinTimeout time.Duration    // how long Open waits for the store; 0: 60 s
	// PreferredLeader returns the node that should lead a partition if it can; 0: no preference. It must not
	// block or change the snapshot, and any goroutine may call it. nil: leaderships are not moved back after a node
	// has returned.
	PreferredLeader func(*meta.Snapshot, meta.PartitionID) replicate.NodeID
	// LeaveTimeout bounds how long Close waits for leaderships to be handed over. 0: 5 s.
	LeaveTimeout time.Duration
	// StoreNodes has the names (Options.NodeID) of the nodes that run Store, if nodes of the cluster do. The cluster is
	// not healthy before all of them have joined. nil: the store runs elsewhere.
	StoreNodes []string
	// StoreRenewed is where the files of this node's member of Store are kept that were of an older state at this start,
	// so that the member was added anew. Empty: there were none.
	StoreRenewed string
	// StoreState returns what is known of the store besides whether it answers. It must not block, and any goroutine may
	// call it. nil: nothing is.
	StoreState func() health.Store
	// MaxHandshakes bounds the connections from other nodes whose handshake is not over, see peer.Options. 0: 64.
	MaxHandshakes int
}

const (
	tickInterval = 50 * time.Millisecond
	// openRetryInterval is the pause between two attempts to open a copy of a partition.
	openRetryInterval = time.Second

	balanceInterval = 2 * time.Second
	maxBalanceCount = 16 // leaderships that balance hands over per round
)

// clusterNode is the engine's part in a cluster. It passes the store's rows to topics and replicas (work), frames of
// other nodes to replicas and the packages that serve requests (Frames), and time to replicas (runTicker).
//
// The store calls changed, which collects news under changeMu. The worker, the goroutine of work, applies them.
// exitedMu guards what is below it. A crash loses everything here: the next process joins again and gets all rows from
// the store.
type clusterNode struct {
	*partition.Env

	e     *Engine
	opts  ClusterOptions
	began time.Time // by platform.Instant, when the node was made; it stands for the zero of Now

	cancel  context.CancelFunc
	forward *forward.Forwarder
	peers   platform.Peers
	listens atomic.Pointer[platform.Network] // Net, for the store's goroutines; nil before join has set it
	ops     *fanout.Operations
	remotes *remote.Consumers
	absent  absentCopies

	topics clusterTopics

	changeMu lock.Mutex[lock.ClusterChange]
	change   *meta.Change  // news that the worker has not applied; nil: none
	kick     chan struct{} // one value: change is set
	raising  atomic.Bool   // a goroutine of raiseLater runs
	leave    sync.Once
	leaveErr error // the result of the first leaveCluster

	disk *diskwatch.Member

	// What join found out of the past, see cluster_lives.go. boot and address are those of this process; they do not
	// change after join has set them.
	boot           uuid.UUID
	address        string
	olderDirectory atomic.Bool  // all copies were shortened, because the node ran on another directory last
	olderMetadata  atomic.Int64 // partitions whose rows were older than this node's data
	// What the row says of the directory, as far as this process wrote it: see cluster_data.go. Any goroutine.
	logged       atomic.Uint64 // a group of the commit log
	unknownInRow atomic.Int64  // how many topics the cluster does not know

	decoders sync.Pool // of *wire.Decoder; Frames uses one for each burst

	exitedMu lock.Mutex[lock.ClusterExited]
	// Nodes whose process has ended, and that have not connected since, with the time by Now at which it was seen to end.
	exited map[replicate.NodeID]int64
	heard  map[replicate.NodeID]heardOf // see listen
	clocks clockWatch                   // see cluster_clocks.go
}

// newClusterNode makes the cluster node of an engine that opens. It starts no goroutine and asks no other node: join
// and start do that.
func newClusterNode(e *Engine) *clusterNode {
	o := *e.opts.Cluster
	if o.JoinTimeout == 0 {
		o.JoinTimeout = time.Minute
	}
	log := e.log.With("node", e.node.NodeID())
	cn := &clusterNode{
		e: e, opts: o, began: e.host.Instant(), kick: make(chan struct{}, 1),
		exited: map[replicate.NodeID]int64{}, heard: map[replicate.NodeID]heardOf{},
		decoders: sync.Pool{New: func() any { return new(wire.Decoder) }},
	}
	ctx, cancel := context.WithCancel(context.Background())
	cn.Env, cn.cancel = partition.NewEnv(ctx, e.store, log, o.Store, o.Replication, o.PreferredLeader, cn), cancel
	cn.peers = platform.Peers{Ctx: cn.Ctx, Spawn: cn.Spawn}
	cn.disk = cn.newDiskMember()
	cn.forward = cn.newForwarder()
	cn.ops = fanout.New(fanout.Env{
		Host: e.host, Peers: &cn.peers, Timeout: e.publishTimeout, News: &e.news, First: e.firstRequest(),
		Level: e.Level, Execute: cn.execute,
	})
	cn.remotes = remote.New(remote.Env{
		Host: e.host, Peers: &cn.peers, Log: cn.Log, Lease: &cn.Lease, Above: cn, First: e.firstRequest(), Level: e.Level,
		Snapshot: cn.snapshot, MsgTimeout: func() time.Duration { return e.current().MsgTimeout },
	})
	cn.topics.e, cn.topics.cn = e, cn
	cn.topics.byID, cn.topics.halfMade = map[uuid.UUID]*Topic{}, map[uuid.UUID]string{}
	cn.topics.table.Store(new(meta.Rows[placed]))
	return cn
}

func (cn *clusterNode) others() bool             { return true }
func (cn *clusterNode) context() context.Context { return cn.Ctx }
func (cn *clusterNode) snapshot() *meta.Snapshot { return cn.Rows.Snapshot() }
func (cn *clusterNode) node() meta.Node          { return cn.Self }

func (cn *clusterNode) tombstone(ctx context.Context, key meta.TombstoneKey, until time.Time) error {
	return cn.Rows.Tombstone(ctx, key, until)
}

func (cn *clusterNode) noteUnreadable(topic uuid.UUID) {
	cn.topics.unreadable = append(cn.topics.unreadable, topic)
}

func (cn *clusterNode) opened(*Topic) {} // syncChannels makes the channels once the store has said who leads

// leaseClock returns the present time in the form that the store expects: see meta.Registration.Clock.
func (cn *clusterNode) leaseClock() time.Time { return cn.began.Add(time.Duration(cn.Now())) }

// join registers the node in the store, and opens the replicas that recovery found. No goroutine of the engine runs
// yet. The registration also names the damaged copies, so that the store knows of them before this process can take
// part in an election.
func (cn *clusterNode) join(ctx context.Context) error {
	damaged, all := cn.e.store.DamagedCopies()
	ctx, cancel := cn.e.host.WithTimeout(ctx, cn.opts.JoinTimeout)
	defer cancel()
	n := cn.opts.Node
	n.Name, n.Store, n.Boot = cn.e.node.NodeID(), cn.e.node.StoreID(), cn.e.host.NewUUID()
	n.Level, n.StoreLevel, n.Logged = cn.e.opts.MaxLevel, cn.e.DirectoryLevel(), cn.e.logEnd
	if n.Peer == "" && cn.opts.Listener != nil {
		n.Peer = cn.opts.Listener.Addr().String()
	}
	cn.boot, cn.address = n.Boot, n.Peer
	self, err := cn.Rows.Join(ctx, meta.Registration{
		Node: n, Cluster: cn.e.node.Cluster(), Import: cn.topics.imports(), Damaged: damaged, AllDamaged: all,
		Changed: cn.changed, Founding: cn.foundingLevel(), Raise: cn.e.node.Raise,
		Life: cn.life, Enter: cn.enter, Holder: cn.holder, Replaced: cn.End, Reaches: cn.reaches,
		Seen: cn.seenBefore(), Epochs: cn.logEpochs(),
		Older: func(partitions int) { cn.olderMetadata.Store(int64(partitions)) },
		Clock: cn.leaseClock, Lease: func(until time.Time) { cn.Extend(int64(until.Sub(cn.began))) },
	})
	if err != nil {
		return fmt.Errorf("engine: the node could not join the cluster: %w", err)
	}
	cn.Self = self
	cn.logged.Store(self.Logged)
	snap := cn.Rows.Snapshot()
	if err := cn.e.node.Adopt(snap.Cluster); err != nil {
		return err
	}
	cn.e.store.SetFeature(min(snap.FeatureLevel(), cn.e.DirectoryLevel()))
	if err := cn.topics.restoreMetadata(snap); err != nil {
		return err
	}
	if err := cn.ListUnnamed(snap); err != nil {
		return err
	}
	for _, pt := range cn.e.store.Partitions() {
		if pt.Topic().Quarantined {
			continue
		}
		pt.Replica().OpenRecovered()
	}
	cn.Net, err = cn.e.host.Listen(
		peer.Options{
			Self: *peerOf(&self), Cluster: snap.Cluster, Listener: cn.opts.Listener, Trust: cn.opts.Trust, Handler: cn,
			Logger: cn.e.log, MaxHandshakeCount: cn.opts.MaxHandshakes,
		})
	cn.peers.Self, cn.peers.Network = self.ID, cn.Net
	if err == nil {
		cn.listens.Store(cn.Net)
	}
	return err
}

// reaches says whether this node has a connection to another one: none, until it listens.
func (cn *clusterNode) reaches(node replicate.NodeID) bool {
	n := cn.listens.Load()
	return n != nil && n.Connected(node)
}

// start passes the topics that Open found to the worker, and starts the worker, the ticker and the balancer.
func (cn *clusterNode) start() {
	for _, t := range append(cn.e.catalog.Topics(), cn.topics.unlisted...) {
		cn.topics.add(t)
	}
	cn.Spawn(cn.work)
	cn.Spawn(cn.runTicker)
	cn.Spawn(cn.keepPast)
	if cn.opts.PreferredLeader != nil {
		cn.Spawn(cn.balance)
	}
}

// changed merges ch into the news that the worker has not applied yet, and wakes the worker. It does not block. The
// store calls it after it has replaced its snapshot; tryLater calls it without a snapshot in ch. changed then reads the
// store's newest snapshot with changeMu held, so that it is not older than the one it replaces.
func (cn *clusterNode) changed(ch *meta.Change) {
	cn.changeMu.Lock()
	if ch.Snapshot == nil {
		ch.Snapshot = cn.Rows.Snapshot()
	}
	if cn.change == nil {
		own := *ch
		own.Partitions, own.Topics, own.Nodes = slices.Clone(ch.Partitions), slices.Clone(ch.Topics), slices.Clone(ch.Nodes)
		cn.change = &own
	} else {
		c := cn.change
		c.Snapshot = ch.Snapshot
		c.Partitions, c.Topics, c.Nodes = append(c.Partitions, ch.Partitions...),
			append(c.Topics, ch.Topics...), append(c.Nodes, ch.Nodes...)
	}
	cn.changeMu.Unlock()
	platform.Wake(cn.kick)
}

// work is the worker: the only goroutine that applies changes of the store. The first change that it applies covers all
// topics and partitions.
func (cn *clusterNode) work() {
	first := true
	for cn.e.host.Either(cn.kick, cn.Ctx.Done()) {
		cn.changeMu.Lock()
		ch := cn.change
		cn.change = nil
		cn.changeMu.Unlock()
		if ch != nil {
			if cn.apply(ch, first); first {
				cn.Spawn(cn.keepData)
			}
			first = false
		}
	}
}

// apply applies a change of the store. With first it also applies everything else in the snapshot, and each topic that
// Open found, whether the snapshot has it or not. Only the worker calls it.
func (cn *clusterNode) apply(ch *meta.Change, first bool) {
	cn.Net.SetNodes(peersOf(ch.Snapshot))
	cn.learnLevel(ch.Snapshot)
	if first {
		for _, id := range sortedIDs(ch.Snapshot.Topics) {
			cn.topics.applyTopic(ch.Snapshot, id)
		}
		for _, id := range sortedIDs(cn.topics.byID) {
			cn.topics.applyTopic(ch.Snapshot, id)
		}
		for _, id := range ch.Snapshot.Partitions.IDs() {
			cn.topics.applyRow(ch.Snapshot, id)
		}
	}
	for _, id := range ch.Topics {
		cn.topics.applyTopic(ch.Snapshot, id)
	}
	for _, id := range ch.Partitions {
		cn.topics.applyRow(ch.Snapshot, id)
	}
	for _, id := range ch.Nodes {
		if n := ch.Snapshot.Nodes[id]; id != cn.Self.ID && n != nil && !n.Live {
			cn.peerDown(id)
		}
	}
	if n := ch.Snapshot.Nodes[cn.Self.ID]; n != nil && n.Draining && !cn.Leaving.Load() {
		cn.Spawn(func() { _ = cn.drain(cn.Ctx) })
	}
	cn.forward.Wake()
	cn.remotes.Refresh()
	cn.e.news.Raise()
}

// createTopic creates a topic in the cluster, and returns when this node has it. It waits at most
// Options.PublishTimeout.
func (cn *clusterNode) createTopic(ctx context.Context, name string, o TopicOptions) (*Topic, error) {
	ctx, cancel := cn.e.host.WithTimeout(ctx, cn.e.publishTimeout())
	defer cancel()
	mt, err := cn.Rows.CreateTopic(ctx, meta.Topic{
		Name: name, Partitions: o.Partitions, Replicas: cmp.Or(o.Replicas, cn.opts.Replicas),
		CreatedNs: cn.e.Now().UnixNano(), MadeBy: o.MadeBy, Settings: o.settings(),
	})
	if err != nil && !errors.Is(err, meta.ErrExists) {
		return nil, fmt.Errorf("engine: cannot create topic %s: %w", name, err)
	}
	var t *Topic
	err = cn.Await(ctx, func() (ok bool) {
		t, ok = cn.e.catalog.LookupTopic(name)
		return ok && (mt == nil || t.ID() == mt.ID)
	})
	if err != nil {
		return nil, fmt.Errorf("engine: topic %s was created, but this node has not heard of it yet: %w", name, err)
	}
	return t, nil
}

// sleep waits for d. It returns ErrClosed if the engine closes meanwhile, and ctx's error if ctx ends.
func (cn *clusterNode) sleep(ctx context.Context, d time.Duration) error {
	slept := cn.e.host.Pause(d, ctx.Done())
	switch {
	case cn.Ctx.Err() != nil:
		return errs.ErrClosed
	case slept:
		return nil
	}
	return ctx.Err()
}

// deleteTopic deletes a topic in the cluster, and returns when this node no longer lists it. It waits at most
// Options.PublishTimeout.
func (cn *clusterNode) deleteTopic(ctx context.Context, name string) error {
	t, ok := cn.e.catalog.LookupTopic(name)
	if !ok {
		return cn.e.catalog.Missing(name)
	}
	ctx, cancel := cn.e.host.WithTimeout(ctx, cn.e.publishTimeout())
	defer cancel()
	if err := cn.Rows.DeleteTopic(ctx, t.ID()); err != nil {
		if errors.Is(err, meta.ErrNotFound) { // another request deleted it a moment ago
			return fanout.NewGoneError(0, errs.ErrNoTopic)
		}
		return err
	}
	err := cn.Await(ctx, func() bool {
		now, ok := cn.e.catalog.LookupTopic(name)
		return !ok || now != t
	})
	if err != nil {
		return fmt.Errorf("engine: topic %s is deleted, but this node has not removed it yet: %w", name, err)
	}
	return nil
}

// runTicker gives each replica the time and the lease every tickInterval, on a goroutine of its own. The forwarder and
// the remote consumers send their waiting frames at each tick.
func (cn *clusterNode) runTicker() {
	for tick := 0; cn.e.host.Pause(tickInterval, cn.Ctx.Done()); tick++ {
		if tick%listenTicks == 0 {
			cn.listen()
			cn.askClocks()
		}
		cn.e.host.ReadAwake()
		lease := cn.Until()
		live := cn.LiveNodes()
		for _, pt := range cn.e.store.Partitions() {
			pt.Replica().Tick(lease, live)
		}
		cn.forward.Tick()
		cn.remotes.Tick()
	}
}

// lingerTime is how long no put must have come from another node before a node that has led may leave.
const lingerTime = 50 * time.Millisecond

// linger waits until no put has come from another node for lingerTime: by then the other nodes know the new leaders.
// Until then they still send puts here, and this node's refusal makes them send these puts to the new leader. If this
// process ended first, the other nodes would not know whether those puts were stored.
func (cn *clusterNode) linger(ctx context.Context) {
	led := false
	for _, pt := range cn.e.store.Partitions() {
		led = led || pt.Replica().HasLed()
	}
	for begin := cn.Now(); led; {
		left := max(begin, cn.forward.LastPut()) + int64(lingerTime) - cn.Now()
		if left <= 0 || cn.sleep(ctx, time.Duration(left)) != nil {
			return
		}
	}
}

// close ends all replicas and everything that talks to other nodes, and closes the store. It returns ErrDiskHung,
// joined to other errors, if goroutines of this node still wait for the disk.
func (cn *clusterNode) close() error {
	for _, pt := range cn.e.store.Partitions() {
		pt.Replica().End(errs.ErrClosed)
	}
	cn.cancel()
	cn.e.news.Raise()
	var err error
	if cn.Net != nil {
		cn.Net.Close()
	} else if cn.opts.Listener != nil {
		err = cn.opts.Listener.Close()
	}
	cn.forward.Close()
	cn.ops.Close()
	cn.remotes.Close()
	if !cn.Wait(cn.e.disks.Hangs) {
		err = errors.Join(err, errs.ErrDiskHung)
	}
	return errors.Join(err, cn.Rows.Close())
}

// Snapshot returns the newest state of the cluster that this node has heard of; nil on a single node. It is shared and
// immutable: it may be kept, and must not be changed.
func (e *Engine) Snapshot() *meta.Snapshot {
	return e.members.snapshot()
}

// Node returns this node as it registered in the cluster; the zero Node on a single node.
func (e *Engine) Node() meta.Node {
	return e.members.node()
}

// Tombstone hides a node (key.Node) from the lookups of a topic (key.Topic) until a time, in the whole cluster. When
// Tombstone returns nil, that is in the metadata store. A single node has no such store: Tombstone panics if Snapshot
// returns nil.
func (e *Engine) Tombstone(ctx context.Context, key meta.TombstoneKey, until time.Time) error {
	return e.members.tombstone(ctx, key, until)
}

// peersOf returns the nodes of a snapshot, as far as connections need to know them.
func peersOf(snap *meta.Snapshot) map[replicate.NodeID]*peer.Node {
	peers := make(map[replicate.NodeID]*peer.Node, len(snap.Nodes))
	for id, n := range snap.Nodes {
		peers[id] = peerOf(n)
	}
	return peers
}

func peerOf(n *meta.Node) *peer.Node {
	return &peer.Node{ID: n.ID, Name: n.Name, Store: n.Store, Boot: n.Boot, Address: n.Peer}
}
