package partition

import (
	"errors"
	"slices"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node/logread"
	"penstock/replicate"
	"penstock/replicate/wire"
)

// This file tells operators, and the row of the partition, in which state the copies of a node are.

// Copy says where the copy ends, what it knows to be committed, and what its node knows of its state. It takes
// Replica.mu, and may read the last batch from the device.
func (pt *Partition) Copy() *wire.CopyAnswer {
	r := pt.replica
	r.mu.Lock()
	st := pt.machine.State()
	a := &wire.CopyAnswer{
		End: st.Next, NextID: st.NextID, Epoch: st.Epoch, Committed: r.committed(), Leads: r.leader != nil,
		Contested: r.isContested(), Shortened: r.shortened,
	}
	a.Damaged = !a.Contested && (r.damaged != nil || r.discarded.Load())
	r.mu.Unlock()
	a.Damaged = a.Damaged || pt.log.Health() != nil
	a.Written = pt.lastWritten()
	return a
}

// lastWritten returns the time of the last batch, by the clock of the leader that appended it; zero: there is no batch,
// or it does not read back.
func (pt *Partition) lastWritten() time.Time {
	_, end, _ := pt.log.End()
	if _, start, _ := pt.log.Start(); end <= start {
		return time.Time{}
	}
	h, err := logread.HeaderAt(pt.log, end-1)
	if err != nil {
		return time.Time{}
	}
	return time.Unix(0, h.Appended).UTC()
}

// isContested says whether the machine has found that its leader's log lacks what was probably answered OK from this
// one. mu is held.
func (r *Replica) isContested() bool { return errors.Is(r.damaged, replicate.ErrContested) }

// logContested logs that the copy is contested from now on. mu is held.
func (r *Replica) logContested() {
	r.node.Log.Error("this copy of a partition is contested: it has messages that its leader's log lacks and that were "+
		"probably answered OK. Nothing is cut, and the copy does not follow. Compare the two with penstock cluster "+
		"force-leader TOPIC PARTITION NODE --dry-run, and force the node that is right to lead: what the other has beyond "+
		"that is kept aside",
		"topic", r.pt.topic.Name, "partition", r.pt.number, "leader", r.target.Load(), "end", r.pt.machine.State().Next,
		"committed", r.committed())
}

// ShortenedFor returns how long this node has had shortened copies; 0: it has none. A copy that is added and removed
// between two calls is not seen. It takes datadir.Shortened.mu. Any goroutine may call it.
func (cn *Env) ShortenedFor() time.Duration {
	if cn.Shortened.Count() == 0 {
		cn.shortenedAt.Store(0)
		return 0
	}
	now := max(cn.Now(), 1)
	cn.shortenedAt.CompareAndSwap(0, now)
	return time.Duration(now - cn.shortenedAt.Load())
}

// correctDamaged tells the store whether this copy is damaged, if row says otherwise. Such a row is out of date: an
// earlier process reported the damage, or the last report of this process came late, or the machine that reported the
// damage was replaced before the repair was reported. mu is held.
func (r *Replica) correctDamaged(row *meta.Partition) {
	if row == nil || !slices.Contains(row.State.Replicas, r.node.Self.ID) {
		return
	}
	if row.CopyOf(r.node.member()) != r.copyState() {
		r.reportDamage()
	}
}

// copyState returns what the store must know of the copy. mu is held.
func (r *Replica) copyState() meta.CopyState {
	switch {
	case r.isContested():
		return meta.CopyContested
	case r.damaged != nil || r.pt.WhyUnread() != nil:
		return meta.CopyDamaged
	}
	return meta.CopyWhole
}

// reportDamage tells the store whether the copy is damaged, on a goroutine that retries until the store has accepted
// the report. Each replica has at most one such goroutine, which reads the present state before each attempt. Two
// reports under way could reach the store in either order, and then the store might count a damaged copy as whole. mu
// is held.
func (r *Replica) reportDamage() {
	if r.reporting {
		return
	}
	r.reporting = true
	cn := r.node
	cn.Spawn(func() {
		for cn.Ctx.Err() == nil {
			r.mu.Lock()
			state := r.copyState()
			r.mu.Unlock()
			ctx, cancel := cn.store.host.WithTimeout(cn.Ctx, StoreTimeout)
			err := cn.Rows.ReportCopy(ctx, r.pt.Identity(), cn.member(), state)
			cancel()
			if err != nil && !errors.Is(err, meta.ErrNotFound) {
				cn.Pause(RetryInterval)
				continue
			}
			r.mu.Lock()
			if r.reporting = r.copyState() != state; !r.reporting {
				r.mu.Unlock()
				return
			}
			r.mu.Unlock()
		}
	})
}
