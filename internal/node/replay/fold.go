package replay

import (
	"errors"
	"fmt"

	"penstock/internal/node/clock"
	"penstock/internal/node/fold"
	"penstock/segment"
)

// ErrNoFold says that the log, or the part of it that was folded, begins with a segment whose first batch has no fold,
// because the fold was too large for a batch (committer.sealInternal in internal/node/partition).
var ErrNoFold = errors.New("engine: a segment begins without the state of the channels, because that was too large " +
	"for a batch: the state is not known before the next segment, or leader's epoch, that begins with it")

// Folder folds stored batches. It treats control entries of the kind Unknown as entries of a newer version; 0: no such
// kind. Only tests set Unknown.
type Folder struct{ Unknown fold.ControlKind }

// Batch folds a verified batch that begins at offset at. It does not fold messages with a delay but returns them, and
// the caller adds them to the fold with PublishDeferred. It returns fold.ErrNewerControl for entries of a newer
// version. After that error the fold is unusable, because it may contain some entries of the batch. It returns
// ErrNoFold as long as the fold lacks what came before the batches that it was given.
func (f Folder) Batch(
	into *fold.Cursors, h *segment.Header, body []byte, at segment.Offset,
) ([]fold.DeferredMessage, error) {
	if h.Control() {
		if err := f.refuseUnknown(body); err != nil {
			return nil, err
		}
		err := into.ApplyBodyAt(body, h.FirstID, at)
		if err == nil && lacksPast(into, h) {
			err = ErrNoFold
		}
		return nil, err
	}
	if lacksPast(into, h) {
		return nil, ErrNoFold
	}
	into.PublishBatch(h)
	if h.Flags&segment.FlagDefer == 0 {
		return nil, nil
	}
	var it segment.RecordIter
	it.Reset(h, body)
	var due []fold.DeferredMessage
	id := h.FirstID
	for r := it.NextRef(); r != nil; r = it.NextRef() {
		if r.Defer != 0 {
			due = append(due, fold.DeferredMessage{ID: id, DueMs: clock.CeilMs(h.Created) + int64(r.Defer), At: at})
		}
		id++
	}
	return due, it.Err()
}

// lacksPast says whether the log has messages in front of the batch h of which the fold knows nothing. Every fold knows
// the end of the messages before it.
func lacksPast(of *fold.Cursors, h *segment.Header) bool {
	return h.FirstID > 0 && of.End() == 0
}

func (f Folder) refuseUnknown(body []byte) error {
	if f.Unknown == 0 {
		return nil
	}
	return fold.DecodeControls(body, func(c *fold.Control) error {
		if c.Kind == f.Unknown {
			return fmt.Errorf("%w (entry kind %d)", fold.ErrNewerControl, f.Unknown)
		}
		return nil
	})
}
