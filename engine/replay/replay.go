package replay

import (
	"errors"
	"fmt"

	"github.com/google/uuid"

	"penstock/clog"
	"penstock/engine/checkpoint"
	"penstock/engine/core"
	"penstock/replicate"
	"penstock/segment"
)

// ErrFoldNotStored says that the checkpoint of the commit log has no fold for the partition.
var ErrFoldNotStored = errors.New("engine: the state of the channels is not in the commit log's checkpoint: an " +
	"older version was started meanwhile")

// Replay is what the commit log says of all partitions. It implements clog.Replayer; when clog.Open has returned, the
// caller calls Finish, then reads it, and at last calls Release.
//
// What the checkpoint covers is in segments and synced. What follows stays in the buffers of the commit log.
type Replay struct {
	o          Options
	checkpoint []byte // the chunks received so far
	decoded    bool   // checkpoint is in parts
	parts      map[segment.Identity]*Partition
	order      []*Partition       // of parts, in order of appearance
	dropped    map[uuid.UUID]bool // topics with a tombstone
}

var _ clog.Replayer = (*Replay)(nil)

// Options are what a Replay needs to know of its node.
type Options struct {
	Sizes  segment.Sizes // of segments
	Folder Folder
	NowNs  func() int64 // the engine's clock, ns since 1970
}

// Partition is what the log says of one partition.
type Partition struct {
	ID     segment.Identity
	Base   segment.State // at the checkpoint: the segments hold everything below
	State  segment.State // after replay
	Fold   *core.Cursors
	Slices []segment.Slice // the batches after Base, in the buffers of the commit log, which Replay holds until Release
	Err    error           // why a record could not be applied; later ones are not applied either
	Unread error           // why Fold is not known; the rest of the state is

	Writer    core.WriterClock
	Committed segment.Position // a lower bound of what is committed
	Epochs    replicate.EpochTable
	Restarted bool // the log was reset, so it begins at Base: older segment files do not belong to it
}

// New returns a Replay that has read nothing yet.
func New(o Options) *Replay {
	return &Replay{o: o, parts: map[segment.Identity]*Partition{}, dropped: map[uuid.UUID]bool{}}
}

// Empty says whether the commit log holds nothing.
func (r *Replay) Empty() bool {
	return len(r.checkpoint) == 0 && len(r.order) == 0 && len(r.dropped) == 0
}

// Dropped says whether the log has a tombstone of the topic.
func (r *Replay) Dropped(topic uuid.UUID) bool { return r.dropped[topic] }

// Has says whether the log holds anything of the partition.
func (r *Replay) Has(id segment.Identity) bool { return r.parts[id] != nil }

// Partition returns what the log says of a partition: of one that it does not hold, that it is empty.
func (r *Replay) Partition(id segment.Identity) *Partition {
	if p := r.parts[id]; p != nil {
		return p
	}
	return &Partition{ID: id, Fold: new(core.Cursors)}
}

// Partitions returns the partitions that the log holds, in the order in which it names them. The slice is borrowed.
func (r *Replay) Partitions() []*Partition { return r.order }

// Release releases the references to the buffers of the commit log. The partitions' logs have their own, or the start
// has failed.
func (r *Replay) Release() {
	for _, p := range r.order {
		for i := range p.Slices {
			p.Slices[i].Buf.Release()
		}
	}
}

// Restart implements clog.Replayer: it forgets what was replayed, because replay begins again with an older file.
func (r *Replay) Restart() {
	r.Release()
	*r = *New(r.o)
}

// Checkpoint implements clog.Replayer.
func (r *Replay) Checkpoint(chunk []byte) error {
	r.checkpoint = append(r.checkpoint, chunk...)
	return nil
}

// Finish is called when all of the log was read. It returns checkpoint.ErrDecode for a checkpoint that does not decode.
func (r *Replay) Finish() error {
	if r.decoded {
		return nil
	}
	r.decoded = true
	return checkpoint.Decode(r.checkpoint, func(en *checkpoint.Entry) {
		p := &Partition{ID: en.ID}
		p.begin(en)
		r.add(p)
	})
}

func (r *Replay) add(p *Partition) {
	r.parts[p.ID] = p
	r.order = append(r.order, p)
}

// Record implements clog.Replayer.
func (r *Replay) Record(rec *clog.Record) error {
	if err := r.Finish(); err != nil { // the first record comes after the whole checkpoint
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
	p := r.parts[id]
	if p == nil {
		p = r.Partition(id)
		r.add(p)
	}
	switch {
	case rec.Type == clog.Truncate:
		return p.cut(rec)
	case p.Err == nil:
		p.Err = p.apply(&r.o, rec)
	}
	return nil
}

// begin sets p to the state that an entry describes.
func (p *Partition) begin(en *checkpoint.Entry) {
	p.Base, p.State, p.Fold, p.Committed = en.State, en.State, en.Fold, en.Committed
	p.Epochs.Reset(en.Epochs)
	if p.Unread = nil; en.Fold == nil {
		p.Fold, p.Unread = new(core.Cursors), ErrFoldNotStored
	}
}

// cut replays a record of type clog.Truncate.
func (p *Partition) cut(rec *clog.Record) error {
	en, anew, err := checkpoint.DecodeCut(rec.Payload)
	if err != nil {
		return err
	}
	if en.ID != p.ID {
		return checkpoint.ErrDecode
	}
	n := len(p.Slices)
	for n > 0 && (anew || p.Slices[n-1].Offset >= en.State.End) {
		n--
		p.Slices[n].Buf.Release()
	}
	p.Slices = p.Slices[:n]
	was := p.Base
	p.begin(&en)
	p.Err = nil
	p.Restarted = p.Restarted || anew
	if !anew && was.End <= en.State.End {
		p.Base = was
	}
	return nil
}

// apply replays one batch. The commit log has verified its checksums; apply verifies that it follows the batch before.
func (p *Partition) apply(o *Options, rec *clog.Record) error {
	var h segment.Header
	if err := h.Decode(rec.Payload); err != nil {
		return err
	}
	if h.Position != p.State.Next || h.FirstID != p.State.NextID || rec.Offset != p.State.End ||
		h.PrevCRC != p.State.LastCRC {
		return &segment.CorruptError{Path: fmt.Sprintf("clog/%010d.clog", rec.FileSeq), Detail: fmt.Sprintf(
			"batch %d of topic %s/%d does not follow batch %d", h.Position, rec.Topic, rec.Partition, p.State.Next)}
	}
	p.trackSegment(rec, &h, o.Sizes)
	s := segment.Slice{
		Buf: rec.Buf, Data: rec.Payload, Position: h.Position, FirstID: h.FirstID, Count: h.Count, Offset: rec.Offset,
		Segment: p.State.Segment, SegmentBase: p.State.SegmentBase, SegmentCapacity: p.State.SegmentCapacity,
		Control: h.Control(), Appended: h.Appended, FileSeq: rec.FileSeq,
	}
	rec.Buf.Retain()
	p.Slices = append(p.Slices, s)
	p.State.Advance(&h)
	p.Epochs.Note(replicate.EpochStart{Epoch: h.Epoch, Position: h.Position, Offset: rec.Offset})
	return p.foldIn(o, &h, rec.Payload[segment.HeaderBytes:], rec.Offset)
}

// trackSegment updates the segment of the state to the one that the record names. The leader may have given a segment
// more room than its first batch needs (a checkpoint before a large batch). Then the capacity grows here, for all
// slices of the segment.
func (p *Partition) trackSegment(rec *clog.Record, h *segment.Header, sizes segment.Sizes) {
	st := &p.State
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
	for i := len(p.Slices) - 1; i >= 0 && p.Slices[i].Segment == st.Segment; i-- {
		p.Slices[i].SegmentCapacity = st.SegmentCapacity
	}
}

// foldIn replays a batch into the fold, unless the fold is not known.
func (p *Partition) foldIn(o *Options, h *segment.Header, body []byte, at segment.Offset) error {
	p.Writer.Saw(h, o.NowNs())
	if p.Unread != nil {
		return nil
	}
	due, err := o.Folder.Batch(p.Fold, h, body, at)
	if errors.Is(err, core.ErrNewerControl) {
		p.Unread = err
		return nil
	}
	p.Fold.PublishDeferred(due)
	return err
}
