package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"penstock/internal/cluster/kv"
	"penstock/internal/lock"
	"penstock/internal/meta"
	"penstock/replicate"
)

// Defaults and limits.
const (
	DefaultPrefix         = "/penstock/v1/"
	DefaultLeaseTTL       = 3 * time.Second
	DefaultControllerTick = time.Second
	DefaultReplicaCount   = 3
	DefaultRebalanceMoves = 4 // partitions that a rebalance copies at the same time
	DefaultMovePatience   = time.Minute

	MaxPartitionCount  = 16384 // of a topic
	MaxDeletedCount    = 16384 // deletions that are remembered; a node that missed one keeps the data aside
	MaxDrainMoveCount  = 16    // partitions that the controller moves at the same time
	MaxTopicNameBytes  = 256   // as a key; the engine decides what a topic may be called
	MaxNodeCount       = 100   // a transaction that compares the rows of all nodes has room for no more
	maxTxnCount        = 100   // ops, and conds, of one transaction; etcd allows 128 by default
	maxAttemptCount    = 100   // attempts at one change while others are faster
	maxCallTime        = 5 * time.Second
	creationTime       = 10 * time.Second // a topic that does not fit into one transaction must be complete by then
	conflictPause      = 20 * time.Millisecond
	unavailablePause   = 100 * time.Millisecond
	tombstoneKeepAfter = time.Minute // after its end, because clocks differ
	// electionWait bounds how long one change waits until the store answers again. After the death of a member, etcd
	// elects another leader within its election timeout (0.5 s) and a few round trips. It is shorter than the engine's
	// default PublishTimeout, which bounds the whole change.
	electionWait = 3 * time.Second
)

// Options configure a cluster's store. The zero value means the defaults.
type Options struct {
	Logger          *slog.Logger
	Prefix          string        // of all keys; ends in a slash
	LeaseTTL        time.Duration // after which a silent node counts as dead
	LeaseMargin     time.Duration // a node stops serving this much earlier; default LeaseTTL/6
	ControllerTick  time.Duration // how often the controller looks at everything, besides at every change
	DefaultReplicas int           // replicas of a topic that does not say; at most the number of nodes
	// RebalanceAfter makes the controller rebalance by itself when a node has joined, or one has been away, for this
	// long. 0: only operators start it.
	RebalanceAfter time.Duration
	RebalanceMoves int // partitions that a rebalance copies at the same time
	// MovePatience is how long a move waits for its target when that has died. Then it is undone.
	MovePatience time.Duration
	// Proofs returns what follows from each of this node's secrets, the one in use first, and a cluster's identity; none:
	// the node proves nothing. Nodes that share none of them are not in one cluster. nil: nothing is compared.
	Proofs func(cluster uuid.UUID) []string
	Now    func() time.Time
	Host   Host // nil: goroutines, Go's timers and random uuids
}

// Change gives a store that New has made other DefaultReplicas, RebalanceAfter and RebalanceMoves, from its next step
// on. One goroutine at a time may call it.
func Change(s meta.Store, o Options) {
	o.setDefaults()
	st := s.(*store)
	next := st.opts
	next.DefaultReplicas, next.RebalanceAfter, next.RebalanceMoves = o.DefaultReplicas, o.RebalanceAfter, o.RebalanceMoves
	st.changedOpts.Store(&next)
}

func (o *Options) setDefaults() {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if o.LeaseTTL <= 0 {
		o.LeaseTTL = DefaultLeaseTTL
	}
	if o.LeaseMargin <= 0 {
		o.LeaseMargin = o.LeaseTTL / 6
	}
	if o.ControllerTick <= 0 {
		o.ControllerTick = DefaultControllerTick
	}
	if o.DefaultReplicas <= 0 {
		o.DefaultReplicas = DefaultReplicaCount
	}
	if o.RebalanceMoves <= 0 {
		o.RebalanceMoves = DefaultRebalanceMoves
	}
	if o.MovePatience <= 0 {
		o.MovePatience = DefaultMovePatience
	}
	if o.Now == nil {
		o.Now = time.Now
	}
}

// Errors of this package that meta does not define.
var (
	errNotJoined = errors.New("cluster: this node has not joined (or has left): nothing was changed")
	errJoined    = errors.New("cluster: this node has joined already")
	errReplaced  = errors.New("cluster: another process has registered under this node's name: this one must stop")
)

// store implements meta.Store.
type store struct {
	kv   kv.Store
	opts Options
	log  *slog.Logger

	changedOpts atomic.Pointer[Options] // of now: see Change

	cur atomic.Pointer[state] // nil before Join

	wake   chan struct{} // the controller: plan again; capacity 1
	relive chan struct{} // keepLease: look at our own rows; capacity 1
	isr    isrQueue      // changes of the ISR of partitions that this node leads
	handed handOvers     // when this process gave partitions away

	// mu guards the fields below. Join and the goroutines that it starts also read ctx without it.
	mu        lock.Mutex[lock.ClusterStore]
	changed   chan struct{} // closed and replaced whenever cur or delivered advances
	delivered int64         // the newest revision that r.Changed has returned from
	node      meta.Node     // as registered by this process
	joined    bool          // from Join until Leave or Close
	lease     kv.LeaseID
	// aliveSince is the revision of the live row that this process last had to write again; 0: it never had to.
	aliveSince int64
	replaced   bool            // another process has this node's name: r.Lease is not called any more
	ctx        context.Context // of all goroutines; nil before Join
	cancel     context.CancelFunc
	stopLease  context.CancelFunc
	running    tasks
	leasing    chan struct{}               // closed when keepLease has ended
	reaches    func(replicate.NodeID) bool // of the registration
	unreached  unreached
	// distrusted are the partitions whose rows this registration has rewritten, see distrustOlder. Only Join uses it.
	distrusted map[meta.PartitionID]bool
}

// New returns a node's meta.Store on s. The caller still owns s, and closes it after Close.
func New(s kv.Store, o Options) meta.Store {
	o.setDefaults()
	st := &store{
		kv: s, opts: o, log: o.Logger.With("component", "cluster"), changed: make(chan struct{}),
		wake: make(chan struct{}, 1), relive: make(chan struct{}, 1),
	}
	st.changedOpts.Store(&st.opts)
	return st
}

// Snapshot implements meta.Store.
func (s *store) Snapshot() *meta.Snapshot {
	if st := s.cur.Load(); st != nil {
		return st.snap
	}
	return nil
}

func (s *store) key(k string) string { return s.opts.Prefix + k }

// publish makes st the newest state, and wakes its waiters, the controller and, if need be, keepLease.
func (s *store) publish(st *state) {
	s.mu.Lock()
	s.cur.Store(st)
	s.broadcast()
	self, boot := s.node.ID, s.node.Boot
	s.mu.Unlock()
	poke(s.wake)
	if n := st.nodes[self]; n.rev == 0 || n.row.Boot != boot || n.liveRev == 0 {
		poke(s.relive)
	}
}

// learn takes a state from the watch. If it shows that another process has this node's name, this process stops serving
// before anything else is done. Only the goroutine of watch calls it, with states that are newer than the registration.
func (s *store) learn(r *meta.Registration, st *state, c *meta.Change) {
	s.publish(st)
	self, boot := s.self()
	if n := st.nodes[self]; n.rev == 0 || n.row.Boot != boot {
		s.endService(r)
	}
	s.deliver(r, c)
}

// endService calls r.Replaced, the first time only: the engine must stop serving, because another process has this
// node's name or the node was removed. keepLease reports no extended lease after that. The goroutine of the watch and
// that of keepLease call it. It takes mu. A crash needs no more: the process is gone.
func (s *store) endService(r *meta.Registration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.replaced && r.Replaced != nil {
		r.Replaced()
	}
	s.replaced = true
}

// deliver hands a change to the engine. Only one goroutine calls it, so changes arrive one at a time and in order.
func (s *store) deliver(r *meta.Registration, c *meta.Change) {
	if r.Changed != nil {
		r.Changed(c)
	}
	s.mu.Lock()
	s.delivered = c.Snapshot.Revision
	s.broadcast()
	s.mu.Unlock()
}

func (s *store) broadcast() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// current returns the newest state, or errNotJoined.
func (s *store) current() (*state, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.joined {
		return nil, errNotJoined
	}
	return s.cur.Load(), nil
}

// waitRevision waits until the watch has brought a revision, so that the caller sees its own write.
func (s *store) waitRevision(ctx context.Context, revision int64) error {
	return s.waitUntil(ctx, func() bool { return s.cur.Load().snap.Revision >= revision })
}

// waitDelivered waits until the engine has been told of a revision.
func (s *store) waitDelivered(ctx context.Context, revision int64) error {
	return s.waitUntil(ctx, func() bool { return s.delivered >= revision })
}

// waitUntil waits until reached returns true, and checks again whenever changed is closed. It calls reached with mu
// held.
func (s *store) waitUntil(ctx context.Context, reached func() bool) error {
	for {
		s.mu.Lock()
		changed, all := s.changed, s.ctx
		ok := s.joined && reached()
		joined := s.joined
		s.mu.Unlock()
		switch {
		case !joined:
			return errNotJoined
		case ok:
			return nil
		}
		switch s.await(ctx, 0, changed, all.Done()) {
		case byEnd:
			return unavailable(ctx.Err())
		case bySecond:
			return errNotJoined
		}
	}
}

// waitChange waits a moment for a newer state than st, after another node was faster.
func (s *store) waitChange(ctx context.Context, st *state) error {
	s.mu.Lock()
	changed := s.changed
	s.mu.Unlock()
	if s.cur.Load() != st {
		return ctx.Err()
	}
	if s.await(ctx, conflictPause, changed, nil) == byEnd {
		return unavailable(ctx.Err())
	}
	return nil
}

// txn applies ops if conds hold. Keys include the prefix.
func (s *store) txn(ctx context.Context, conds []kv.Cond, ops []kv.Op) (bool, int64, error) {
	ok, revision, err := s.txnOn(ctx, s.cur.Load(), conds, ops)
	return ok, revision, unavailable(err)
}

// txnOn is txn for what was decided on st, which may be read before this node has joined. Its errors are those of the
// kv.Store.
func (s *store) txnOn(ctx context.Context, st *state, conds []kv.Cond, ops []kv.Op) (bool, int64, error) {
	ops, err := s.keepUnknown(ctx, st, conds, ops)
	if err != nil {
		return false, 0, err
	}
	return s.kv.Txn(ctx, conds, ops)
}

// get reads one row from the store itself, not from the watch's state. Revision 0 means that there is no such row.
func (s *store) get(ctx context.Context, key string) (kv.Entry, error) {
	entries, _, err := s.kv.List(ctx, s.key(key))
	if err != nil {
		return kv.Entry{}, unavailable(err)
	}
	for _, e := range entries {
		if e.Key == s.key(key) {
			return e, nil
		}
	}
	return kv.Entry{}, nil
}

// unavailable turns an error of the kv.Store into one of meta's.
func unavailable(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, meta.ErrUnavailable):
		return err
	case errors.Is(err, kv.ErrUnavailable), errors.Is(err, kv.ErrClosed),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w (%w)", meta.ErrUnavailable, err)
	}
	return err
}

// change is the loop behind most changes. try looks at the newest state and returns the writes, and the conditions on
// the rows that it looked at; it returns no writes if the state is what the change asks for, ErrNotFound if the state
// lacks a row, and ErrTooFewNodes if it lacks nodes. These count only in a state that is not older than the call,
// because the watch may be behind. The loop repeats while another node is faster, and while the store has no leader
// (see endurance).
func (s *store) change(ctx context.Context, try func(st *state) (conds []kv.Cond, ops []kv.Op, err error)) error {
	p, fresh := s.endure(ctx), false
	return p.repeat(func() (*state, bool, int64, error) {
		for {
			st, err := s.current()
			if err != nil {
				return nil, false, 0, err
			}
			conds, ops, err := try(st)
			unsure := len(ops) == 0 &&
				(err == nil || errors.Is(err, meta.ErrNotFound) || errors.Is(err, meta.ErrTooFewNodes))
			if err != nil && !unsure || unsure && fresh {
				return nil, false, 0, final{p.explain(err)}
			}
			if !unsure {
				ok, revision, err := s.txn(ctx, conds, ops)
				return st, ok, revision, err
			}
			fresh = true
			if err := s.CatchUp(ctx); err != nil {
				return nil, false, 0, err
			}
		}
	})
}

// CatchUp implements meta.Store.
func (s *store) CatchUp(ctx context.Context) error {
	_, revision, err := s.kv.List(ctx, s.key(controllerKey))
	if err != nil {
		return unavailable(err)
	}
	return s.waitRevision(ctx, revision)
}

func put(key string, row any) kv.Op { return kv.Op{Key: key, Value: encode(row)} }

func remove(key string) kv.Op { return kv.Op{Key: key, Delete: true} }

// self returns this node's id and boot.
func (s *store) self() (id replicate.NodeID, boot uuid.UUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node.ID, s.node.Boot
}
