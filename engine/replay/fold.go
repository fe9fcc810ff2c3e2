package replay

import (
	"fmt"

	"penstock/engine/base"
	"penstock/engine/core"
	"penstock/segment"
)

// Folder folds stored batches. It treats control entries of the kind Unknown as entries of a newer version; 0: no such
// kind. Only tests set Unknown.
type Folder struct{ Unknown core.ControlKind }

// Batch folds a verified batch that begins at offset at. It does not fold messages with a delay but returns them, and
// the caller adds them to the fold with PublishDeferred. It returns core.ErrNewerControl for entries of a newer
// version. After that error the fold is unusable, because it may contain some entries of the batch.
func (f Folder) Batch(
	fold *core.Cursors, h *segment.Header, body []byte, at segment.Offset,
) ([]core.DeferredMessage, error) {
	if h.Control() {
		if err := f.refuseUnknown(body); err != nil {
			return nil, err
		}
		return nil, fold.ApplyBodyAt(body, h.FirstID, at)
	}
	fold.PublishBatch(h)
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

func (f Folder) refuseUnknown(body []byte) error {
	if f.Unknown == 0 {
		return nil
	}
	return core.DecodeControls(body, func(c *core.Control) error {
		if c.Kind == f.Unknown {
			return fmt.Errorf("%w (entry kind %d)", core.ErrNewerControl, f.Unknown)
		}
		return nil
	})
}
