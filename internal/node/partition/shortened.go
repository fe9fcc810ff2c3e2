package partition

import (
	"errors"
	"slices"
	"time"

	"penstock/internal/meta"
	"penstock/internal/node/datadir"
	"penstock/internal/node/replay"
	"penstock/replicate"
	"penstock/segment"
)

// shortenedWritePause delays a write of the file, so that one write covers the changes of many partitions.
const shortenedWritePause = time.Second

// noteShortened reads the list of shortened copies, adds the copies that this recovery shortened, and writes the list
// before anything is written to the commit log. torn says that recovery cut a group that may have been acknowledged, or
// that the log lacks groups that were durable. whole says that the commit log was read to its end. If it was not, it
// does not tell which topics exist, and no listed topic counts as deleted.
func (cn *Env) noteShortened(r *replay.Replay, torn, whole bool) error {
	s := cn.store
	var err error
	if cn.Shortened, err = datadir.ReadShortened(s.disk); err != nil {
		s.log.Warn("the list of copies that an earlier recovery shortened cannot be read: all are taken for such",
			"error", err)
		torn = true
	}
	// The topic of a listed copy that the commit log does not know was deleted.
	forgotten := whole && cn.Shortened.Forget(func(id segment.Identity) bool { return !r.Has(id) })
	var ids []segment.Identity
	for _, rp := range r.Partitions() {
		if (torn || rp.Committed > rp.State.Next) && !cn.Shortened.Has(rp.ID) {
			ids = append(ids, rp.ID)
		}
	}
	if named := len(ids); named > 0 {
		s.log.Warn("the copies of this node may lack the last messages that it answered OK for: each of them "+
			"compares itself with another replica before it leads", "partitions", named)
	}
	if torn && !cn.Shortened.Has(datadir.UnnamedCopies) {
		ids = append(ids, datadir.UnnamedCopies)
	}
	if len(ids) == 0 && forgotten { // a new copy with the same identity must not count as given up
		return cn.Shortened.Write()
	}
	if len(ids) == 0 {
		return nil
	}
	return cn.Shortened.Add(ids)
}

// ListUnnamed replaces datadir.UnnamedCopies in the list, durably, by the copies that recovery does not know and that
// the store says are on this node. It also removes copies that are not on this node any more, because their topics were
// deleted or they have moved. join calls it before any copy is opened. snap is not older than the registration of this
// process, so it names every copy that an earlier process held. If the commit log could not be read to its end, this
// process leads nothing and ListUnnamed does nothing; the next process repeats it.
//
// If the file cannot be written, the node does not join. Otherwise copies that are named only in memory would get
// records, and the next process would find those records and take the copies for whole.
func (cn *Env) ListUnnamed(snap *meta.Snapshot) error {
	if cn.store.poisoned.Load() != nil {
		return nil
	}
	s := cn.Shortened
	here := map[segment.Identity]bool{}
	for _, pt := range cn.store.Partitions() {
		here[pt.Identity()] = true
	}
	unnamed, named := s.Replace(func(yield func(segment.Identity) bool) {
		for id, row := range snap.Partitions.All() {
			if !here[id] && slices.Contains(row.State.Replicas, cn.Self.ID) && !yield(id) {
				return
			}
		}
	}, func(id segment.Identity) bool {
		row := snap.Partitions.Get(id)
		return !here[id] && (row == nil || !slices.Contains(row.State.Replicas, cn.Self.ID))
	})
	if named > 0 {
		cn.Log.Warn("copies of this node may have had nothing but what a start cut off its commit log: each of them "+
			"compares itself with another replica before it leads", "partitions", named)
	}
	if !unnamed {
		return nil
	}
	return s.Write()
}

// noteShortened keeps the list of shortened copies as the machine says: it adds a copy whose leader has found that it
// forgot, and removes one that has everything committed. mu is held.
func (r *Replica) noteShortened() {
	if r.leader == nil && r.follower == nil {
		return
	}
	now := r.leader != nil && r.leader.Shortened() || r.follower != nil && r.follower.Shortened()
	if now == r.shortened || now && r.leader == nil {
		return // nothing changed, or the copy follows: before a cut or reset of its log, logCut.prepare lists it
	}
	r.shortened = now
	if now {
		r.node.Log.Error("another replica of a partition has committed messages that this copy lacks, although this node "+
			"did not know that it lost any: the copy appends nothing and hands over. Look at this node's disk: files were "+
			"removed, or it came back in an earlier state", "topic", r.pt.topic.Name, "partition", r.pt.number)
		r.node.Spawn(func() {
			if err := r.node.Shortened.Add([]segment.Identity{r.pt.Identity()}); err != nil {
				r.node.Log.Warn("it could not be kept that a copy is shortened: a restart would take it for whole",
					"topic", r.pt.topic.Name, "partition", r.pt.number, "error", err)
			}
		})
		return
	}
	r.node.Log.Info("a copy that recovery had shortened has all that is committed",
		"topic", r.pt.topic.Name, "partition", r.pt.number)
	if r.node.Shortened.Remove(r.pt.Identity()) {
		r.node.Spawn(r.node.writeShortened)
	}
}

// unlistShortened removes the copy, whose bytes are removed, from the list of shortened copies, durably. If this node
// becomes a replica again, the copy begins empty like any other. It takes Replica.mu and the two locks of
// datadir.Shortened (file, mu), and does not hold Replica.mu while it writes.
func (r *Replica) unlistShortened() error {
	r.mu.Lock()
	r.shortened = false
	r.mu.Unlock()
	return r.node.Shortened.RemoveNow(r.pt.Identity())
}

// writeShortened writes the file until it has the newest list. It runs on a goroutine that noteShortened starts. If the
// file cannot be written, some copies are compared once more than necessary at the next start.
func (cn *Env) writeShortened() {
	for told := 0; ; {
		cn.Pause(shortenedWritePause)
		done, err := cn.Shortened.CatchUp(func() bool { return cn.Ctx.Err() != nil })
		if done {
			return
		}
		if err != nil && told == 0 {
			told++
			cn.Log.Warn("it could not be kept that copies are whole again: they are compared once more at the next start",
				"error", err)
		}
	}
}

// handOverShortened asks the store to make another node the leader: the one whose log has the batches that recovery cut
// off this node's log. mu is held.
func (r *Replica) handOverShortened(a *replicate.Action) {
	st, to := a.State, a.Node
	if r.yieldedEpoch != st.Epoch {
		r.yieldedEpoch = st.Epoch
		r.node.yields.Add(1)
		r.node.Log.Warn("another replica has more of a partition than this one, which may lack what it acknowledged: it is "+
			"made the leader; nothing is cut",
			"topic", r.pt.topic.Name, "partition", r.pt.number, "epoch", st.Epoch, "to", to, "its_end", a.Position)
	}
	r.node.Spawn(func() {
		ctx, cancel := r.node.store.host.WithTimeout(r.node.Ctx, StoreTimeout)
		defer cancel()
		if err := r.node.Rows.HandOver(ctx, r.pt.Identity(), &st, to); err != nil && !errors.Is(err, meta.ErrConflict) &&
			r.node.Ctx.Err() == nil && r.refusedEpoch.Swap(uint64(st.Epoch)) != uint64(st.Epoch) {
			r.node.Log.Info("a partition whose log was shortened could not be handed over yet; it is tried again",
				"topic", r.pt.topic.Name, "partition", r.pt.number, "to", to, "error", err)
		}
	})
}

// logComparing logs, once per epoch, that a partition has waited long for another replica: for its log, or until it can
// lead. now is by Lease.Now. mu is held.
func (r *Replica) logComparing(now int64) {
	const patience = 10 * time.Second
	r.noteBlocked()
	switch {
	case r.blocked != 0:
	case r.leader == nil || !r.leader.Comparing():
		r.comparing = 0
	case r.comparing == 0:
		r.comparing = now
	case r.comparing > 0 && now-r.comparing > int64(patience):
		r.comparing = -1
		r.node.comparingWaits.Add(1)
		r.node.Log.Warn("a partition waits: this node leads it, its copy may lack what it acknowledged or comes from a "+
			"backup, and a member of the ISR that may have more cannot be asked, or cannot lead. Nothing is lost: start the "+
			"other replicas of it; if they cannot come back, force-leader with this node gives up what only they had",
			"topic", r.pt.topic.Name, "partition", r.pt.number, "epoch", r.leader.Epoch())
	}
}

// noteBlocked logs and counts when the comparison begins to wait for a replica that may have more and cannot lead, and
// updates the count when it stops to wait. mu is held.
func (r *Replica) noteBlocked() {
	by := replicate.NodeID(0)
	if r.leader != nil {
		by = r.leader.Blocked()
	}
	if by == r.blocked {
		return
	}
	if r.blocked != 0 {
		r.node.blocked.Add(-1)
	}
	if r.blocked = by; by == 0 {
		return
	}
	r.node.blocked.Add(1)
	r.node.comparingWaits.Add(1)
	r.node.Log.Error("a partition waits: this node leads it, its log may lack what was acknowledged, and the replica "+
		"that may have what is missing cannot lead: its copy does not read back, or is contested, or is not in sync. "+
		"Restart that node, or start another replica of the partition; if nothing helps, force-leader with this node gives "+
		"up what only that replica had, and with that node what only this one has",
		"topic", r.pt.topic.Name, "partition", r.pt.number, "epoch", r.leader.Epoch(), "replica", by)
}
