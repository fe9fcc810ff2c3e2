package partition

import (
	"errors"
	"slices"

	"penstock/internal/meta"
	"penstock/internal/node/checkpoint"
	"penstock/internal/node/datadir"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/internal/node/health"
	"penstock/internal/node/logread"
	"penstock/segment"
)

// This file removes the bytes of a copy that moved to other nodes. The bytes are removed only when the cluster has
// decided that this node is not a replica any more, and every remaining replica is in sync. Without a row in the store
// nothing is removed.
//
//	goroutine (remover)                        committer
//	                                           1 writes a record that resets the log to nothing; from here on
//	                                             the partition's machine, fold and epoch table are empty
//	                                           2 the record is durable
//	3 removes the segments, through the trash
//
// The row that this node knows may be out of date: the partition may have moved back, and this copy may be in the ISR
// again. So before step 1 the node reads the row from the store. At that time the copy is closed and acknowledges
// nothing. A leader of a later row may count only acks that this copy sent before it was closed; in that case the store
// already has that later row, and the copy stays.
//
// No commit log file is released from step 1 until step 3 is done. So after a crash behind step 2, recovery finds the
// record, and removes the files before it does anything else. A crash before step 2 leaves the copy as it was, or
// marked as dropped: before step 1 the commit log may release files with batches that the segments lack (HoldsFiles),
// because a commit log that is full of such files would have no room for the record. The partition stays open with an
// empty log. If the node becomes a replica again, its copy begins there.

// remover is the goroutine that removes the bytes of one copy. There is one at a time for each copy, while
// removal.removing is set.
type remover struct{ replica *Replica }

// RemoveIfUnneeded starts the removal of this node's bytes of pt, if row permits it. The node's worker calls it. It
// takes Replica.mu.
func (cn *Env) RemoveIfUnneeded(snap *meta.Snapshot, pt *Partition, row *meta.Partition) {
	r := pt.replica
	if !cn.isUnneeded(snap, row) {
		return
	}
	r.mu.Lock()
	has := !r.removing && (r.pt.log != nil && r.isClosed() || r.pt.log == nil && !r.leftoversRemoved)
	if has {
		r.removing = true
	}
	r.mu.Unlock()
	if has {
		cn.Spawn((&remover{r}).run)
	}
}

// isUnneeded says whether, by this row, nobody needs the bytes that this node has of the partition.
func (cn *Env) isUnneeded(snap *meta.Snapshot, row *meta.Partition) bool {
	return !slices.Contains(row.State.Replicas, cn.Self.ID) && health.FullyInSync(snap, row)
}

// confirmUnneeded reads the row from the store, and says whether the bytes are still unneeded. It waits until the store
// answers or the node closes. If the bytes are needed, version is the version of the row; 0 means that there is no row,
// or that the node closes. No lock is held.
func (d *remover) confirmUnneeded() (unneeded bool, version uint64) {
	r := d.replica
	cn := r.node
	for cn.Ctx.Err() == nil {
		ctx, cancel := cn.store.host.WithTimeout(cn.Ctx, StoreTimeout)
		row, err := cn.Rows.ReadPartition(ctx, r.pt.Identity())
		cancel()
		switch {
		case err == nil:
			return cn.isUnneeded(cn.Rows.Snapshot(), row), row.State.Version
		case errors.Is(err, meta.ErrNotFound):
			return false, 0 // the topic is deleted; the deletion removes its files
		}
		cn.Pause(RetryInterval)
	}
	return false, 0
}

// checkLater makes the worker check again whether the bytes are needed, if this node knows a newer row than the one
// that says they are. That newer row may have come while removing was set, and then RemoveIfUnneeded ignored it. Rows
// that come later find removing reset.
func (d *remover) checkLater(version uint64) {
	r := d.replica
	snap := r.node.Rows.Snapshot()
	if row := snap.Partitions.Get(r.pt.Identity()); row != nil && row.State.Version > version {
		r.node.above.TryLater(snap.Topics[row.ID.Topic], row.ID.Partition)
	}
}

// IsTearingDown says whether the bytes of an earlier copy are being removed, or the log of a closed copy is being cut.
// Until that ends, no new copy can begin. It takes mu.
func (r *Replica) IsTearingDown() bool {
	return r.holds(func() bool { return r.removing || r.isClosed() && r.cut != nil })
}

// run removes the bytes of the copy. It resets removing only when all bytes are removed,
// or when the store says that the copy stays. After a failure, the log in memory may differ from the record, or the
// record is not durable. So removing stays set: until a restart, nothing more is removed and no new copy begins.
//
// A node asks the store only if it has bytes: at its start it comes here for every partition of the cluster of which it
// has no copy, and in a large cluster the store could not answer all these reads.
func (d *remover) run() {
	r := d.replica
	if !r.HasLog() && datadir.HasNoFiles(r.node.store.disk, r.pt.Identity()) {
		r.mu.Lock()
		r.removing, r.leftoversRemoved = false, true
		r.mu.Unlock()
		return
	}
	if unneeded, version := d.confirmUnneeded(); !unneeded {
		r.mu.Lock()
		r.removing = false
		r.mu.Unlock()
		d.checkLater(version)
		return
	}
	err := d.removeBytes()
	switch {
	case err == nil:
		r.mu.Lock()
		r.removing, r.leftoversRemoved = false, true
		r.mu.Unlock()
	case errors.Is(err, errs.ErrClosed), errors.Is(err, segment.ErrClosed):
	case r.node.store.poisoned.Load() != nil:
	default:
		r.node.Log.Error("what this node has of a partition that moved away could not be removed; it is tried again at the "+
			"next start", "topic", r.pt.topic.Name, "partition", r.pt.number, "error", err)
	}
}

func (d *remover) removeBytes() error {
	r := d.replica
	s, pt := r.node.store, r.pt
	if err := s.poisoned.Load(); err != nil {
		return *err // the next start may find more of the copy in the commit log, and then needs the segments
	}
	if !r.HasLog() { // an earlier process may have made files of which the commit log has no record
		return s.trashLeftovers(pt)
	}
	if !r.await(func() bool { return !r.cutInProgress() }) {
		return errs.ErrClosed
	}
	if !r.isEmpty() {
		bytes := pt.log.Bytes()
		release, err := d.resetToEmpty()
		if err != nil {
			return err
		}
		defer release()
		r.node.Log.Info("what this node had of a partition that moved away is removed",
			"topic", pt.topic.Name, "partition", pt.number, "bytes", bytes)
	}
	err := r.untilPossible(func() error { return pt.log.Reset(segment.State{}) })
	if err == nil {
		err = r.untilPossible(func() error { return s.trashLeftovers(pt) })
	}
	pt.flush.ReopenInbox()
	if err != nil {
		return err
	}
	return d.forget()
}

// forget takes a copy whose bytes are removed out of the list of shortened copies. The segments go first: they may have
// been what filled the disk. While the disk is full or descriptors lack, forget tries again. After a crash before the
// list is written, the next process takes the empty copy for one that is shortened or given up, and so trusts it less
// than it could.
func (d *remover) forget() error {
	r := d.replica
	for {
		err := r.clearDiscarded()
		if err == nil {
			err = r.unlistShortened()
		}
		if !segment.Waiting(err) {
			return err
		}
		if !r.node.store.host.Pause(devicePoll, r.node.store.stop) {
			return errs.ErrClosed
		}
	}
}

// cutInProgress says whether a cut is being made. A cut that failed does not count: the reset of a copy that is removed
// does not depend on it. It takes mu.
func (r *Replica) cutInProgress() bool {
	return r.holds(func() bool { return r.cut != nil && !r.cut.failed })
}

func (r *Replica) isEmpty() bool {
	return r.holds(func() bool { return r.pt.machine.State() == (segment.State{}) })
}

// resetToEmpty writes the record that resets the log to nothing, and waits until the record is durable. No commit log
// file is released until the caller has called release. It takes mu.
func (d *remover) resetToEmpty() (release func(), err error) {
	r := d.replica
	s, pt := r.node.store, r.pt
	c := &logCut{
		replica: r, reset: true, ready: true, pinFiles: true, durable: make(chan error, 1),
		Past: logread.Past{Fold: new(fold.Cursors)},
	}
	c.payload = checkpoint.AppendCut(c.payload, true, &checkpoint.Entry{ID: pt.Identity(), Fold: c.Fold})
	closed := false
	r.run(func() {
		if closed = !r.isClosed(); closed {
			return
		}
		r.generation++
		r.durable = 0
		r.cut, r.out.work = c, true
	})
	if closed {
		panic("BUG: engine: the bytes of a copy that takes part are removed")
	}
	err, ok := s.host.Result(c.durable, s.stop)
	if !ok {
		return nil, errs.ErrClosed
	}
	if err != nil {
		return nil, err
	}
	r.run(func() {
		r.cut, r.damaged = nil, nil
		pt.visible.Store(0)
	})
	return c.release, nil
}

// trashLeftovers moves those files from the partition's directory to the trash that belong to no segment of its log.
// Nothing is appended to the log meanwhile. If the partition has no log, all its files go: no record of the commit log
// needs them.
func (store *Store) trashLeftovers(pt *Partition) error {
	var kept []segment.SegmentInfo
	if pt.replica.HasLog() {
		kept = pt.log.Segments()
	}
	return datadir.TrashLeftovers(store.disk, pt.Identity(), kept)
}
