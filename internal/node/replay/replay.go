package replay

import (
	"errors"
	"fmt"

	"github.com/google/uuid"

	"penstock/clog"
	"penstock/internal/node/checkpoint"
	"penstock/internal/node/fold"
	"penstock/replicate"
	"penstock/segment"
)

// ErrFoldNotStored says that the checkpoint in the commit log, or the record of a cut, contains no fold for the
// partition.
var ErrFoldNotStored = errors.New("engine: the state of the channels is not in the commit log: an older version was " +
	"started meanwhile, or the state was too large for the record of a cut")

// Replay is the content of the commit log for all partitions. It implements clog.Replayer. After clog.Open has
// returned, the caller calls Finish, then reads the Replay, and finally calls Release.
//
// The batches that the checkpoint covers are in segments and synced. The batches after the checkpoint stay in the
// buffers of the commit log.
type Replay struct {
	o          Options
	checkpoint []byte // the chunks received so far
	decoded    bool   // the checkpoint was decoded into parts
	parts      map[segment.Identity]*Partition
	order      []*Partition       // the partitions in parts, in order of appearance
	dropped    map[uuid.UUID]bool // topics that have a tombstone
}

var _ clog.Replayer = (*Replay)(nil)

// Options are the facts about its node that a Replay needs.
type Options struct {
	Sizes  segment.Sizes // of segments
	Folder Folder
	NowNs  func() int64 // the engine's clock, ns since 1970
}

// Partition is the content of the commit log for one partition.
type Partition struct {
	ID     segment.Identity
	Base   segment.State // at the checkpoint: the segments hold every batch below it
	State  segment.State // after replay
	Fold   *fold.Cursors
	Slices []segment.Slice // batches after Base, in buffers of the commit log, pinned until Release
	Err    error           // why a record could not be applied; the later ones are not applied either
	Unread error           // why Fold is unknown; the rest of the state is known

	Writer    fold.WriterClock
	Committed segment.Position // a lower bound of the committed position
	Epochs    replicate.EpochTable
	Restarted bool // the log was reset and begins at Base: older segment files do not belong to it
}

// New returns a Replay that has read nothing yet.
func New(o Options) *Replay {
	return &Replay{o: o, parts: map[segment.Identity]*Partition{}, dropped: map[uuid.UUID]bool{}}
}

// Empty says whether the commit log holds no records and no checkpoint.
func (r *Replay) Empty() bool {
	return len(r.checkpoint) == 0 && len(r.order) == 0 && len(r.dropped) == 0
}

// Dropped says whether the log has a tombstone of the topic.
func (r *Replay) Dropped(topic uuid.UUID) bool { return r.dropped[topic] }

// Has says whether the log holds anything of the partition.
func (r *Replay) Has(id segment.Identity) bool { return r.parts[id] != nil }

// Partition returns the content of the log for a partition. For a partition that the log does not hold, the result is
// empty.
func (r *Replay) Partition(id segment.Identity) *Partition {
	if p := r.parts[id]; p != nil {
		return p
	}
	return &Partition{ID: id, Fold: new(fold.Cursors)}
}

// Partitions returns the partitions that the log holds, in the order in which they appear in it. The slice is borrowed.
func (r *Replay) Partitions() []*Partition { return r.order }

// MemoryBytes estimates what the state of all channels that the log holds costs in memory once it is in use.
func (r *Replay) MemoryBytes() (n int64) {
	for _, p := range r.order {
		if p.Fold != nil && !r.Dropped(p.ID.Topic) {
			n += p.Fold.MemoryBytes()
		}
	}
	return n
}

// Release releases the references to the buffers of the commit log. By then the partitions' logs hold their own
// references, or the start has failed.
func (r *Replay) Release() {
	for _, p := range r.order {
		for i := range p.Slices {
			p.Slices[i].Buf.Release()
		}
	}
}

// Restart implements clog.Replayer. It drops everything replayed so far, because replay begins again with an older
// file.
func (r *Replay) Restart() {
	r.Release()
	*r = *New(r.o)
}

func (r *Replay) Checkpoint(chunk []byte) error {
	r.checkpoint = append(r.checkpoint, chunk...)
	return nil
}

// Finish must be called after the whole log was read. It returns checkpoint.ErrDecode if the checkpoint does not
// decode.
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
		p.Fold, p.Unread = new(fold.Cursors), ErrFoldNotStored
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

// apply replays one batch. The commit log has verified the checksums; apply verifies that the batch follows the
// previous one.
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
	if n := segment.Position(rec.Uncommitted); n > 0 && n-1 <= h.Position {
		p.Committed = max(p.Committed, h.Position-(n-1))
	}
	p.Epochs.Note(replicate.EpochStart{Epoch: h.Epoch, Position: h.Position, Offset: rec.Offset})
	return p.foldIn(o, &h, rec.Payload[segment.HeaderBytes:], rec.Offset)
}

// trackSegment updates the segment in the state to the segment that the record names. The leader may have given a
// segment more room than its first batch needs (a checkpoint before a large batch). In that case the capacity grows
// here, for all slices of the segment.
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

// foldIn replays a batch into the fold, unless the fold is unknown. If only its beginning is (ErrNoFold), the next
// batch that contains the whole fold makes it known.
func (p *Partition) foldIn(o *Options, h *segment.Header, body []byte, at segment.Offset) error {
	p.Writer.Saw(h, o.NowNs())
	if p.Unread != nil && !errors.Is(p.Unread, ErrNoFold) {
		return nil
	}
	due, err := o.Folder.Batch(p.Fold, h, body, at)
	if errors.Is(err, fold.ErrNewerControl) || errors.Is(err, ErrNoFold) {
		p.Unread = err
		return nil
	}
	if err == nil {
		p.Unread = nil
	}
	p.Fold.PublishDeferred(due)
	return err
}
