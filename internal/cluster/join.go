package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"penstock/internal/cluster/kv"
	"penstock/internal/meta"
	"penstock/replicate"
	"penstock/segment"
)

// Join implements meta.Store. While the store does not answer it waits, until ctx ends.
func (s *store) Join(ctx context.Context, r meta.Registration) (meta.Node, error) {
	if r.Node.Name == "" || r.Node.Store == uuid.Nil || r.Node.Boot == uuid.Nil {
		panic("BUG: a node joins without a name, a store or a boot")
	}
	s.mu.Lock()
	if s.ctx != nil {
		s.mu.Unlock()
		return meta.Node{}, errJoined
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.leasing = make(chan struct{})
	s.replaced, s.distrusted = false, map[meta.PartitionID]bool{}
	s.reaches, s.unreached = r.Reaches, unreached{}
	s.mu.Unlock()

	err := s.enter(ctx, &r)
	if err != nil {
		s.mu.Lock()
		lease := s.lease
		s.mu.Unlock()
		_ = s.Close()
		if lease != 0 { // nobody should wait for a node that did not join
			ctx, cancel := s.withTimeout(context.WithoutCancel(ctx), s.opts.LeaseTTL)
			defer cancel()
			_ = s.kv.Revoke(ctx, lease)
		}
		s.mu.Lock()
		s.ctx, s.cancel, s.lease = nil, nil, 0 // Join may be called again
		s.mu.Unlock()
		return meta.Node{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.node
	n.Live = true
	return n, nil
}

func (s *store) enter(ctx context.Context, r *meta.Registration) error {
	sent, err := s.register(ctx, r)
	if err != nil {
		close(s.leasing)
		return err
	}
	if r.Lease != nil {
		r.Lease(sent.Add(s.opts.LeaseTTL - s.opts.LeaseMargin))
	}
	leaseCtx, stop := context.WithCancel(s.ctx)
	s.mu.Lock()
	s.stopLease = stop
	s.mu.Unlock()
	s.spawn(func() { s.keepLease(leaseCtx, r) })

	for i := range r.Import {
		if err := s.importTopic(ctx, &r.Import[i]); err != nil {
			return err
		}
	}
	st, err := s.read(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.joined = true
	s.mu.Unlock()
	s.publish(st)
	first := make(chan struct{})
	s.running.add(2)
	s.spawn(func() {
		defer s.running.end()
		s.deliver(r, between(newState(), st))
		close(first)
		s.watch(r)
	})
	s.spawn(func() {
		defer s.running.end()
		s.control()
	})
	s.receive(first)
	return nil
}

// read returns the current state from the store itself. While the store does not answer it waits, until ctx ends.
func (s *store) read(ctx context.Context) (*state, error) {
	for {
		entries, revision, err := s.kv.List(ctx, s.opts.Prefix)
		if err == nil {
			b := build(newState(), s.opts.Prefix, s.log)
			for i := range entries {
				b.apply(&kv.Event{Entry: entries[i]})
			}
			st, _ := b.finish(revision)
			return st, nil
		}
		if !errors.Is(err, kv.ErrUnavailable) {
			return nil, unavailable(err)
		}
		if err := s.pause(ctx, unavailablePause); err != nil {
			return nil, err
		}
	}
}

func (s *store) pause(ctx context.Context, d time.Duration) error {
	if s.await(ctx, d, nil, nil) == byEnd {
		return unavailable(ctx.Err())
	}
	return nil
}

// register writes the node's row and its live row, and returns the time just before it asked for the lease. A node that
// is registered by this name keeps its id. A new node's id comes from a counter, so no id is ever given twice.
func (s *store) register(ctx context.Context, r *meta.Registration) (time.Time, error) {
	told, began := false, leaseClock(r)
	for {
		sent := leaseClock(r)
		lease, err := s.kv.Grant(ctx, s.opts.LeaseTTL)
		if err == nil {
			s.mu.Lock()
			s.lease = lease
			s.mu.Unlock()
			var ok bool
			if ok, err = s.tryRegister(ctx, r, lease); ok {
				return sent, nil
			}
			_ = s.kv.Revoke(ctx, lease)
		}
		held := new(heldError)
		switch {
		case err == nil: // another process changed a compared row first
		case errors.As(err, &held) && held.silent, s.mayHaveSecretSoon(err, began, sent):
			if held.silent && !told {
				told = true
				s.log.Warn("another process has this node's name, and it does not answer: this one waits until its lease ends",
					"name", r.Node.Name, "address", held.row.Peer, "since", held.since())
			}
			if s.pause(ctx, unavailablePause) != nil {
				return sent, err
			}
		case errors.Is(err, kv.ErrUnavailable), errors.Is(err, kv.ErrLeaseGone):
			if err := s.pause(ctx, unavailablePause); err != nil {
				return sent, err
			}
		default:
			return sent, unavailable(err)
		}
	}
}

func (s *store) tryRegister(ctx context.Context, r *meta.Registration, lease kv.LeaseID) (bool, error) {
	st, err := s.read(ctx)
	if err != nil {
		return false, err
	}
	n, err := s.newcomer(st, r)
	if err != nil {
		return false, err
	}
	row, life := st.snap.Nodes[n.ID], meta.LifeCurrent
	if r.Life != nil {
		life = r.Life(row)
	}
	if err := s.claimName(ctx, st, r, row, life); err != nil {
		return false, err
	}
	id := st.snap.Cluster
	if id == uuid.Nil {
		id = s.newUUID()
	}
	proof, proofOps, err := s.prove(st, id, n.ID)
	if err != nil {
		return false, err
	}
	conds, ops, err := s.enterLevel(st, r, &n, row)
	if err != nil {
		return false, err
	}
	conds, ops = append(conds, proof...), append(ops, proofOps...)
	if ok, err := s.mark(ctx, st, r, &n, life); !ok || err != nil {
		return false, err
	}
	if st.snap.Cluster == uuid.Nil {
		conds = append(conds, kv.Cond{Key: s.key(clusterKey)})
		ops = append(ops, put(s.key(clusterKey), id))
	}
	own, ownOps := s.enterRows(st, &n, lease)
	ok, _, err := s.kv.Txn(ctx, append(conds, own...), append(ops, ownOps...))
	if ok {
		s.mu.Lock()
		s.node = n
		s.mu.Unlock()
		if count := len(s.distrusted); count > 0 && r.Older != nil {
			r.Older(count)
		}
	}
	return ok, err
}

// newcomer returns the node that registers: with the id that its name has already, or with none. It refuses one of
// another cluster, and one too many.
func (s *store) newcomer(st *state, r *meta.Registration) (meta.Node, error) {
	n := r.Node
	if r.Cluster != uuid.Nil && r.Cluster != st.snap.Cluster {
		return n, fmt.Errorf("%w (it is of cluster %s, the store of %s)", meta.ErrForeign, r.Cluster, st.snap.Cluster)
	}
	n.ID, n.Live, n.SinceMs = 0, false, s.opts.Now().UnixMilli()
	for id, other := range st.nodes {
		if other.rev != 0 && other.row.Name == n.Name {
			n.ID, n.Draining = id, other.row.Draining
		}
	}
	if n.ID == 0 && len(st.snap.Nodes) >= MaxNodeCount {
		return n, fmt.Errorf("cluster: it has %d nodes already, which is the most it may have: this one was not "+
			"added; remove one that is gone", MaxNodeCount)
	}
	return n, nil
}

// enterRows returns the conditions and the operations that write the rows of n itself. It gives n an id if it has none.
func (s *store) enterRows(st *state, n *meta.Node, lease kv.LeaseID) (conds []kv.Cond, ops []kv.Op) {
	if n.ID == 0 {
		n.ID = st.lastID + 1
		conds = append(conds, kv.Cond{Key: s.key(lastIDKey), ModRevision: st.lastIDRev})
		ops = append(ops, put(s.key(lastIDKey), n.ID))
	}
	e := st.nodes[n.ID]
	conds = append(conds,
		kv.Cond{Key: s.key(nodeKey(nodesDir, n.ID)), ModRevision: e.rev},
		kv.Cond{Key: s.key(nodeKey(liveDir, n.ID)), ModRevision: e.liveRev})
	ops = append(ops,
		put(s.key(nodeKey(nodesDir, n.ID)), *n),
		kv.Op{Key: s.key(nodeKey(liveDir, n.ID)), Value: encode(processRow{Node: n.ID, Boot: n.Boot}), Lease: lease})
	if e.downRev != 0 {
		ops = append(ops, remove(s.key(nodeKey(downDir, n.ID)))) // it reported an earlier process
	}
	return conds, ops
}

// mark writes into the rows of partitions what they must say before n is live. It returns false if a row has changed:
// then the caller reads again. A crash between two rows leaves only true reports behind.
func (s *store) mark(ctx context.Context, st *state, r *meta.Registration, n *meta.Node, life meta.Life) (bool, error) {
	if ok, err := s.distrustOlder(ctx, st, r, n, life); !ok || err != nil {
		return false, err
	}
	damaged := r.Damaged
	if r.AllDamaged {
		damaged = st.parts.IDs()
	}
	return s.markDamaged(ctx, st, replicate.Member{Node: n.ID, Store: n.Store}, damaged)
}

// markDamaged writes into the partitions' rows that m's copies cannot be relied on. It returns false if a row has
// changed: then the caller reads again. A crash between two rows leaves only true reports behind.
func (s *store) markDamaged(ctx context.Context, st *state, m replicate.Member, ids []meta.PartitionID) (bool, error) {
	for _, id := range ids {
		row := st.parts.Get(id)
		if row == nil || !st.visible(id) || !slices.Contains(row.State.Replicas, m.Node) || slices.Contains(row.Damaged, m) {
			continue
		}
		next := edit(&row.Partition)
		next.SetCopy(m, meta.CopyDamaged)
		key := s.key(partKey(partsDir, id))
		ok, _, err := s.txnOn(ctx, st, []kv.Cond{{Key: key, ModRevision: row.rev}},
			[]kv.Op{{Key: key, Value: encodePartition(next)}})
		if !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}

// watch follows the store until Close. It runs on its own goroutine, which is the only caller of r.Changed. Whatever
// the store answers, it goes on: a node that hears of nothing would lead what others were elected for.
func (s *store) watch(r *meta.Registration) {
	for {
		err := s.follow(r)
		switch {
		case s.ctx.Err() != nil:
			return
		case errors.Is(err, kv.ErrClosed):
			s.log.Error("the metadata store was closed: this node hears of no changes any more")
			return
		case err != nil:
			s.log.Warn("the watch on the metadata store ended and begins again", "error", err)
			if s.pause(s.ctx, unavailablePause) != nil {
				return
			}
		}
	}
}

// follow follows the store from the newest state on, and returns why it could not go on. If the store does not keep the
// changes since that state, it reads all that there is now and returns nil.
func (s *store) follow(r *meta.Registration) error {
	err := s.kv.Watch(s.ctx, s.opts.Prefix, s.cur.Load().snap.Revision, func(events []kv.Event, revision int64) {
		b := build(s.cur.Load(), s.opts.Prefix, s.log)
		for i := range events {
			b.apply(&events[i])
		}
		st, change := b.finish(revision)
		s.learn(r, st, change)
	})
	if !errors.Is(err, kv.ErrCompacted) {
		return err
	}
	old := s.cur.Load()
	st, err := s.read(s.ctx)
	if err != nil {
		return err
	}
	s.learn(r, st, between(old, st))
	return nil
}

// importTopic brings a topic from a single node's data directory into the cluster, with this node as its only replica,
// unless the cluster has the topic already or has deleted it. Each partition begins an epoch above any that its log may
// have, so every earlier leadership is over.
func (s *store) importTopic(ctx context.Context, im *meta.ImportedTopic) error {
	t := im.Topic
	if len(im.Epochs) != t.Partitions || t.ID == uuid.Nil {
		panic("BUG: an imported topic has no uuid, or not one epoch for each partition")
	}
	if t.Replicas == 0 {
		t.Replicas = s.changedOpts.Load().DefaultReplicas
	}
	if t.MinISR == 0 {
		t.MinISR = majority(t.Replicas)
	}
	if err := checkTopic(&t); err != nil {
		return err
	}
	for range maxAttemptCount {
		st, err := s.read(ctx)
		if err != nil {
			return err
		}
		if st.snap.Topics[t.ID] != nil || st.snap.Deleted[t.ID] {
			return nil
		}
		if st.snap.Names[t.Name] != nil {
			return fmt.Errorf("the topic %q of this node's data directory and the one of the cluster are not the same: its "+
				"data stays where it is, untouched; "+
				"start the node alone to read it, or delete the cluster's topic: %w", t.Name, meta.ErrExists)
		}
		ok, _, err := s.writeTopic(ctx, &t, 0, s.imported(&t, im.Epochs), nil)
		if ok || err != nil && !errors.Is(err, meta.ErrUnavailable) {
			return err
		}
		if err := s.pause(ctx, conflictPause); err != nil {
			return err
		}
	}
	return meta.ErrConflict
}

func (s *store) imported(t *meta.Topic, epochs []segment.Epoch) []*meta.Partition {
	s.mu.Lock()
	self := s.node
	s.mu.Unlock()
	parts := make([]*meta.Partition, 0, len(epochs))
	for n, epoch := range epochs {
		p := &meta.Partition{
			ID: meta.PartitionID{Topic: t.ID, Partition: uint32(n)},
			State: replicate.State{
				Epoch: epoch + 1, Version: 1, Leader: self.ID, Boot: self.Boot, MinISR: 1,
				Replicas: []replicate.NodeID{self.ID}, ISR: []replicate.Member{{Node: self.ID, Store: self.Store}},
			},
			Terms: []meta.Term{{Epoch: epoch, Node: self.ID}},
		}
		noteTerm(p)
		parts = append(parts, p)
	}
	return slices.Clip(parts)
}
