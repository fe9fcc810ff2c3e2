package logread

import (
	"encoding/binary"
	"errors"
	"slices"

	"penstock/internal/node/clock"
	"penstock/internal/node/fold"
	"penstock/internal/node/inflate"
	"penstock/segment"
)

// viewer is a segment.Log, or its Memory, which does not wait for the device.
type viewer interface {
	View(v *segment.View, at segment.Offset, maxBytes int) error
}

// header reads the header of the batch at offset at.
func header(log viewer, at segment.Offset) (h segment.Header, err error) {
	var v segment.View
	if err := log.View(&v, at, segment.HeaderBytes); err != nil {
		return h, err
	}
	defer v.Release()
	return h, h.Decode(v.Bytes())
}

// HeaderAt reads the header of the batch that has or includes a position.
func HeaderAt(log *segment.Log, pos segment.Position) (h segment.Header, err error) {
	at, err := log.SeekPosition(pos)
	if err != nil {
		return h, err
	}
	return header(log, at)
}

// positionAt returns the position of the batch at offset at, or of the next batch if the log ends there. It returns
// false if the batch cannot be read.
func positionAt(log *segment.Log, at segment.Offset) (segment.Position, bool) {
	if end, pos, _ := log.End(); end == at {
		return pos, true
	}
	h, err := header(log, at)
	return h.Position, err == nil
}

// Border returns where the log begins. It does not wait for the device.
func Border(log *segment.Log) fold.Border {
	at, _, id := log.Start()
	return fold.Border{At: at, ID: id}
}

// Record reads a copy of a stored message. at is the offset of the batch that holds it; 0 means the batch in which it
// was published.
func Record(log *segment.Log, id segment.MsgID, at segment.Offset) (m fold.CarriedMessage, err error) {
	if at == 0 {
		if at, _, err = log.Seek(id); err != nil {
			return m, err
		}
	}
	var v segment.View
	defer v.Release()
	if err := log.View(&v, at, 1); err != nil {
		return m, err
	}
	return RecordIn(v.Bytes(), id)
}

// RecordIn copies a message out of the first batch of run.
func RecordIn(run []byte, id segment.MsgID) (m fold.CarriedMessage, err error) {
	var it segment.BatchIter
	it.Reset(run)
	h, body, ok := it.Next()
	if !ok {
		return m, it.Err()
	}
	if h.Control() {
		m, err = fold.CarriedRecord(body, id)
		m.Record = slices.Clone(m.Record)
		return m, err
	}
	if h.Codec != segment.CodecNone {
		if body, err = inflate.Stored(h, body, nil); err != nil {
			return m, err
		}
	}
	if id < h.FirstID || id >= h.NextID() {
		return m, segment.ErrNotBoundary
	}
	record, ok := recordAt(body, int(id-h.FirstID))
	var one segment.RecordIter
	one.Reset(&segment.Header{Count: 1}, record)
	r := one.NextRef()
	if !ok || r == nil {
		return m, errors.Join(segment.ErrInvalid, one.Err())
	}
	// Created is what a producer said, which may be any time.
	m = fold.CarriedMessage{ID: id, CreatedNs: max(0, h.Created), Record: slices.Clone(record)}
	if r.Defer != 0 {
		m.DueMs = max(0, clock.CeilMs(h.Created)+int64(r.Defer))
	}
	return m, nil
}

// recordAt returns the bytes of the record with this index in the body of a batch. It returns false if the batch has
// fewer records.
func recordAt(body []byte, index int) ([]byte, bool) {
	for ; ; index-- {
		size, n := binary.Uvarint(body)
		if n <= 0 || size > uint64(len(body)-n) {
			return nil, false
		}
		end := n + int(size)
		if index == 0 {
			return body[:end], true
		}
		body = body[end:]
	}
}
