package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"penstock/engine/meta"
	"penstock/replicate"
)

// balance moves leaderships to who should have them, a few at a time: nodes that were away get theirs back, replicas that are about to be
// removed give theirs away.
func (cn *clusterNode) balance() {
	for cn.e.host.Pause(balanceInterval, cn.ctx.Done()) {
		snap := cn.store.Snapshot()
		for left, parts := maxBalanceCount, cn.e.partitionList(); left > 0 && len(parts) > 0; parts = parts[1:] {
			pt := parts[0]
			if pt.rep == nil || !pt.rep.serves.Load() || cn.leaving.Load() {
				continue
			}
			row := snap.Partitions[pt.identity()]
			if row == nil || len(row.State.ISR) < len(row.State.Replicas) {
				continue // it is not the time for it
			}
			to := cn.opts.PreferredLeader(snap, pt.identity())
			if to == 0 || to == cn.self.ID || pt.rep.wasStranded(to, snap.Nodes) && stays(snap, row, cn.self.ID) {
				continue
			}
			left--
			cn.handOverPartition(pt, to)
		}
	}
}

// stays says whether a replica is among those that the topic is to have, on a node that is not drained. A leader that is
// to be removed holds up its move or drain for as long as it leads. It is pure.
func stays(s *meta.Snapshot, row *meta.Partition, node replicate.NodeID) bool {
	t, n := s.Topics[row.ID.Topic], s.Nodes[node]
	at := slices.Index(row.State.Replicas, node)
	return n != nil && !n.Draining && t != nil && at >= 0 && at < t.Replicas
}

// handOverPartition gives one partition to to, unless what is pending is not committed in time.
func (cn *clusterNode) handOverPartition(pt *partition, to replicate.NodeID) {
	ctx, cancel := cn.e.host.WithTimeout(cn.ctx, handOverTime)
	defer cancel()
	for pt.rep.leads.Load() && cn.tryHandOver(ctx, pt, to) {
		if cn.sleep(ctx, time.Millisecond) != nil {
			break
		}
	}
	pt.rep.resumeWrites()
}

// resumeWrites takes writes again that waited for another leader, unless there is one: this replica only has not heard of it yet, and
// what it appended now would be cut.
func (r *replica) resumeWrites() {
	r.run(func() {
		if r.writesPaused && !r.successorStored() {
			r.writesPaused, r.stalled = false, ErrNoLeader
			r.retryStalled()
		}
	})
}

// successorStored says that the store has another leader than the row says that this replica knows. mu is held.
func (r *replica) successorStored() bool { return r.handedOver != 0 && r.handedOver == r.state.Version }

// handOver gives every leadership to somebody else who is in sync: no accepted write is lost or failed by it. It returns when this node leads nothing
// that another could lead, or with ctx.
func (cn *clusterNode) handOver(ctx context.Context) error {
	if !cn.leaving.CompareAndSwap(false, true) {
		return nil
	}
	defer cn.leaving.Store(false)
	for {
		left := 0
		for _, pt := range cn.e.partitionList() {
			if pt.rep != nil && pt.rep.leads.Load() && cn.tryHandOver(ctx, pt, 0) {
				left++
			}
		}
		if left == 0 || ctx.Err() != nil {
			return ctx.Err()
		}
		if err := cn.sleep(ctx, time.Millisecond); err != nil {
			return err
		}
	}
}

// tryHandOver reports whether there is still something to hand over: when the store has done it, until this replica hears of
// it and leads no more.
func (cn *clusterNode) tryHandOver(ctx context.Context, pt *partition, to replicate.NodeID) bool {
	r := pt.rep
	var st replicate.State
	ready := false
	r.mu.Lock()
	if r.leader == nil || len(r.state.ISR) < 2 {
		r.mu.Unlock()
		r.resumeWrites() // the others may have fallen out of the ISR since the round before
		return false
	}
	flushed := r.writesPaused
	r.writesPaused = true // writes wait, and then go to the new leader
	st = r.state
	ready = r.pending.n == 0 && r.pending.opened && !r.successorStored()
	r.mu.Unlock()
	if !ready {
		return true
	}
	if !flushed {
		cn.e.confirmer.flush() // what was confirmed until now does not come again elsewhere
		return true
	}
	switch err := cn.store.HandOver(ctx, pt.identity(), &st, to); {
	case err == nil:
		r.run(func() { r.handedOver = st.Version })
	case errors.Is(err, meta.ErrConflict): // the row is another one: the news of it is on its way, or the next attempt is by it
	default:
		r.resumeWrites()
		cn.log.Warn("a partition could not be handed over", "topic", pt.t.name, "partition", pt.number, "error", err)
		return false
	}
	return true
}

// Leave hands this node's leaderships over and deregisters it: the others go on at once. Close comes next. On a single node it
// does nothing.
func (e *Engine) Leave(ctx context.Context) error {
	cn := e.cluster
	if cn == nil {
		return nil
	}
	cn.leave.Do(func() {
		err := cn.handOver(ctx)
		cn.linger(ctx)
		cn.leaveErr = errors.Join(err, cn.store.Leave(ctx))
	})
	return cn.leaveErr
}
