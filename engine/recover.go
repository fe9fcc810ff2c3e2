package engine

import (
	"errors"
	"fmt"

	"github.com/google/uuid"

	"penstock/clog"
	"penstock/engine/base"
	"penstock/engine/checkpoint"
	"penstock/engine/core"
	"penstock/engine/dir"
	"penstock/replicate"
	"penstock/segment"
)

// recovery rebuilds every partition when the engine opens: the checkpoint at the beginning of the oldest live commit
// log file, plus the records that follow. What the checkpoint covers is in segments and synced. What follows stays in
// the buffers of the commit log, and the flusher writes it to segments again, the same bytes to the same places. Replay
// itself writes nothing, so after a crash it is repeated. It runs before any other goroutine of the engine,
// on the goroutine of Open, and needs no lock.
type recovery struct {
	e          *store
	checkpoint []byte // the chunks received so far
	decoded    bool   // checkpoint is in parts
	parts      map[segment.Identity]*recovered
	order      []*recovered       // of parts, in order of appearance
	dropped    map[uuid.UUID]bool // topics with a tombstone

	bytes       int64    // replayed
	readOnly    int      // partitions that take nothing more
	corruptions []string // what was found to be damaged
}

// recovered is one partition during recovery.
type recovered struct {
	id     segment.Identity
	base   segment.State // at the checkpoint: the segments hold everything below
	st     segment.State // after replay
	fold   *core.Cursors
	slices []segment.Slice // the batches after base, in the buffers of the commit log
	err    error           // why a record could not be applied; later ones are not applied either
	unread error           // why the fold is not known; the rest of the state is

	writer    writerClock
	committed segment.Position // a lower bound of what is committed
	epochs    replicate.EpochTable
	restarted bool // the log was reset, so it begins at base: older segment files do not belong to it
}

// newRecovery returns a recovery that has read nothing yet.
func newRecovery(s *store) *recovery {
	return &recovery{e: s, parts: map[segment.Identity]*recovered{}, dropped: map[uuid.UUID]bool{}}
}

// replay opens the commit log and replays it. If the log is damaged, it poisons the store: the engine serves what could
// be read and stores nothing new. The caller calls releaseSlices when the partitions are open, whatever replay returns.
func (r *recovery) replay(node uuid.UUID) error {
	e := r.e
	log, report, err := clog.Open(e.disk, e.arena, clog.Options{
		Pulse:     e.pulse,
		FileBytes: e.opts.CommitFileBytes, MaxLiveBytes: e.opts.CommitLiveBytes, InFlight: e.opts.GroupsInFlight,
		Store: node, Logger: e.log, Inline: e.host.InlineLog(), MarkAfter: e.opts.MarkAfter,
	}, r)
	var corrupt *segment.CorruptError
	if err != nil && !errors.As(err, &corrupt) {
		return err
	}
	if log == nil {
		return err
	}
	e.clog = log
	if report != nil {
		r.bytes = report.Bytes
	}
	if derr := r.decodeCheckpoint(); derr != nil {
		return derr
	}
	if corrupt != nil {
		// Acknowledged records are damaged: serve what can be read, accept nothing new, and report it.
		e.log.Error("the commit log is corrupt: this node serves what could be read and stores nothing new", "error", err)
		r.corruptions = append(r.corruptions, err.Error())
		e.poison(err)
	}
	if e.replicas == nil {
		return nil // there is no other replica that could have more
	}
	return e.replicas.noteShortened(r, report.Tear != nil && !report.Tear.Mark, corrupt == nil)
}

// isEmpty says whether the commit log holds nothing.
func (r *recovery) isEmpty() bool {
	return len(r.checkpoint) == 0 && len(r.order) == 0 && len(r.dropped) == 0
}

// Restart implements clog.Replayer: it forgets what was replayed, because replay begins again with an older file.
func (r *recovery) Restart() {
	r.releaseSlices()
	*r = *newRecovery(r.e)
}

// Checkpoint implements clog.Replayer.
func (r *recovery) Checkpoint(chunk []byte) error {
	r.checkpoint = append(r.checkpoint, chunk...)
	return nil
}

// Checkpoint implements clog.Source: it emits the state of every partition after all records added so far. It runs on
// the committer.
func (c *committer) Checkpoint(emit func(chunk []byte)) {
	parts := c.e.partitionList()
	chunk := c.e.clog.MaxChunkBytes()
	buf := checkpoint.AppendCount(nil, len(parts))
	ends := make([]checkpointEnd, 0, len(parts))
	for _, pt := range parts {
		st := pt.machine.State()
		ends = append(ends, checkpointEnd{pt, st.End})
		buf = checkpoint.Append(buf, &checkpoint.Entry{
			ID: pt.Identity(), State: st, Committed: pt.committedMark(), Epochs: pt.epochs.Entries(), Fold: pt.knownFold(),
		})
		at := 0
		for ; len(buf)-at >= chunk; at += chunk {
			emit(buf[at : at+chunk])
		}
		buf = buf[:copy(buf, buf[at:])]
	}
	emit(buf)
	c.e.flusher.checkpointed(ends)
}

func (r *recovery) decodeCheckpoint() error {
	if r.decoded {
		return nil
	}
	r.decoded = true
	return checkpoint.Decode(r.checkpoint, func(en *checkpoint.Entry) {
		rp := &recovered{id: en.ID}
		rp.begin(en)
		r.add(rp)
	})
}

// begin sets rp to the state that an entry describes.
func (rp *recovered) begin(en *checkpoint.Entry) {
	rp.base, rp.st, rp.fold, rp.committed = en.State, en.State, en.Fold, en.Committed
	rp.epochs.Reset(en.Epochs)
	if rp.unread = nil; en.Fold == nil {
		rp.fold, rp.unread = new(core.Cursors), errFoldNotStored
	}
}

func (r *recovery) add(rp *recovered) {
	r.parts[rp.id] = rp
	r.order = append(r.order, rp)
}

// Record implements clog.Replayer.
func (r *recovery) Record(rec *clog.Record) error {
	if err := r.decodeCheckpoint(); err != nil {
		return err
	}
	id := segment.Identity{Topic: rec.Topic, Partition: rec.Partition}
	switch rec.Type {
	case clog.Tombstone:
		r.dropped[rec.Topic] = true
		return nil
	case clog.Batch, clog.Truncate:
	default:
		return fmt.Errorf("engine: the commit log holds a record of type %d, which this version does not write: start "+
			"the version that wrote it", rec.Type)
	}
	rp := r.parts[id]
	if rp == nil {
		rp = &recovered{id: id, fold: new(core.Cursors)}
		r.add(rp)
	}
	switch {
	case rec.Type == clog.Truncate:
		return rp.cut(rec)
	case rp.err == nil:
		rp.err = rp.apply(r.e, rec)
	}
	return nil
}

// cut replays a record of type clog.Truncate.
func (rp *recovered) cut(rec *clog.Record) error {
	en, anew, err := checkpoint.DecodeCut(rec.Payload)
	if err != nil {
		return err
	}
	if en.ID != rp.id {
		return checkpoint.ErrDecode
	}
	n := len(rp.slices)
	for n > 0 && (anew || rp.slices[n-1].Offset >= en.State.End) {
		n--
		rp.slices[n].Buf.Release()
	}
	rp.slices = rp.slices[:n]
	base := rp.base
	rp.begin(&en)
	rp.err = nil
	rp.restarted = rp.restarted || anew
	if !anew && base.End <= en.State.End {
		rp.base = base
	}
	return nil
}

// apply replays one batch. The commit log has verified its checksums; apply verifies that it follows the batch before.
func (rp *recovered) apply(e *store, rec *clog.Record) error {
	var h segment.Header
	if err := h.Decode(rec.Payload); err != nil {
		return err
	}
	if h.Position != rp.st.Next || h.FirstID != rp.st.NextID || rec.Offset != rp.st.End || h.PrevCRC != rp.st.LastCRC {
		return &segment.CorruptError{Path: fmt.Sprintf("clog/%010d.clog", rec.FileSeq), Detail: fmt.Sprintf(
			"batch %d of topic %s/%d does not follow batch %d", h.Position, rec.Topic, rec.Partition, rp.st.Next)}
	}
	rp.trackSegment(rec, &h, e.sizes())
	s := segment.Slice{
		Buf: rec.Buf, Data: rec.Payload, Position: h.Position, FirstID: h.FirstID, Count: h.Count, Offset: rec.Offset,
		Segment: rp.st.Segment, SegmentBase: rp.st.SegmentBase, SegmentCapacity: rp.st.SegmentCapacity,
		Control: h.Control(), Appended: h.Appended, FileSeq: rec.FileSeq,
	}
	rec.Buf.Retain()
	rp.slices = append(rp.slices, s)
	rp.st.Advance(&h)
	rp.epochs.Note(replicate.EpochStart{Epoch: h.Epoch, Position: h.Position, Offset: rec.Offset})
	return rp.foldIn(e, &h, rec.Payload[segment.HeaderBytes:], rec.Offset)
}

// trackSegment updates the segment of the state to the one that the record names. The leader may have given a segment
// more room than its first batch needs (a checkpoint before a large batch). Then the capacity grows here, for all
// slices of the segment.
func (rp *recovered) trackSegment(rec *clog.Record, h *segment.Header, sizes segment.Sizes) {
	st := &rp.st
	if st.SegmentCapacity == 0 || rec.Segment != st.Segment {
		if st.SegmentCapacity != 0 {
			st.SegmentCapacity = int64(st.End - st.SegmentBase)
		}
		sizes.Place(st, h.Size())
		st.Segment = rec.Segment
	}
	need := int64(st.End-st.SegmentBase) + int64(h.Size())
	if need <= st.SegmentCapacity {
		return
	}
	st.SegmentCapacity = (need + 4095) &^ 4095
	for i := len(rp.slices) - 1; i >= 0 && rp.slices[i].Segment == st.Segment; i-- {
		rp.slices[i].SegmentCapacity = st.SegmentCapacity
	}
}

// foldBatch folds a verified batch, except for messages with a delay, which it returns: the caller adds
// them to the fold with PublishDeferred.
func foldBatch(fold *core.Cursors, h *segment.Header, body []byte, at segment.Offset) ([]core.DeferredMessage, error) {
	if h.Control() {
		return nil, fold.ApplyBodyAt(body, h.FirstID, at)
	}
	fold.Publish(h.FirstID, h.Count)
	if h.Flags&segment.FlagDefer == 0 {
		return nil, nil
	}
	var it segment.RecordIter
	it.Reset(h, body)
	var due []core.DeferredMessage
	id := h.FirstID
	for r := it.NextRef(); r != nil; r = it.NextRef() {
		if r.Defer != 0 {
			due = append(due, core.DeferredMessage{ID: id, DueMs: base.CeilMs(h.Created) + int64(r.Defer), At: at})
		}
		id++
	}
	return due, it.Err()
}

// releaseSlices releases recovery's references to the buffers of the commit log. The partitions' logs have their own,
// or Open has failed.
func (r *recovery) releaseSlices() {
	for _, rp := range r.order {
		for i := range rp.slices {
			rp.slices[i].Buf.Release()
		}
	}
}

// damagedCopies lists the copies that may lack, or cannot read, something that this node acknowledged. all is true if
// the commit log is damaged: then every copy counts as damaged, even one that the readable part does not name.
// Otherwise these are the copies with damaged segments or an unknown fold, and those that are given up. Open reports
// them before the node joins the cluster, so that none of them can be elected.
func (e *store) damagedCopies() (ids []segment.Identity, all bool) {
	if e.poisoned.Load() != nil {
		return nil, true
	}
	for _, pt := range e.partitionList() {
		if len(pt.log.Isolated()) > 0 || pt.whyUnread() != nil || pt.rep.discarded.Load() {
			ids = append(ids, pt.Identity())
		}
	}
	return ids, false
}

// openPartition opens the log of a partition and gives it what was replayed; rp nil: nothing was.
func (r *recovery) openPartition(t *partTopic, n uint32, rp *recovered) (*partition, error) {
	e := r.e
	if rp == nil {
		rp = &recovered{id: segment.Identity{Topic: t.uuid, Partition: n}, fold: new(core.Cursors)}
	}
	pt := newPartition(e, t, n, rp.st, rp.fold)
	pt.recovered = rp.committed
	pt.epochs.Reset(rp.epochs.Entries())
	pt.rep = e.newReplica(pt)
	log, err := segment.Open(e.disk, dir.PartitionPath(t.uuid, n), rp.id, rp.base, e.segmentOptions())
	if err != nil {
		return nil, fmt.Errorf("engine: topic %s, partition %d: %w", t.name, n, err)
	}
	pt.log = log
	if err := r.fill(pt, rp); err != nil {
		return nil, errors.Join(fmt.Errorf("engine: topic %s, partition %d: %w", t.name, n, err), log.Close())
	}
	r.readFold(pt, rp)
	pt.writer = rp.writer
	if pt.rep.solo() { // what was recovered is committed
		pt.correctDelays()
		pt.visible.Store(uint64(rp.st.NextID))
	}
	pt.publishFold(rp.st.NextID)
	pt.mayHaveLost.Store(len(pt.fold.Gone(nil, pt.startBorder(), 1)) > 0)
	if len(rp.slices) != 0 {
		e.flusher.markDirty(pt)
	}
	if err := errors.Join(rp.err, log.Health()); err != nil {
		r.corruptions = append(r.corruptions, err.Error())
		if !pt.rep.solo() && rp.err == nil {
			// The replica does not lead before the damaged range has been repaired from another one. Then it accepts puts as
			// any other.
			e.log.Error("a copy of a partition does not read back: it does not lead before it is repaired from another replica",
				"topic", t.name, "partition", n, "error", err)
			return pt, nil
		}
		r.readOnly++
		e.log.Error("a partition is read-only", "topic", t.name, "partition", n, "error", err)
		ev := core.PartitionEvent{Kind: core.PartitionFault, Err: ErrReadOnly}
		var res core.PartitionResult
		pt.machine.Step(&ev, &res)
	}
	return pt, nil
}

// newReplica returns the replica of a copy that recovery found, before its log is open.
func (e *store) newReplica(pt *partition) *replica {
	if e.replicas == nil {
		return newSolo(pt)
	}
	return e.replicas.newReplica(pt)
}

// fill gives pt's log what the commit log holds of it.
func (r *recovery) fill(pt *partition, rp *recovered) error {
	if rp.restarted {
		if err := pt.log.Reset(rp.base); err != nil { // a crash may have come before the old files went
			return err
		}
	}
	for i := range rp.slices {
		pt.log.Append(&rp.slices[i])
	}
	pt.newest = pt.log.NewestAppended()
	end, _, _ := pt.log.End()
	pt.ages.Found(end, pt.newest, r.e.clock.Mono())
	return r.discardUnreadableHead(pt)
}

func (e *store) segmentOptions() segment.Options {
	return segment.Options{}
}
