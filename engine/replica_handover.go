package engine

import (
	"context"
	"errors"
	"time"

	"penstock/engine/meta"
	"penstock/replicate"
)

// handOverTime is how long writes of a partition wait at most for another leader.
const handOverTime = time.Second

// handOverPartition hands the leadership of pt to another node, unless the pending batches are not committed in time.
func (cn *replicaNode) handOverPartition(pt *partition, to replicate.NodeID) {
	ctx, cancel := cn.e.host.WithTimeout(cn.ctx, handOverTime)
	defer cancel()
	_ = cn.await(ctx, func() bool { return !pt.Leading.Load() || !cn.tryHandOver(ctx, pt, to) })
	pt.rep.resumeWrites()
}

// resumeWrites lets the replica accept writes again that wait for another leader. It does nothing if the store already
// has another leader of which this replica has not heard: what it appended now would be cut.
func (r *replica) resumeWrites() {
	r.run(func() {
		if r.writesPaused && !r.successorStored() {
			r.writesPaused, r.stalled = false, ErrNoLeader
			r.retryStalled()
		}
	})
}

// successorStored says whether the store has accepted a hand-over from the state that this replica knows. mu is held.
func (r *replica) successorStored() bool { return r.handedOver != 0 && r.handedOver == r.state.Version }

// tryHandOver makes one attempt, and says whether something is left to do: until the store has accepted the hand-over
// and this replica has heard of it. No lock is held.
func (cn *replicaNode) tryHandOver(ctx context.Context, pt *partition, to replicate.NodeID) bool {
	r := pt.rep
	var st replicate.State
	ready := false
	r.mu.Lock()
	if r.leader == nil || len(r.state.ISR) < 2 {
		r.mu.Unlock()
		r.resumeWrites() // the other replicas may have left the ISR since the last attempt
		return false
	}
	flushed := r.writesPaused
	r.writesPaused = true // writes wait for the new leader
	st = r.state
	ready = r.pending.n == 0 && r.pending.opened && !r.successorStored()
	r.mu.Unlock()
	if !flushed {
		cn.above.Confirm() // write the confirmations now, or the new leader delivers those messages again
		return cn.tryHandOver(ctx, pt, to)
	}
	if !ready {
		return true
	}
	switch err := cn.store.HandOver(ctx, pt.Identity(), &st, to); {
	case err == nil:
		r.run(func() { r.handedOver = st.Version })
	case errors.Is(err, meta.ErrConflict): // the row has changed, and the news of it is on its way here
	default:
		r.resumeWrites()
		cn.log.Warn("a partition could not be handed over", "topic", pt.t.name, "partition", pt.number, "error", err)
		return false
	}
	return true
}

// giveAway asks the store at once to make another member of the ISR the leader, whatever is pending: this node's disk
// hangs. again says that it may be tried again.
func (cn *replicaNode) giveAway(pt *partition) (handed, again bool) {
	r := pt.rep
	r.mu.Lock()
	st, leads := r.state, r.leader != nil
	r.mu.Unlock()
	if !leads || len(st.ISR) < 2 {
		return false, false
	}
	ctx, cancel := cn.e.host.WithTimeout(cn.ctx, storeTimeout)
	defer cancel()
	if err := cn.store.HandOver(ctx, pt.Identity(), &st, 0); err != nil {
		return false, !errors.Is(err, meta.ErrNotFound)
	}
	// The worker may hang in the disk because of another row, so pass this row on here.
	if row := cn.store.Snapshot().Partitions[pt.Identity()]; row != nil && row.State.Epoch > st.Epoch {
		r.learn(row)
	}
	return true, false
}
