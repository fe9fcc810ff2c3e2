package engine

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"penstock/clog"
	"penstock/engine/core"
	"penstock/segment"
)

// recovery rebuilds every partition: the state at the start of the oldest commit log file
// (its checkpoint) plus the records that follow. What the checkpoint covers is in segments and synced; what follows
// is in the commit log's memory from here on and is written to segments again in the background, to
// the same places, with the same bytes.
type recovery struct {
	e          *Engine
	checkpoint []byte
	decoded    bool
	parts      map[segment.Identity]*recovered
	order      []*recovered
	dropped    map[uuid.UUID]bool
}

// recovered is one partition on its way up.
type recovered struct {
	id     segment.Identity
	base   segment.State // at the checkpoint: what the segments hold
	st     segment.State // after replay
	fold   *core.Cursors
	slices []segment.Slice
	err    error // what followed was not applied
}

func (e *Engine) recover() error {
	r := &recovery{e: e, parts: map[segment.Identity]*recovered{}, dropped: map[uuid.UUID]bool{}}
	log, report, err := clog.Open(e.disk, e.arena, clog.Options{
		FileBytes: e.opts.CommitFileBytes, MaxLiveBytes: e.opts.CommitLiveBytes, InFlight: e.opts.GroupsInFlight,
		Store: e.node.StoreID, Logger: e.log,
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
		e.info.RecoveredBytes = report.Bytes
	}
	if derr := r.decodeCheckpoint(); derr != nil {
		return derr
	}
	if corrupt != nil {
		// Acknowledged records are damaged: serve what is whole, take nothing new anywhere, and say so.
		e.log.Error("the commit log is corrupt: this node serves what could be read and stores nothing new", "error", err)
		e.info.CorruptionsAtRecover = append(e.info.CorruptionsAtRecover, err.Error())
		e.poison(err)
	}
	return r.open()
}

// Checkpoint implements clog.Replayer.
func (r *recovery) Checkpoint(chunk []byte) error {
	r.checkpoint = append(r.checkpoint, chunk...)
	return nil
}

// Checkpoint implements clog.Source: the state of every partition after all records added so far.
//
//	count u32 | { topic 16 | partition u32 | next u64 | nextID u64 | end u64 | lastCRC u32 | epoch u64 |
//	              segment u32 | segmentBase u64 | segmentCapacity u64 | cursors length u32 | cursors }*
func (c *committer) Checkpoint(emit func(chunk []byte)) {
	parts := c.e.partitionList()
	le := binary.LittleEndian
	chunk := c.e.clog.MaxChunkBytes()
	buf := le.AppendUint32(nil, uint32(len(parts)))
	ends := make([]checkpointEnd, 0, len(parts))
	for _, pt := range parts {
		st := pt.machine.State()
		ends = append(ends, checkpointEnd{pt, st.End})
		buf = append(buf, pt.t.uuid[:]...)
		buf = le.AppendUint32(buf, pt.number)
		buf = appendState(buf, &st)
		at := len(buf)
		buf = pt.fold.Append(le.AppendUint32(buf, 0))
		le.PutUint32(buf[at:], uint32(len(buf)-at-4))
		for len(buf) >= chunk {
			emit(buf[:chunk])
			buf = buf[:copy(buf, buf[chunk:])]
		}
	}
	emit(buf)
	c.e.flusher.checkpointed(ends)
}

func appendState(dst []byte, st *segment.State) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint64(dst, uint64(st.Next))
	dst = le.AppendUint64(dst, uint64(st.NextID))
	dst = le.AppendUint64(dst, uint64(st.End))
	dst = le.AppendUint32(dst, st.LastCRC)
	dst = le.AppendUint64(dst, uint64(st.Epoch))
	dst = le.AppendUint32(dst, st.Segment)
	dst = le.AppendUint64(dst, uint64(st.SegmentBase))
	return le.AppendUint64(dst, uint64(st.SegmentCapacity))
}

const stateBytes = 8*6 + 4*2

func decodeState(p []byte) segment.State {
	le := binary.LittleEndian
	return segment.State{
		Next: segment.Position(le.Uint64(p)), NextID: segment.MsgID(le.Uint64(p[8:])), End: segment.Offset(le.Uint64(p[16:])),
		LastCRC: le.Uint32(p[24:]), Epoch: segment.Epoch(le.Uint64(p[28:])), Segment: le.Uint32(p[36:]),
		SegmentBase: segment.Offset(le.Uint64(p[40:])), SegmentCapacity: int64(le.Uint64(p[48:])),
	}
}

var errCheckpoint = errors.New("engine: the commit log's checkpoint does not decode although its checksum is right: it was written by a different version; nothing was changed, start the version that wrote it")

func (r *recovery) decodeCheckpoint() error {
	if r.decoded {
		return nil
	}
	r.decoded = true
	p := r.checkpoint
	if len(p) == 0 {
		return nil
	}
	if len(p) < 4 {
		return errCheckpoint
	}
	le := binary.LittleEndian
	count := le.Uint32(p)
	p = p[4:]
	for range count {
		if len(p) < 20+stateBytes+4 {
			return errCheckpoint
		}
		id := segment.Identity{Topic: uuid.UUID(p[:16]), Partition: le.Uint32(p[16:])}
		st := decodeState(p[20:])
		n := int(le.Uint32(p[20+stateBytes:]))
		p = p[20+stateBytes+4:]
		if n > len(p) {
			return errCheckpoint
		}
		fold, rest, err := core.DecodeCursors(p[:n])
		if err != nil || len(rest) != 0 {
			return errCheckpoint
		}
		p = p[n:]
		r.add(&recovered{id: id, base: st, st: st, fold: fold})
	}
	if len(p) != 0 {
		return errCheckpoint
	}
	return nil
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
	case clog.Batch:
	default:
		return fmt.Errorf("engine: the commit log holds a record of type %d, which this version does not write: start the version that wrote it", rec.Type)
	}
	rp := r.parts[id]
	if rp == nil {
		rp = &recovered{id: id, fold: new(core.Cursors)}
		r.add(rp)
	}
	if rp.err == nil {
		rp.err = rp.apply(rec, r.e.sizes())
	}
	return nil
}

// apply replays one batch. The commit log verified its checksums; this verifies that it follows.
func (rp *recovered) apply(rec *clog.Record, sizes segment.Sizes) error {
	var h segment.Header
	if err := h.Decode(rec.Payload); err != nil {
		return err
	}
	if h.Position != rp.st.Next || h.FirstID != rp.st.NextID || rec.Offset != rp.st.End || h.PrevCRC != rp.st.LastCRC {
		return &segment.CorruptError{Path: fmt.Sprintf("clog/%010d.clog", rec.FileSeq), Detail: fmt.Sprintf(
			"batch %d of topic %s/%d does not follow batch %d", h.Position, rec.Topic, rec.Partition, rp.st.Next)}
	}
	rp.place(rec, &h, sizes)
	s := segment.Slice{
		Buf: rec.Buf, Data: rec.Payload, Position: h.Position, FirstID: h.FirstID, Count: h.Count, Offset: rec.Offset,
		Segment: rp.st.Segment, SegmentBase: rp.st.SegmentBase, SegmentCapacity: rp.st.SegmentCapacity,
		Control: h.Control(), Appended: h.Appended, FileSeq: rec.FileSeq,
	}
	rec.Buf.Retain()
	rp.slices = append(rp.slices, s)
	rp.st.Advance(&h)
	return rp.applyFold(rec, &h)
}

// place follows the segment number in the record. The leader may have given a segment more room
// than its first batch needs (a checkpoint before a large batch): then its capacity grows here, for all its slices.
func (rp *recovered) place(rec *clog.Record, h *segment.Header, sizes segment.Sizes) {
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

func (rp *recovered) applyFold(rec *clog.Record, h *segment.Header) error {
	body := rec.Payload[segment.HeaderBytes:]
	if h.Control() {
		return rp.fold.ApplyBody(body, h.FirstID)
	}
	rp.fold.Publish(h.FirstID, h.Count)
	if h.Flags&segment.FlagDefer == 0 {
		return nil
	}
	var it segment.RecordIter
	it.Reset(h, body)
	var due []core.DeferredMessage
	id := h.FirstID
	for r := it.NextRef(); r != nil; r = it.NextRef() {
		if r.Defer != 0 {
			due = append(due, core.DeferredMessage{ID: id, DueMs: ceilMs(h.Created) + int64(r.Defer), At: rec.Offset})
		}
		id++
	}
	rp.fold.PublishDeferred(due)
	return it.Err()
}

// open builds topics and partitions from the metadata and what was replayed.
func (r *recovery) open() error {
	e := r.e
	metas, err := listTopics(e.disk, func(dir string, err error) {
		e.log.Warn("a directory under topics/ is not a topic's; it is left as it is and not served", "directory", dir, "error", err)
	})
	if err != nil {
		return err
	}
	known := map[uuid.UUID]bool{}
	for i := range metas {
		m := &metas[i]
		known[m.ID] = true
		if r.dropped[m.ID] {
			if err := trashTopicFiles(e.disk, m.ID); err != nil {
				return fmt.Errorf("engine: cannot move the deleted topic %s away: %w", m.Name, err)
			}
			continue
		}
		if err := r.openTopic(m); err != nil {
			return err
		}
	}
	if err := r.quarantine(known); err != nil {
		return err
	}
	for _, rp := range r.order {
		for i := range rp.slices {
			rp.slices[i].Buf.Release() // the logs have their own references now
		}
	}
	return nil
}

// quarantine keeps what the commit log knows of topics whose metadata is missing or unreadable: in no list and not served, but
// written to segments and carried from checkpoint to checkpoint. When topic.json is restored, everything is there.
func (r *recovery) quarantine(known map[uuid.UUID]bool) error {
	e := r.e
	topics := map[uuid.UUID]*Topic{}
	for _, rp := range r.order {
		id := rp.id.Topic
		if known[id] || r.dropped[id] {
			continue
		}
		t := topics[id]
		if t == nil {
			t = newTopic(e, &topicMeta{ID: id})
			t.quarantined = true
			topics[id] = t
			e.log.Warn("the commit log holds messages of a topic without metadata: they are kept and not served; restore its topic.json and restart", "topic", id)
		}
		pt, err := r.openPartition(t, rp.id.Partition, rp)
		if err != nil {
			return err
		}
		t.parts = append(t.parts, pt)
		e.addPartitions(t.parts[len(t.parts)-1:])
	}
	return nil
}

func (r *recovery) openTopic(m *topicMeta) error {
	e := r.e
	if old, ok := e.topics[m.Name]; ok {
		return fmt.Errorf("engine: topics/%s and topics/%s both say they are topic %q: nothing was changed, move one of them away", old.uuid, m.ID, m.Name)
	}
	t := newTopic(e, m)
	for n := range uint32(m.Partitions) {
		id := segment.Identity{Topic: m.ID, Partition: n}
		rp := r.parts[id]
		if rp == nil {
			rp = &recovered{id: id, fold: new(core.Cursors)}
		}
		pt, err := r.openPartition(t, n, rp)
		if err != nil {
			return err
		}
		t.parts = append(t.parts, pt)
	}
	t.restore()
	e.topics[m.Name] = t
	e.addPartitions(t.parts)
	return nil
}

func (r *recovery) openPartition(t *Topic, n uint32, rp *recovered) (*partition, error) {
	e := r.e
	pt := &partition{e: e, t: t, number: n, fold: rp.fold, machine: core.NewPartition(rp.st, e.sizes())}
	log, err := segment.Open(e.disk, partitionDir(t.uuid, n), rp.id, rp.base, e.segmentOptions())
	if err != nil {
		return nil, fmt.Errorf("engine: topic %s, partition %d: %w", t.name, n, err)
	}
	pt.log = log
	for i := range rp.slices {
		log.Append(&rp.slices[i])
	}
	pt.visible.Store(uint64(rp.st.NextID))
	pt.publishFold(rp.st.NextID)
	if len(rp.slices) != 0 {
		e.flusher.note(pt)
	}
	if err := errors.Join(rp.err, log.Health()); err != nil {
		e.info.PartitionsReadOnly++
		e.info.CorruptionsAtRecover = append(e.info.CorruptionsAtRecover, err.Error())
		e.log.Error("a partition is read-only", "topic", t.name, "partition", n, "error", err)
		ev := core.PartitionEvent{Kind: core.PartitionFault, Err: ErrReadOnly}
		var res core.PartitionResult
		pt.machine.Step(&ev, &res)
	}
	return pt, nil
}

func (e *Engine) segmentOptions() segment.Options {
	return segment.Options{}
}
