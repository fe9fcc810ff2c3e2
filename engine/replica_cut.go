package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"penstock/clog"
	"penstock/engine/core"
	"penstock/replicate"
	"penstock/segment"
)

// A cut of the log, step by step. The follower's log stands still from the exchange on until EvTruncated.
//
//	goroutine                                    committer
//	1 waits until what came before is appended
//	2 reads what is left of the log: its state
//	  at the cut, and the fold
//	                                             3 writes a record that says all this; from here on the
//	                                               partition's machine, fold and table are those of the cut
//	                                             4 the record is durable
//	5 cuts the segments, EvTruncated
//
// A crash before 4 leaves the log as it was; after 4, recovery finds the record and cuts again. What 2 cannot read is
// fetched from the leader; what cannot be had that way makes the copy begin anew (replica_discard.go).
//
// The copy may be closed at any step, because its partition moves away: the cut goes on, and nothing else begins before it
// has ended (isTearingDown). Closed in step 1, the copy lets go of what was on its way to the log, so that the log may end
// below the cut. Then nothing of it goes, and the record tells that all of it is durable.

// beginCut starts it; mu is held.
func (r *replica) beginCut(a *replicate.Action) {
	c := &logCut{reset: a.Kind == replicate.ActReset, generation: a.Generation, to: a.Position, durable: make(chan error, 1)}
	if c.reset {
		c.to, c.state = a.Log.Next, a.Log
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
	r.cn.log.Info("cuts its copy of a partition to what the leader has", "topic", r.pt.t.name, "partition", r.pt.number, "to", c.to, "anew", c.reset)
	r.cn.spawn(func() { r.doCut(c) })
}

// doCut makes a cut, on a goroutine of its own, unless the copy is given up before its record is written: then c is not
// the copy's cut any more, and another one, that begins the log anew, may be on its way when the disk has answered here.
func (r *replica) doCut(c *logCut) {
	err := r.awaitPrepared(c)
	if err == nil && !r.discarded.Load() {
		err = r.brokenFile()
	}
	select {
	case <-r.cn.e.stop:
		return
	default:
	}
	switch {
	case errors.Is(err, segment.ErrPoisoned):
		r.awaitDiscard(c)
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
	err, ok := r.cn.e.host.Result(c.durable, r.cn.e.stop)
	if err != nil || !ok {
		return // the commit log failed, and everybody knows; or it was stopped
	}
	if c.reset {
		err = errors.Join(r.pt.log.Reset(c.state), r.cn.e.trashLeftovers(r.pt))
	} else {
		err = r.pt.log.Truncate(c.state)
	}
	if err == nil && c.reset {
		err = r.clearDiscarded() // before anything new is acknowledged
	}
	if err != nil {
		r.cutFailed(c, err)
		return
	}
	r.pt.reopenInbox()
	if c.reset && !r.awaitResetAllowed() {
		return
	}
	r.run(func() {
		r.cut = nil
		r.step(&replicate.Event{Kind: replicate.EvTruncated, Generation: c.generation, Log: c.state})
		// What is left stands before the record in the commit log, so it is as durable. The groups that said so belong to the log before the cut.
		r.durable = max(r.durable, c.state.Next)
		r.step(&replicate.Event{Kind: replicate.EvDurable, Position: r.durable, Generation: c.generation})
		r.correctDamaged(r.row.Load()) // what this version does not know may have been cut
	})
}

// cutFailed ends the copy's part until a restart: cut c cannot be made, or, without a cut (nil), the copy cannot be given
// up. Only the goroutine of c calls it; nothing comes of it if c is not the copy's cut any more.
func (r *replica) cutFailed(c *logCut, err error) {
	r.run(func() {
		if r.cut != c {
			return
		}
		r.cn.e.log.Error("a copy of a partition could not be cut to what its leader has: it does not follow any more; "+
			"restart the node", "topic", r.pt.t.name, "partition", r.pt.number, "error", err)
		if c != nil {
			c.failed = true
		}
		r.step(&replicate.Event{Kind: replicate.EvFault, Err: err})
	})
}

// isCutBy says whether c is the cut that the copy's log waits for. Any goroutine may ask.
func (r *replica) isCutBy(c *logCut) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cut == c
}

// awaitPrepared prepares a cut, again while that fails for a reason that passes: a range that is repaired, a device that
// reads again, a full disk that has room again; not for a copy that is given up meanwhile. doCut calls it on its own
// goroutine.
func (r *replica) awaitPrepared(c *logCut) error {
	for told := false; ; {
		err := r.prepareCut(c)
		if isFull(err) && !told {
			told = true
			r.cn.log.Warn("a copy of a partition waits until the disk has room, and is not in sync until then. What was acknowledged is "+
				"on the other replicas; free space", "topic", r.pt.t.name, "partition", r.pt.number, "error", err)
		}
		switch {
		case err == nil, !r.isCutBy(c):
			return err
		case needsRefetch(err) && (r.awaitRepair(c, err) || r.awaitDevice(err)):
		case isFull(err) && r.cn.e.host.Pause(roomPause, r.cn.e.stop):
		default:
			return err
		}
	}
}

// roomPause lies between two attempts of a cut on a disk without room.
const roomPause = 500 * time.Millisecond

// prepareCut finds out what the log will be.
func (r *replica) prepareCut(c *logCut) error {
	for r.appending() {
		if !r.cn.e.host.Pause(time.Millisecond, r.cn.e.stop) {
			return ErrClosed
		}
	}
	c.fold, c.unread = new(core.Cursors), nil
	r.clampToLog(c)
	switch {
	case !c.reset:
		if err := r.pt.log.Poisoned(); err != nil {
			return err
		}
		if err := r.pt.refold(c); err != nil {
			return err
		}
	case !r.mayReset():
		if err := r.cn.shortened.add([]segment.Identity{r.pt.identity()}); err != nil {
			return err
		}
		r.run(func() { r.shortened = true })
	}
	kind := byte(cutTruncate)
	if c.reset {
		kind = cutReset
	}
	c.payload = append(c.payload[:0], kind, 0, 0, 0, 0, 0, 0, 0)
	c.payload = appendEntry(c.payload, r.pt.identity(), &entry{state: c.state, committed: min(c.committed, c.state.Next), epochs: c.epochs, fold: c.knownFold()})
	if len(c.payload) > clog.MaxPayloadBytes {
		return fmt.Errorf("engine: the state of the channels takes %d bytes, the commit log takes records of at most %d", len(c.payload), clog.MaxPayloadBytes)
	}
	return nil
}

// mayReset says that a copy may begin anew: the file of shortened copies has it, or it holds nothing. prepareCut asks, before
// it writes the record: after a crash behind the record, a copy that is not in the file would count as whole. Whether the
// row says that the copy is in sync does not matter, for that row may be from before the copy joined.
func (r *replica) mayReset() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.shortened && r.cn.shortened.isDurable(r.pt.identity()) || r.pt.machine.State().Next == 0
}

// knownFold is what the record says of the fold; nil: it is not known.
func (c *logCut) knownFold() *core.Cursors {
	if c.unread != nil {
		return nil
	}
	return c.fold
}

// appending says whether batches from before the cut are still on their way to the log.
func (r *replica) appending() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.incoming) > 0
}

// clampToLog moves the cut of a copy that was closed to the end of its log if that lies below, and forgets the epochs of
// what never came to the log: with them the copy would refuse, for ever, what its next leader sends of older epochs.
func (r *replica) clampToLog(c *logCut) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed || c.reset {
		return
	}
	c.to = min(c.to, r.pt.machine.State().Next)
	c.epochs = slices.DeleteFunc(c.epochs, func(e replicate.EpochStart) bool { return e.Position >= c.to })
}

// refold reads the segment that the cut lies in, from its beginning: its first batch is a checkpoint of the fold.
func (pt *partition) refold(c *logCut) error {
	start, first, _ := pt.log.Start()
	if c.to <= first {
		st, err := pt.startState()
		c.state = st
		return err
	}
	last, err := pt.log.SeekPosition(c.to - 1)
	if err != nil {
		return err
	}
	where, err := pt.log.Where(last)
	if err != nil {
		return err
	}
	at := max(where.SegmentBase, start)
	var v segment.View
	for pos := segment.Position(0); pos < c.to; {
		if err := pt.log.View(&v, at, refoldBytes); err != nil {
			return err
		}
		next, size, err := pt.e.foldRun(c, v.Bytes(), at)
		v.Release()
		if err != nil {
			return err
		}
		pos, at = next, at+segment.Offset(size)
	}
	c.state.Segment, c.state.SegmentBase, c.state.SegmentCapacity = where.Segment, where.SegmentBase, where.SegmentCapacity
	return nil
}

// errNoFold is for a segment whose first batch could not hold the fold, see committer.sealInternal.
var errNoFold = errors.New("engine: the state of the channels at the cut was too large for the segment that it lies in")

// refoldBytes is what refold reads at once.
const refoldBytes = 1 << 20

// foldRun folds the batches of a run below the cut.
func (e *Engine) foldRun(c *logCut, run []byte, at segment.Offset) (next segment.Position, size int, err error) {
	var it segment.BatchIter
	it.Reset(run)
	for h, body, ok := it.Next(); ok && h.Position < c.to; h, body, ok = it.Next() {
		if c.unread == nil {
			due, err := e.foldBatch(c.fold, h, body, at+segment.Offset(size))
			switch {
			case newer(err):
				c.unread = err
			case err != nil:
				return 0, 0, err
			case h.FirstID > 0 && c.fold.End() == 0:
				return 0, 0, errNoFold
			}
			c.fold.PublishDeferred(due)
		}
		size += h.Size()
		next = h.Position + 1
		c.state = segment.State{Next: next, NextID: h.NextID(), End: at + segment.Offset(size), LastCRC: h.CRC, Epoch: h.Epoch}
	}
	return next, size, it.Err()
}

// writeCut writes the record of a cut that is ready. It returns false if g has no room; it runs on the committer with the replica's mu held.
func (c *committer) writeCut(pt *partition, g *clog.Group, w *groupWork) bool {
	cut := pt.rep.cut
	if cut == nil || !cut.ready {
		return true
	}
	dst := g.Reserve(clog.Placement{Type: clog.Truncate, Topic: pt.t.uuid, Partition: pt.number, Offset: cut.state.End}, len(cut.payload))
	if dst == nil {
		return false
	}
	copy(dst, cut.payload)
	c.ev = core.PartitionEvent{Kind: core.PartitionFollow, State: cut.state}
	pt.machine.Step(&c.ev, &c.res)
	pt.fold = cut.fold
	pt.setUnread(cut.unread)
	pt.epochs.Reset(cut.epochs)
	pt.publishFold(cut.state.NextID)
	cut.ready = false
	if cut.pinFiles {
		cut.release = c.e.flusher.pinFiles()
	}
	c.e.flusher.cut(pt, cut.state.End)
	w.cuts = append(w.cuts, cut)
	return true
}
