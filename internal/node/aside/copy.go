package aside

import (
	"errors"
	"io/fs"
	"time"

	"penstock/batch"
	"penstock/segment"
	"penstock/segment/aio"
)

// Source is the log that is cut: a *segment.Log. Nothing is appended to it meanwhile. Retention may move its start.
type Source interface {
	View(v *segment.View, at segment.Offset, maxBytes int) error
	Isolated() []segment.Range
	Segments() []segment.SegmentInfo
	Start() (segment.Offset, segment.Position, segment.MsgID)
}

const (
	// copyBytes is the size of the reads and writes of a copy.
	copyBytes = 1 << 20
	// maxHoles bounds the damaged ranges over which a copy steps. What follows one more is not read: a device that reads
	// nothing any more would hold up the cut for hours.
	maxHoles = 64
)

// copier copies the batches of a log into a file, and notes in cut what they are.
type copier struct {
	src   Source
	cut   *Cut
	skip  segment.Offset // batches in front of this are not kept
	until segment.Offset
	out   aio.Stage
	block int64                   // of the file system
	seen  func(h *segment.Header) // is called for each batch that is kept

	next   segment.Position // the next batch, if the one before was read
	nextID segment.MsgID
	why    error // the damage since the last batch that was read; nil: there is none
}

// run copies the batches of [at, until). It steps over what is damaged. Other errors end it.
func (c *copier) run(at segment.Offset) error {
	var v segment.View
	at = c.jump(at)
	for at < c.until {
		if err := c.src.View(&v, at, copyBytes); err != nil {
			if at, err = c.behind(at, err); err != nil {
				return err
			}
			continue
		}
		next, err := c.keep(v.Bytes(), at)
		v.Release()
		if err != nil {
			return err
		}
		at = next
	}
	c.hole(c.cut.Until, c.cut.NextID)
	if err := c.out.Finish(c.block); err != nil {
		return err
	}
	return c.out.File.Sync()
}

// jump returns the beginning of the last segment in front of skip, so that what is not kept need not be read.
func (c *copier) jump(at segment.Offset) segment.Offset {
	from := at
	for _, s := range c.src.Segments() {
		if s.Start > at && s.Start <= c.skip {
			at, c.next, c.nextID = s.Start, s.FirstPosition, s.FirstID
		}
	}
	c.cut.NoRoomBytes += int64(at - from)
	return at
}

// behind returns where to go on after the batch at at could not be read, or err if that says nothing about the bytes.
func (c *copier) behind(at segment.Offset, err error) (segment.Offset, error) {
	if errors.Is(err, segment.ErrBelowStart) {
		if start, pos, id := c.src.Start(); start > at { // retention removed it: that is no loss of this cut
			c.next, c.nextID = max(c.next, pos), max(c.nextID, id)
			c.cut.From, c.cut.FromID = max(c.cut.From, pos), max(c.cut.FromID, id)
			return start, nil
		}
	}
	var corrupt *segment.CorruptError
	switch {
	case errors.As(err, &corrupt), errors.Is(err, segment.ErrNotBoundary), segment.DeviceFailed(err):
	case errors.Is(err, fs.ErrNotExist): // somebody has removed the file of a segment that was not mapped
	default:
		return at, err
	}
	if c.why == nil {
		c.why = err
	}
	if len(c.cut.Holes) >= maxHoles {
		return c.until, nil
	}
	for _, r := range c.src.Isolated() {
		if r.From <= at && at < r.To {
			return r.To, nil
		}
	}
	for _, s := range c.src.Segments() {
		if s.Start > at {
			return s.Start, nil
		}
	}
	return c.until, nil
}

// keep copies the batches of a run that begins at at, and returns where it ends.
func (c *copier) keep(run []byte, at segment.Offset) (segment.Offset, error) {
	var it segment.BatchIter
	it.Reset(run)
	for h, body, ok := it.Next(); ok && at < c.until; h, body, ok = it.Next() {
		size := segment.Offset(h.Size())
		if err := batch.VerifyBody(h, body); err != nil {
			return at, err
		}
		if at < c.skip {
			c.cut.NoRoomBytes += int64(size)
			c.why = nil
		} else {
			c.hole(h.Position, h.FirstID)
			if err := c.out.Add(run[:size]); err != nil {
				return at, err
			}
			c.note(h)
		}
		c.next, c.nextID = h.Position+1, h.NextID()
		run, at = run[size:], at+size
	}
	return at, it.Err()
}

// hole notes that the batches below pos could not be read, if there was damage in front of it.
func (c *copier) hole(pos segment.Position, id segment.MsgID) {
	if c.why == nil || pos <= c.next {
		return
	}
	c.cut.Holes = append(c.cut.Holes, Hole{From: c.next, Until: pos, Messages: int64(id - c.nextID), Why: c.why.Error()})
	c.why = nil
}

// note counts a batch that is kept.
func (c *copier) note(h *segment.Header) {
	t := c.cut
	if t.Batches == 0 {
		t.KeptFrom = h.Position
	}
	if n := len(t.Epochs); n == 0 || t.Epochs[n-1].Epoch != h.Epoch {
		t.Epochs = append(t.Epochs, EpochStart{h.Epoch, h.Position})
	}
	t.Batches, t.Messages, t.Bytes = t.Batches+1, t.Messages+int64(h.Count), t.Bytes+int64(h.Size())
	t.LastPosition, t.LastCRC = h.Position, h.CRC
	if h.Count > 0 {
		at := time.Unix(0, h.Appended).UTC()
		if t.FirstTime.IsZero() {
			t.FirstTime = at
		}
		t.LastTime = at
	}
	if c.seen != nil {
		c.seen(h)
	}
}
