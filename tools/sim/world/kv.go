package world

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"penstock/internal/cluster"
	"penstock/internal/cluster/kv"
	"penstock/internal/cluster/kv/memory"
	"penstock/internal/meta"
	"penstock/replicate"
)

// The real agreement: with FeatureCluster the nodes talk to package cluster (its controller, leases and watches) on a
// map that stands for etcd. Requests and answers are late or lost, watches lag behind, histories are compacted, and
// leases are lost though their nodes live. What the store holds is what the checks go by, as they go by the model's
// snapshot otherwise.

// agreement is the map and what the world knows of it.
type agreement struct {
	w      *World
	m      *memory.Map
	seen   int64 // the revision that the world's snapshot is of
	leases map[*host]kv.LeaseID
	// early is until when a node whose lease was taken before its time may still believe in it. overlaps is until when a
	// partition's leader of before may be such a node, and so deliver beside the new one.
	early    map[replicate.NodeID]int64
	overlaps map[meta.PartitionID]int64
	stale    []kv.Entry // MutantStaleList: what was there a while ago
	staleR   int64
}

// startCluster puts the map in the place of the store's model.
func (w *World) startCluster() {
	a := &agreement{
		w: w, leases: map[*host]kv.LeaseID{},
		early: map[replicate.NodeID]int64{}, overlaps: map[meta.PartitionID]int64{},
	}
	o := memory.Options{Now: a.now}
	if w.has(FeatureLevels) { // it was founded at level 1
		o.Entries, o.Revision = []kv.Entry{
			{Key: cluster.DefaultPrefix + "level", Value: []byte(`{"level":1}`), ModRevision: 1},
		}, 1
	}
	a.m = memory.New(o)
	w.agreement = a
	w.every(w.opt.controlTick, func() {
		if w.now >= w.store.out {
			a.m.Expire()
			a.look()
		}
	})
	w.every(300*ms, func() {
		if w.mayFail() {
			a.upset()
		}
	})
}

// now is the clock of the leases.
func (a *agreement) now() time.Time { return time.Unix(0, a.w.now) }

// upset compacts the history, or takes a lease from a node that lives.
func (a *agreement) upset() {
	w := a.w
	switch w.gray.r.IntN(4) {
	case 0, 1:
		w.Stats.Compacted++
		a.m.Compact()
	case 2:
		n := w.nodes[w.gray.r.IntN(len(w.nodes))]
		if id := a.leases[n]; id != 0 && w.now >= w.store.out {
			w.Stats.LostLeases++
			w.tracef("the lease of %s is lost", n.name)
			a.early[replicate.NodeID(n.id)] = w.now + w.opt.leaseTTL
			_ = a.m.Store().Revoke(context.Background(), id)
			a.look()
		}
	}
	if a.staleR == 0 || w.gray.r.IntN(3) == 0 {
		a.stale, a.staleR = a.m.Entries()
	}
}

// look takes over what the map holds now, and lets every watch see it.
func (a *agreement) look() {
	entries, revision := a.m.Entries()
	if revision == a.seen {
		return
	}
	a.seen = revision
	w, old := a.w, a.w.store.snap
	now := cluster.SnapshotOf(cluster.DefaultPrefix, entries, revision)
	w.store.snap = now
	w.watchSound(old)
	moves := w.store.moves
	w.store.moves = movesIn(entries)
	a.lookAtTopics(old, now)
	w.lookAtRebalance(old, now, moves)
	if old.WantedLevel <= old.Level && now.WantedLevel > now.Level {
		w.Stats.Raised++
	}
	for _, id := range now.Partitions.IDs() {
		was := old.Partitions.Get(id)
		a.lookAt(id, was, now.Partitions.Get(id))
		if was != nil {
			a.lookAtReplicas(old, was, now.Partitions.Get(id), moves[id])
			w.lookAtRow(now, was, now.Partitions.Get(id), moves[id])
		}
	}
	for _, n := range w.nodes {
		for _, row := range now.Nodes {
			if row.Name == n.name && n.disk != nil && row.Live &&
				(old.Nodes[row.ID] == nil || old.Nodes[row.ID].Store != row.Store) {
				n.wiped = false
			}
		}
		n.poke()
	}
	for _, n := range w.forget.twins {
		n.poke()
	}
}

// lookAt: an epoch is one process's, for ever.
func (a *agreement) lookAt(id meta.PartitionID, was, is *meta.Partition) {
	w := a.w
	if was != nil && was.State.Version == is.State.Version {
		return
	}
	key := epochKey{id, uint64(is.State.Epoch)}
	if boot, ok := w.store.granted[key]; ok && boot != is.State.Boot {
		w.fail("%s: epoch %d was granted to %v, and is now %v's", w.partName(id), is.State.Epoch, boot, is.State.Boot)
	}
	w.store.granted[key] = is.State.Boot
	if was != nil && was.State.Leader != is.State.Leader {
		a.overlaps[id] = max(a.overlaps[id], a.early[was.State.Leader])
	}
	if was == nil || was.State.Epoch != is.State.Epoch {
		w.Stats.Elections++
	} else if !slices.Equal(was.State.ISR, is.State.ISR) {
		w.Stats.ISRChanges++
	}
	w.tracef("store: %s leader %d epoch %d version %d isr %v damaged %v",
		w.partName(id), is.State.Leader, is.State.Epoch, is.State.Version,
		members(is.State.ISR), members(is.Damaged))
}

// overlap says whether two nodes may deliver a partition now, because the store ended a lease before its time. A store
// that is in order does not: this is what an operator does who revokes a lease by hand. Then a node delivers as the old
// leader until it hears of it; nothing may be lost, but order and replaced settings hold only when it is over.
func (w *World) overlap(id meta.PartitionID) bool {
	return w.agreement != nil && w.now < w.agreement.overlaps[id]
}

// metaStore is what the engine of a node is given.
func (n *host) metaStore() meta.Store {
	w := n.w
	if w.agreement == nil {
		return n.client
	}
	h := w.cfg.Engine
	if h == nil {
		h = slog.DiscardHandler
	}
	o := &w.opt
	n.agreed = &kvMeta{cluster.New(&kvClient{n.client, w.agreement.m.Store()}, cluster.Options{
		Logger: slog.New(h), LeaseTTL: time.Duration(o.leaseTTL), LeaseMargin: time.Duration(o.leaseMargin),
		ControllerTick:  time.Duration(5 * o.controlTick),
		DefaultReplicas: o.replicas, Now: n.Now, Host: n.m,
		RebalanceAfter: time.Duration(w.placing.after), RebalanceMoves: w.rebalanceMoves(),
		MovePatience: time.Duration(movePatience),
	}), w}
	return n.agreed
}

// kvMeta makes topics with the world's min_isr.
type kvMeta struct {
	meta.Store
	w *World
}

// CreateTopic implements meta.Store.
func (s *kvMeta) CreateTopic(ctx context.Context, t meta.Topic) (*meta.Topic, error) {
	t.MinISR = s.w.opt.min
	if s.w.topicNamed(t.Name).of == nil {
		s.w.keepFirst(&t)
	}
	return s.Store.CreateTopic(ctx, t)
}

// ReportDown implements meta.Store.
func (s *kvMeta) ReportDown(ctx context.Context, id replicate.NodeID, boot uuid.UUID) error {
	s.w.tracef("node %d is reported gone", id)
	return s.Store.ReportDown(ctx, id, boot)
}

// kvClient is a process's way to the map: as client, which carries its requests.
type kvClient struct {
	c  *client
	kv *memory.Store
}

func (k *kvClient) call(ctx context.Context, request func()) error {
	if err := k.c.call(ctx, func() {
		request()
		k.c.w.agreement.look()
	}); err != nil {
		return kv.ErrUnavailable
	}
	return nil
}

// List implements kv.Store.
func (k *kvClient) List(ctx context.Context, prefix string) (entries []kv.Entry, revision int64, err error) {
	a := k.c.w.agreement
	lost := k.call(ctx, func() {
		if entries, revision, err = k.kv.List(ctx, prefix); a.w.cfg.Break == MutantStaleList && a.staleR != 0 {
			entries, revision = a.stale, a.staleR
		}
	})
	if lost != nil {
		return nil, 0, lost
	}
	return entries, revision, err
}

// Txn implements kv.Store.
func (k *kvClient) Txn(ctx context.Context, conds []kv.Cond, ops []kv.Op) (ok bool, revision int64, err error) {
	if k.c.w.cfg.Break == MutantBlindTxn {
		conds = nil
	}
	ops = k.c.w.falsified(ops)
	// One that ends before it is sent was never asked for; who has asked does not take that back.
	if lost := k.call(ctx, func() { ok, revision, err = k.kv.Txn(context.Background(), conds, ops) }); lost != nil {
		return false, 0, lost
	}
	return ok, revision, err
}

// Grant implements kv.Store.
func (k *kvClient) Grant(ctx context.Context, ttl time.Duration) (id kv.LeaseID, err error) {
	lost := k.call(ctx, func() {
		if id, err = k.kv.Grant(context.Background(), ttl); err == nil {
			k.c.w.agreement.leases[k.c.n] = id
		}
	})
	if lost != nil {
		return 0, lost
	}
	return id, err
}

// KeepAlive implements kv.Store.
func (k *kvClient) KeepAlive(ctx context.Context, id kv.LeaseID) (ttl time.Duration, err error) {
	if lost := k.call(ctx, func() { ttl, err = k.kv.KeepAlive(context.Background(), id) }); lost != nil {
		return 0, lost
	}
	return ttl, err
}

// Revoke implements kv.Store.
func (k *kvClient) Revoke(ctx context.Context, id kv.LeaseID) (err error) {
	if lost := k.call(ctx, func() { err = k.kv.Revoke(context.Background(), id) }); lost != nil {
		return lost
	}
	return err
}

// Watch implements kv.Store. What has happened is heard of after a while, much of it at once.
func (k *kvClient) Watch(ctx context.Context, prefix string, after int64, changed func([]kv.Event, int64)) error {
	n, w := k.c.n, k.c.w
	for {
		n.m.WaitUntil(func() bool { return ctx.Err() != nil || w.agreement.seen > after })
		d := w.skewed(w.opt.storeDelay/4, 2*w.opt.storeDelay)
		if w.faults && w.chance(0.05) {
			d = w.between(10*ms, 300*ms)
		}
		for {
			n.m.Sleep(ctx, time.Duration(d))
			if ctx.Err() != nil {
				return nil
			}
			if d = 50 * ms; !w.faults || !w.net.cut[n.index][n.index] && w.now >= w.store.out {
				break
			}
		}
		var events []kv.Event
		revision := after
		once, end := context.WithCancel(ctx)
		err := k.kv.Watch(once, prefix, after, func(es []kv.Event, r int64) {
			events, revision = slices.Clone(es), r
			end()
		})
		end()
		if err != nil {
			return err
		}
		if revision > after {
			after = revision
			changed(events, revision)
		}
	}
}

// Close implements kv.Store.
func (k *kvClient) Close() error { return nil }
