package logread

import (
	"errors"

	"penstock/internal/node/fold"
	"penstock/internal/node/replay"
	"penstock/segment"
)

// runBytes is how many bytes are read at once.
const runBytes = 1 << 20

// Past is what a log says up to a position.
type Past struct {
	State  segment.State // of the log behind the last batch below the position
	Fold   *fold.Cursors
	Unread error // why Fold is not known; nil: it is known
}

// KnownFold returns the fold, or nil if it is not known.
func (p *Past) KnownFold() *fold.Cursors {
	if p.Unread != nil {
		return nil
	}
	return p.Fold
}

// StateAt computes the state of the log and the fold at a position. It reads the segment in which the position lies
// from the segment's beginning, because the first batch of a segment is a checkpoint of the fold; if the fold was too
// large for that, and no later batch up to the position has it, StateAt returns replay.ErrNoFold. start reads the state
// in front of the log's first batch, see Start.State.
//
// Retention may remove segments meanwhile, but nothing above what is committed, and so nothing above the position of a
// cut. Then StateAt begins again, with the new start of the log. If nothing is left in front of the position, which
// retention does not let happen (flush.Flusher.Trim), the fold is not known before the leader sends it.
func StateAt(
	log *segment.Log, folder replay.Folder, to segment.Position, start func() (segment.State, error),
) (p Past, err error) {
	for range maxFirstReads {
		p = Past{Fold: new(fold.Cursors)}
		if err = p.readTo(log, folder, to, start); !errors.Is(err, segment.ErrBelowStart) &&
			!errors.Is(err, ErrFirstUnread) {
			break
		}
	}
	return p, err
}

// ErrNothingLeft says that a cut would leave nothing of a log whose first files are gone. Nothing would say into which
// segment its leader's next batch goes, so the copy begins anew instead (Replica.discard). Retention does not let a log
// become like that (flush.Flusher.Trim), but who removes its first files does.
var ErrNothingLeft = errors.New("engine: the copy has nothing any more that its leader's log has, too")

// readTo is one attempt of StateAt. It returns segment.ErrBelowStart or ErrFirstUnread if the log does not begin any
// more where it began.
func (p *Past) readTo(
	log *segment.Log, folder replay.Folder, to segment.Position, start func() (segment.State, error),
) error {
	begin, first, _ := log.Start()
	if to <= first {
		st, err := start()
		if end, _, _ := log.End(); err == nil && log.Trimmed() && end > begin {
			return ErrNothingLeft
		}
		if p.State = st; err == nil && st.Next > 0 {
			p.Unread = replay.ErrNoFold // what came before is removed, and the next leader may not count on an empty fold
		}
		return err
	}
	last, err := log.SeekPosition(to - 1)
	if err != nil {
		return err
	}
	where, err := log.Where(last)
	if err != nil {
		return err
	}
	at := max(where.SegmentBase, begin)
	var v segment.View
	for p.State.Next < to {
		if err := log.View(&v, at, runBytes); err != nil {
			return err
		}
		size, err := p.add(folder, v.Bytes(), at, to)
		v.Release()
		if err != nil {
			return err
		}
		at += segment.Offset(size)
	}
	if errors.Is(p.Unread, replay.ErrNoFold) {
		return p.Unread
	}
	p.State.Segment, p.State.SegmentBase, p.State.SegmentCapacity = where.Segment, where.SegmentBase, where.SegmentCapacity
	return nil
}

// add folds the batches of run that lie below to, and advances State. at is the offset of run. size is the size of the
// batches that were folded.
func (p *Past) add(folder replay.Folder, run []byte, at segment.Offset, to segment.Position) (size int, err error) {
	var it segment.BatchIter
	it.Reset(run)
	for h, body, ok := it.Next(); ok && h.Position < to; h, body, ok = it.Next() {
		if p.Unread == nil || errors.Is(p.Unread, replay.ErrNoFold) {
			due, err := folder.Batch(p.Fold, h, body, at+segment.Offset(size))
			if p.Unread = err; err != nil && !errors.Is(err, fold.ErrNewerControl) && !errors.Is(err, replay.ErrNoFold) {
				return 0, err
			}
			p.Fold.PublishDeferred(due)
		}
		size += h.Size()
		p.State = segment.State{
			Next: h.Position + 1, NextID: h.NextID(), End: at + segment.Offset(size), LastCRC: h.CRC, Epoch: h.Epoch,
		}
	}
	return size, it.Err()
}
