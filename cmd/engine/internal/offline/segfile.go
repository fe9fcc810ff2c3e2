package offline

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/segment"
)

// segmentHeader is the header block of a segment file (segment/FORMAT.md).
type segmentHeader struct {
	Topic         uuid.UUID        `json:"topic"`
	Partition     uint32           `json:"partition"`
	Number        uint32           `json:"number"`
	Starts        bool             `json:"starts"` // lower-numbered files are not part of the log
	Base          segment.Offset   `json:"base_offset"`
	First         segment.Offset   `json:"first_offset"`
	FirstPosition segment.Position `json:"first_position"`
	FirstID       segment.MsgID    `json:"first_id"`
	FirstAppended int64            `json:"first_appended_ns"`
	Capacity      int64            `json:"capacity_bytes"`
}

// decodeSegmentHeader reads a header block of segment.SegmentHeaderBytes.
func decodeSegmentHeader(p []byte) (h segmentHeader, err error) {
	le := binary.LittleEndian
	switch {
	case len(p) < segment.SegmentHeaderBytes:
		return h, errors.New("the file is shorter than its header block")
	case string(p[:4]) != "PSEG":
		return h, errors.New("the file does not begin with a segment header")
	case p[4] != segment.SegmentVersion:
		return h, fmt.Errorf("the segment has version %d, this tool knows %d", p[4], segment.SegmentVersion)
	case le.Uint32(p[84:]) != batch.Checksum(p[:84]):
		return h, errors.New("the checksum of the segment header is wrong")
	case p[5]&^1 != 0 || le.Uint16(p[6:]) != segment.SegmentHeaderBytes || le.Uint32(p[80:]) != 0 ||
		len(bytes.Trim(p[88:segment.SegmentHeaderBytes], "\x00")) != 0:
		return h, errors.New("the segment header has fields that its version does not have")
	}
	return segmentHeader{
		Topic: uuid.UUID(p[8:24]), Partition: le.Uint32(p[24:]), Number: le.Uint32(p[28:]), Starts: p[5]&1 != 0,
		Base: segment.Offset(le.Uint64(p[32:])), First: segment.Offset(le.Uint64(p[40:])),
		FirstPosition: segment.Position(le.Uint64(p[48:])), FirstID: segment.MsgID(le.Uint64(p[56:])),
		Capacity: int64(le.Uint64(p[64:])), FirstAppended: int64(le.Uint64(p[72:])),
	}, nil
}

// FileByte is where the log's offset at lies in the file.
func (h *segmentHeader) FileByte(at segment.Offset) int64 {
	return segment.SegmentHeaderBytes + int64(at-h.Base)
}

// indexEntry is one entry of an index.
type indexEntry struct {
	Offset   segment.Offset
	Position segment.Position
	FirstID  segment.MsgID
	Appended int64
}

// indexFile is an index file.
type indexFile struct {
	Topic      uuid.UUID
	Partition  uint32
	Number     uint32
	First, End segment.Offset
	LastCRC    uint32
	Entries    []indexEntry
}

// decodeIndex reads a whole index file.
func decodeIndex(p []byte) (*indexFile, error) {
	le := binary.LittleEndian
	const head, entry = 64, 32
	switch {
	case len(p) < head || string(p[:4]) != "PIDX":
		return nil, errors.New("the file does not begin with an index header")
	case p[4] != segment.IndexVersion:
		return nil, fmt.Errorf("the index has version %d, this tool knows %d", p[4], segment.IndexVersion)
	case le.Uint32(p[60:]) != batch.Checksum(p[:60]):
		return nil, errors.New("the checksum of the index header is wrong")
	case int64(len(p)) != head+int64(le.Uint32(p[48:]))*entry:
		return nil, fmt.Errorf("the index has %d bytes for %d entries", len(p), le.Uint32(p[48:]))
	case le.Uint32(p[56:]) != batch.Checksum(p[head:]):
		return nil, errors.New("the checksum of the index entries is wrong")
	}
	x := &indexFile{
		Topic: uuid.UUID(p[8:24]), Partition: le.Uint32(p[24:]), Number: le.Uint32(p[28:]),
		First: segment.Offset(le.Uint64(p[32:])), End: segment.Offset(le.Uint64(p[40:])), LastCRC: le.Uint32(p[52:]),
	}
	for p = p[head:]; len(p) > 0; p = p[entry:] {
		x.Entries = append(x.Entries, indexEntry{
			segment.Offset(le.Uint64(p)), segment.Position(le.Uint64(p[8:])), segment.MsgID(le.Uint64(p[16:])),
			int64(le.Uint64(p[24:])),
		})
	}
	return x, nil
}

// source is a file to read; aio.File is one.
type source interface {
	ReadAt(p []byte, off int64) error
}

// batchReader reads the batches of a segment file one after the other through one buffer.
type batchReader struct {
	src  source
	size int64
	buf  []byte
	at   int64 // file byte of buf[0]
	have int
}

// windowBytes is what one read takes at once; a larger batch takes what it needs.
const windowBytes = 1 << 20

// newBatchReader reads a file of size bytes.
func newBatchReader(src source, size int64) *batchReader {
	return &batchReader{src: src, size: size, buf: make([]byte, windowBytes)}
}

// Bytes returns n bytes at off, borrowed until the next call.
func (r *batchReader) Bytes(off int64, n int) ([]byte, error) {
	if off < 0 || off+int64(n) > r.size {
		return nil, fmt.Errorf("the file ends at byte %d", r.size)
	}
	if off < r.at || off+int64(n) > r.at+int64(r.have) {
		if n > len(r.buf) {
			r.buf = make([]byte, n)
		}
		r.at, r.have = off, int(min(int64(len(r.buf)), r.size-off))
		if err := r.src.ReadAt(r.buf[:r.have], off); err != nil {
			r.have = 0
			return nil, err
		}
	}
	return r.buf[off-r.at:][:n], nil
}

// Batch decodes and verifies the batch at off, header and body. What it returns is borrowed until the next call.
func (r *batchReader) Batch(off int64, h *segment.Header) (body []byte, err error) {
	p, err := r.Bytes(off, segment.HeaderBytes)
	if err != nil {
		return nil, err
	}
	if err := h.Decode(p); err != nil {
		return nil, err
	}
	if p, err = r.Bytes(off, h.Size()); err != nil {
		return nil, err
	}
	return p[segment.HeaderBytes:], batch.VerifyBody(h, p[segment.HeaderBytes:])
}

// expected is what the next batch of a partition must continue.
type expected struct {
	Position segment.Position
	ID       segment.MsgID
	CRC      uint32
	CRCKnown bool // false at the first batch of a log whose earlier files retention removed
}

// Next checks that h continues the chain, and moves it on.
func (c *expected) Next(h *segment.Header) error {
	switch {
	case h.Position != c.Position:
		return fmt.Errorf("the batch has position %d where %d follows", h.Position, c.Position)
	case h.FirstID != c.ID:
		return fmt.Errorf("the batch begins with id %d where %d follows", h.FirstID, c.ID)
	case c.CRCKnown && h.PrevCRC != c.CRC:
		return fmt.Errorf("the batch follows one with checksum %08x, the one before it has %08x", h.PrevCRC, c.CRC)
	}
	*c = expected{h.Position + 1, h.NextID(), h.CRC, true}
	return nil
}

// records decodes every record of a batch's stored body, decompressed into scratch if need be, and hands it to visit.
func records(h *segment.Header, body, scratch []byte, visit func(r *segment.Record) error) ([]byte, error) {
	raw, err := batch.DecompressBody(h, body, scratch)
	if err != nil {
		return scratch, err
	}
	if h.Codec != segment.CodecNone {
		scratch = raw[:0]
	}
	var it segment.RecordIter
	it.Reset(h, raw)
	n := uint32(0)
	for rec, ok := it.Next(); ok; rec, ok = it.Next() {
		n++
		if visit != nil {
			if err := visit(&rec); err != nil {
				return scratch, err
			}
		}
	}
	if err := it.Err(); err != nil {
		return scratch, err
	}
	if n != h.Count {
		return scratch, fmt.Errorf("the batch has %d records, its header says %d", n, h.Count)
	}
	return scratch, nil
}
