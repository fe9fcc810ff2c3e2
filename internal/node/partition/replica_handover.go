package partition

import (
	"context"
	"errors"
	"slices"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node/errs"
	"penstock/replicate"
)

// handOverTime bounds how long the puts of a partition wait for a new leader.
const handOverTime = time.Second

// HandOverPartition hands the leadership of pt to node to, or to any member of the ISR if to is 0. It gives up if the
// pending batches are not committed within handOverTime. No lock is held.
func (cn *Env) HandOverPartition(pt *Partition, to replicate.NodeID) {
	ctx, cancel := cn.store.host.WithTimeout(cn.Ctx, handOverTime)
	defer cancel()
	cn.above.Confirm(ctx, pt.topic.ID)
	_ = cn.Await(ctx, func() bool { return !pt.Leading.Load() || !cn.TryHandOver(ctx, pt, to) })
	pt.replica.resumeWrites()
}

// Keep lets pt append puts again after an attempt to hand it over that is not continued. It does nothing if there was
// none, or if the store already has another leader. No lock is held.
func (cn *Env) Keep(pt *Partition) { pt.replica.resumeWrites() }

// resumeWrites lets the replica append puts again that wait for a new leader. It does nothing if the store already has
// another leader, of which this replica has not heard: the batches that this node appended now would be cut. Then it
// raises no news either: handOverSome calls it again after each. It takes mu.
func (r *Replica) resumeWrites() {
	r.mu.Lock()
	resumes := r.writesPaused && !r.successorStored()
	r.mu.Unlock()
	if !resumes {
		return
	}
	r.run(func() {
		if r.writesPaused && !r.successorStored() {
			r.writesPaused, r.stalled = false, errs.ErrNoLeader
			r.retryStalled()
		}
	})
}

// successorStored says whether the store has accepted a hand-over that was decided with the row that this replica still
// knows. mu is held.
func (r *Replica) successorStored() bool { return r.handedOver != 0 && r.handedOver == r.state.Version }

// TryHandOver makes one attempt to hand the leadership over. It returns whether more is left to do: that is the case
// until the store has accepted the hand-over and this replica has heard of it. From the first attempt on nothing is
// appended to the log, not even confirmations, so the caller has them written first; otherwise the new leader delivers
// those messages again. If no other member of the ISR is live, nobody could lead, and nothing is left to do: pending
// batches may wait for those members for ever. No lock is held.
func (cn *Env) TryHandOver(ctx context.Context, pt *Partition, to replicate.NodeID) bool {
	r := pt.replica
	var st replicate.State
	ready := false
	r.mu.Lock()
	if r.leader == nil || !cn.othersLive(&r.state) {
		r.mu.Unlock()
		r.resumeWrites() // the other members may have left the ISR, or died, since the last attempt
		return false
	}
	r.writesPaused = true // from here on puts wait for the new leader
	st = r.state
	ready = r.pending.Len() == 0 && r.pending.Opened && !r.successorStored()
	r.mu.Unlock()
	if !ready {
		return true
	}
	switch err := cn.Rows.HandOver(ctx, pt.Identity(), &st, to); {
	case err == nil:
		r.run(func() { r.handedOver = st.Version })
	case errors.Is(err, meta.ErrConflict): // the row has changed, and the news of it is on its way here
	default:
		r.resumeWrites()
		cn.Log.Warn("a partition could not be handed over", "topic", pt.topic.Name, "partition", pt.number, "error", err)
		return false
	}
	return true
}

// othersLive says whether a member of the ISR on another node is live, as far as this node knows.
func (cn *Env) othersLive(st *replicate.State) bool {
	return slices.ContainsFunc(st.ISR, func(m replicate.Member) bool {
		return m.Node != cn.Self.ID && cn.IsLive(m.Node)
	})
}

// GiveAway asks the store at once to make another member of the ISR the leader, whether batches are pending or not,
// because this node's disk hangs. again says that the caller may try again. No lock is held.
func (cn *Env) GiveAway(pt *Partition) (handed, again bool) {
	r := pt.replica
	r.mu.Lock()
	st, leads := r.state, r.leader != nil
	r.mu.Unlock()
	if !leads || len(st.ISR) < 2 {
		return false, false
	}
	ctx, cancel := cn.store.host.WithTimeout(cn.Ctx, StoreTimeout)
	defer cancel()
	if err := cn.Rows.HandOver(ctx, pt.Identity(), &st, 0); err != nil {
		return false, !errors.Is(err, meta.ErrNotFound)
	}
	// The worker may hang in the disk because of another row. So pass this row to the replica here.
	if row := cn.Rows.Snapshot().Partitions.Get(pt.Identity()); row != nil && row.State.Epoch > st.Epoch {
		r.Learn(row)
	}
	return true, false
}
