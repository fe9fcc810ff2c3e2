package partition

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"penstock/clog"
	"penstock/internal/node/checkpoint"
	"penstock/internal/node/errs"
	"penstock/internal/node/fold"
	"penstock/replicate"
	"penstock/segment"
	"penstock/segment/aio"
)

// A cut of the log has five steps. From the exchange with the leader until EvTruncated, the follower appends nothing
// new.
//
//	goroutine (logCut.make)                            committer
//	1 waits until all earlier batches are
//	  appended to the log
//	2 computes what the cut leaves: the state
//	  of the log at the cut, and the fold;
//	  durably keeps aside what it takes
//	                                             3 writes one record with all of this. From here on the
//	                                               partition's machine, fold and epoch table are those
//	                                               after the cut
//	                                             4 the record is durable
//	5 cuts the segments, steps EvTruncated
//
// After a crash before step 4, the log is as it was before the cut. After a crash behind step 4, recovery finds the
// record and cuts again. What is kept aside in step 2 (internal/node/aside) is durable before step 3; if the crash
// comes before step 4, the log still has it, and the next cut or Keeper.Sweep removes it. A reset pins the commit log
// files from step 3 until step 5 is done. Otherwise its file could be released meanwhile, and the next start would take
// the old segments for a part of the new log, with a gap behind them. A truncation needs no pin: what it leaves above
// the new end is ignored anyway.
//
// If step 2 meets damage, the damaged range is fetched from the leader; if that does not help, the copy is given up and
// gets a new log (replica_discard.go).
//
// The copy may be closed during any step, because its partition moves to other nodes. The cut is finished nevertheless,
// and no new copy starts before that (IsTearingDown). If the copy is closed in step 1, it drops the batches that were
// still to be appended, so the log may end below the cut. Then the cut removes nothing, and its record says that the
// whole log is durable.

// beginCut starts the cut that the machine asked for. mu is held.
func (r *Replica) beginCut(a *replicate.Action) {
	c := &logCut{
		replica: r, reset: a.Kind == replicate.ActReset, generation: a.Generation, to: a.Position,
		durable: make(chan error, 1),
	}
	if c.reset {
		c.to, c.State, c.pinFiles, c.leaderHad = a.Log.Next, a.Log, true, a.Flag
	}
	log := r.follower.Log()
	c.epochs = append([]replicate.EpochStart(nil), log.Epochs...)
	c.committed = r.follower.Committed()
	r.generation = a.Generation
	r.durable = min(r.durable, c.to)
	if c.reset {
		r.durable = c.to
	}
	r.cut = c
	r.noteDiscarded()
	r.node.Log.Info("cuts its copy of a partition to what the leader has",
		"topic", r.pt.topic.Name, "partition", r.pt.number, "to", c.to, "anew", c.reset)
	r.node.Spawn(func() { c.make() })
}

// make makes the cut. It runs on a goroutine of its own, without mu. The copy may be given up before the record is
// written. Then c is not the copy's cut any more (a reset may have taken its place), and make ends without effect.
func (c *logCut) make() {
	r := c.replica
	err := c.awaitPrepared()
	if err == nil && !r.discarded.Load() {
		err = r.brokenFile()
	}
	select {
	case <-r.node.store.stop:
		return
	default:
	}
	switch {
	case errors.Is(err, segment.ErrPoisoned):
		c.awaitDiscard()
		return
	case err != nil && needsRefetch(err):
		r.discard(err, c)
		return
	case err != nil:
		r.cutFailed(c, err)
		return
	}
	r.run(func() {
		if r.cut == c {
			c.stays, c.ready, r.out.work = true, true, true
		}
	})
	if !c.stays {
		return
	}
	err, ok := r.node.store.host.Result(c.durable, r.node.store.stop)
	if err != nil || !ok {
		return // the commit log failed, and fault has handled that; or the engine closes
	}
	if c.reset {
		err = c.resetLog()
	} else {
		err = r.untilPossible(func() error { return r.pt.log.Truncate(c.State) })
	}
	switch {
	case errors.Is(err, errs.ErrClosed):
		return // replay cuts
	case err != nil:
		r.cutFailed(c, err)
		return
	}
	r.pt.flush.ReopenInbox()
	if c.reset && !r.awaitResetAllowed() {
		return
	}
	r.run(func() {
		r.cut = nil
		r.step(&replicate.Event{Kind: replicate.EvTruncated, Generation: c.generation, Log: c.State})
		// The batches that are left are in the commit log in front of the record, so they are durable. The groups that
		// reported them had the old generation, so the machine has to be told again.
		r.durable = max(r.durable, c.State.Next)
		r.step(&replicate.Event{Kind: replicate.EvDurable, Position: r.durable, Generation: c.generation})
		r.correctDamaged(r.row.Load()) // the cut may have removed entries that this version cannot read
	})
}

// resetLog does step 5 of a reset. It runs on the goroutine of logCut.make, without mu.
func (c *logCut) resetLog() error {
	r := c.replica
	err := r.untilPossible(func() error { return r.pt.log.Reset(c.State) })
	if err == nil {
		err = r.untilPossible(func() error { return r.node.store.trashLeftovers(r.pt) })
	}
	c.release()
	if err != nil {
		return err
	}
	return r.clearDiscarded() // before any batch of the new log is acknowledged
}

// untilPossible calls do until its error is none that segment.Waiting knows. It returns errs.ErrClosed if the engine
// closes meanwhile. It runs on the goroutine of logCut.make, or of a removal, without mu.
func (r *Replica) untilPossible(do func() error) error {
	for told := false; ; {
		err := do()
		if !segment.Waiting(err) {
			return err
		}
		if !told {
			told = true
			r.node.store.log.Warn("the files of a copy of a partition cannot be cut yet; it is tried again, and the copy is "+
				"not in sync until then. What was acknowledged is on the other replicas: look at the limit of open files, and "+
				"at the disk", "topic", r.pt.topic.Name, "partition", r.pt.number, "error", err)
		}
		if !r.node.store.host.Pause(roomPause, r.node.store.stop) {
			return errs.ErrClosed
		}
	}
}

// cutFailed stops the copy until a restart, because cut c cannot be made. c is nil if there is no cut, and the copy
// could not be given up. Only the goroutine that makes c calls it, without mu. It has no effect if c is not the copy's
// cut any more.
func (r *Replica) cutFailed(c *logCut, err error) {
	r.run(func() {
		if r.cut != c {
			return
		}
		r.node.store.log.Error("a copy of a partition could not be cut to what its leader has: it does not follow any more; "+
			"restart the node", "topic", r.pt.topic.Name, "partition", r.pt.number, "error", err)
		if c != nil {
			c.failed = true
		}
		r.step(&replicate.Event{Kind: replicate.EvFault, Err: err})
	})
}

// isCurrent says whether c is still the copy's cut. It takes mu.
func (c *logCut) isCurrent() bool {
	r := c.replica
	return r.holds(func() bool { return r.cut == c })
}

// awaitPrepared prepares a cut. It tries again as long as the cause of a failure may go away: a damaged range that is
// being repaired, a device that may read again, what segment.Waiting knows. It stops if the copy is given up meanwhile.
// It runs on the goroutine of logCut.make, without mu.
func (c *logCut) awaitPrepared() error {
	r := c.replica
	for told := false; ; {
		err := c.prepare()
		if aio.NoRoom(err) && !told {
			told = true
			r.node.Log.Warn("a copy of a partition waits until the disk has room, and is not in sync until then. What was "+
				"acknowledged is on the other replicas; free space",
				"topic", r.pt.topic.Name, "partition", r.pt.number, "error", err)
		}
		switch {
		case err == nil, !c.isCurrent():
			return err
		case needsRefetch(err) && (c.awaitRepair(err) || r.awaitDevice(err)):
		case segment.Waiting(err) && r.node.store.host.Pause(roomPause, r.node.store.stop):
		default:
			return err
		}
	}
}

// roomPause is the time between two attempts of a cut on a full disk.
const roomPause = 500 * time.Millisecond

// prepare does steps 1 and 2: it computes the state after the cut and the payload of its record, and keeps aside
// what the cut takes. It runs on the goroutine of logCut.make, without mu.
func (c *logCut) prepare() error {
	r := c.replica
	if err := c.awaitAppended(); err != nil {
		return err
	}
	c.Fold, c.Unread = new(fold.Cursors), nil
	c.clampToLog()
	switch {
	case !c.reset:
		if err := r.pt.log.Poisoned(); err != nil {
			return err
		}
		var err error
		if c.Past, err = r.pt.pastAt(c.to); err != nil {
			return err
		}
	case !c.mayReset():
		if err := r.node.Shortened.Add([]segment.Identity{r.pt.Identity()}); err != nil {
			return err
		}
		r.run(func() { r.shortened = true })
	}
	if err := c.encode(r.pt.Identity()); err != nil {
		return err
	}
	return c.keepAside()
}

// encode computes the payload of the record. A fold that is too large for a record is left out: this process has it,
// and a recovery that needs the record reads the fold from the segments (Recovery.readFold).
func (c *logCut) encode(id segment.Identity) error {
	en := checkpoint.Entry{
		ID: id, State: c.State, Committed: min(c.committed, c.State.Next), Epochs: c.epochs, Fold: c.KnownFold(),
	}
	c.payload = checkpoint.AppendCut(nil, c.reset, &en)
	if len(c.payload) > clog.MaxPayloadBytes && en.Fold != nil {
		en.Fold = nil
		c.payload = checkpoint.AppendCut(nil, c.reset, &en)
	}
	if len(c.payload) > clog.MaxPayloadBytes {
		return fmt.Errorf("engine: the record of a cut takes %d bytes, the commit log takes records of at most %d",
			len(c.payload), clog.MaxPayloadBytes)
	}
	return nil
}

// mayReset says whether the log may be reset now: either shortened.json lists the copy durably, or the log is empty.
// prepare asks before the record is written, because after a crash behind the record, a copy that is not in the file
// would count as whole. The ISR of the row proves nothing: the row may be from before the copy joined. It takes mu.
func (c *logCut) mayReset() bool {
	r := c.replica
	return r.holds(func() bool {
		return r.shortened && r.node.Shortened.IsDurable(r.pt.Identity()) || r.pt.machine.State().Next == 0
	})
}

// awaitAppended does step 1. It returns the error of a file that cannot be written any more (brokenFile): the batches
// that are to be appended may wait for room in a commit log that is full of what this file does not take. A copy that
// is given up already keeps no files, so there will be room.
func (c *logCut) awaitAppended() error {
	r := c.replica
	var broken error
	ok := r.await(func() bool {
		if !c.appending() {
			return true
		}
		if !r.discarded.Load() {
			broken = r.brokenFile()
		}
		return broken != nil
	})
	if !ok {
		return errs.ErrClosed
	}
	return broken
}

// appending says whether batches that came before the cut are not appended to the log yet. It takes mu.
func (c *logCut) appending() bool {
	r := c.replica
	return r.holds(func() bool { return len(r.incoming) > 0 })
}

// clampToLog lowers the cut of a closed copy to the end of its log, if the log ends below the cut, and drops the epochs
// of batches that never reached the log. With those epochs, the copy would for ever refuse the older epochs that its
// next leader sends. It takes mu.
func (c *logCut) clampToLog() {
	r := c.replica
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.isClosed() || c.reset {
		return
	}
	c.to = min(c.to, r.pt.machine.State().Next)
	c.epochs = slices.DeleteFunc(c.epochs, func(e replicate.EpochStart) bool { return e.Position >= c.to })
}

// writeCut does step 3: it writes the record of a cut that is ready, if there is one. It returns false if g has no
// room; then it is called again with the next group. The committer calls it with Replica.mu held.
func (c *committer) writeCut(pt *Partition, g *clog.Group, w *groupWork) bool {
	cut := pt.replica.cut
	if cut == nil || !cut.ready {
		return true
	}
	dst := g.Reserve(clog.Placement{Type: clog.Truncate, Topic: pt.topic.ID, Partition: pt.number, Offset: cut.State.End},
		len(cut.payload))
	if dst == nil {
		return false
	}
	copy(dst, cut.payload)
	pt.machine.Follow(cut.State)
	pt.fold = cut.Fold
	pt.setUnread(cut.Unread)
	pt.epochs.Reset(cut.epochs)
	pt.publishFold(cut.State.NextID)
	pt.flush.ForgetWaiting()
	cut.ready = false
	if cut.pinFiles {
		cut.release = c.store.flusher.PinFiles()
	}
	c.store.flusher.Cut(&pt.flush, cut.State.End)
	w.cuts = append(w.cuts, cut)
	return true
}
