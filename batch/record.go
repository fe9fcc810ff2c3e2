package batch

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
)

// A record is one message inside a batch body:
//
//	size uvarint | attributes u8 | time delta varint | [defer uvarint] | [headers] | body
//	headers: count uvarint | { key length uvarint | key | value length uvarint | value }*
//
// size counts what follows it. A 100-byte body with delta 0 and no headers costs 3 bytes.
const (
	// MaxRecordOverheadBytes is the most that a record without headers adds to its body: size 4, attributes 1, time
	// delta 10, defer 5.
	MaxRecordOverheadBytes = 4 + 1 + binary.MaxVarintLen64 + binary.MaxVarintLen32
	// MaxHeaderCount bounds the headers of one record.
	MaxHeaderCount = 256
	// ReservedHeaderCount is how many of them are for the servers' own headers: publishers may not use them.
	ReservedHeaderCount = 8

	minRecordBytes = 3 // size, attributes, delta 0, empty body

	attrDefer   = 1 << 0
	attrHeaders = 1 << 1
	knownAttrs  = attrDefer | attrHeaders
)

// KV is one header of a message.
type KV struct{ Key, Value []byte }

// Record is one message.
type Record struct {
	TimeDelta int64  // µs after the batch's Created; may be negative
	Defer     uint32 // ms by which the first delivery is deferred; 0: none
	Headers   []KV   // at most MaxHeaderCount
	Body      []byte
}

// RecordSize is the exact size in bytes that AppendRecord needs for a record with time delta 0 and no headers.
func RecordSize(bodyLen int, deferMs uint32) int {
	n := 2 + bodyLen
	if deferMs != 0 {
		n += uvarintLen(uint64(deferMs))
	}
	return uvarintLen(uint64(n)) + n
}

// Size is the exact size in bytes that AppendRecord needs for r.
func (r *Record) Size() int {
	n := r.innerSize()
	return uvarintLen(uint64(n)) + n
}

func (r *Record) innerSize() int {
	n := 1 + uvarintLen(zigzag(r.TimeDelta)) + len(r.Body)
	if r.Defer != 0 {
		n += uvarintLen(uint64(r.Defer))
	}
	if len(r.Headers) != 0 {
		n += uvarintLen(uint64(len(r.Headers)))
		for i := range r.Headers {
			kv := &r.Headers[i]
			n += uvarintLen(uint64(len(kv.Key))) + len(kv.Key) + uvarintLen(uint64(len(kv.Value))) + len(kv.Value)
		}
	}
	return n
}

// AppendRecord appends the encoding of r to dst and returns the result. It allocates nothing if dst has capacity for
// r.Size() more bytes. The caller must set the flags FlagHeaders and FlagDefer of the batch and respect MaxHeaderCount.
func AppendRecord(dst []byte, r *Record) []byte {
	dst = binary.AppendUvarint(dst, uint64(r.innerSize()))
	var attrs byte
	if r.Defer != 0 {
		attrs |= attrDefer
	}
	if len(r.Headers) != 0 {
		attrs |= attrHeaders
	}
	dst = append(dst, attrs)
	dst = binary.AppendUvarint(dst, zigzag(r.TimeDelta))
	if r.Defer != 0 {
		dst = binary.AppendUvarint(dst, uint64(r.Defer))
	}
	if len(r.Headers) != 0 {
		dst = binary.AppendUvarint(dst, uint64(len(r.Headers)))
		for i := range r.Headers {
			kv := &r.Headers[i]
			dst = append(binary.AppendUvarint(dst, uint64(len(kv.Key))), kv.Key...)
			dst = append(binary.AppendUvarint(dst, uint64(len(kv.Value))), kv.Value...)
		}
	}
	return append(dst, r.Body...)
}

func uvarintLen(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

func zigzag(v int64) uint64   { return uint64(v)<<1 ^ uint64(v>>63) }
func unzigzag(v uint64) int64 { return int64(v>>1) ^ -int64(v&1) }

// RecordIter walks the records of one batch. It is reusable and allocates nothing, except to grow its header slice
// once. The zero value is an iterator at its end.
type RecordIter struct {
	body    []byte
	off     int // of the next record
	left    uint32
	wide    bool   // rec holds more than a delta and a body, and must be cleared before reuse
	rec     Record // the record that NextRef returned last
	headers []KV   // backs rec.Headers
	err     error
}

// Reset starts at the first record of body, which is the decompressed body of the batch with header h. A control batch
// has no records. The iterator borrows body until the last Next.
func (it *RecordIter) Reset(h *Header, body []byte) {
	it.body, it.off, it.left, it.err = body, 0, h.Count, nil
	if h.Control() {
		it.body = nil
	}
}

// Place is the place of a record in its batch, as Place returns it and Resume takes it.
type Place struct {
	Index uint32 // number of records before it
	off   int
}

// Place returns the place of the next record. A channel calls it when it stops within a batch, because its consumers
// have no room, and gives the place to Resume in its next turn.
func (it *RecordIter) Place(h *Header) Place { return Place{h.Count - it.left, it.off} }

// Resume is Reset, but starts at a place in the same batch, so that the records before it are not decoded again. A
// channel calls it when it goes on with a batch in which it stopped. h and body must be those of the batch that at came
// from.
func (it *RecordIter) Resume(h *Header, body []byte, at Place) {
	it.Reset(h, body)
	it.off, it.left = at.off, h.Count-at.Index
}

// Next returns the next record. Its Body is borrowed from the batch; the following Next overwrites its Headers. At the
// end and at damage Next returns false; see Err.
func (it *RecordIter) Next() (r Record, ok bool) {
	if p := it.NextRef(); p != nil {
		return *p, true
	}
	return r, false
}

// NextRef is Next without the copy, for loops that run once per message. The record belongs to the iterator, and the
// following call overwrites it. At the end and at damage NextRef returns nil. A Record is too large for registers, and
// passing it by value costs three times as much as decoding it.
func (it *RecordIter) NextRef() *Record {
	off := it.off
	if it.left == 0 || off >= len(it.body) {
		it.finish()
		return nil
	}
	size, at := int(it.body[off]), off+1
	if size >= 0x80 {
		if size, at = it.longSize(off); size == 0 {
			return it.fail("record size")
		}
	}
	end := at + size
	if size < minRecordBytes-1 || end > len(it.body) {
		return it.fail("record size")
	}
	p := it.body[at:end:end]
	it.off = end
	it.left--
	if p[0] == 0 { // no defer, no headers
		delta, n := uint64(p[1]), 2
		switch {
		case p[1] < 0x80: // within ±64 µs
		case len(p) > 2 && p[2] < 0x80: // within ±8 ms, as in batches that wait for their messages
			delta, n = delta&0x7f|uint64(p[2])<<7, 3
		default:
			return it.general(p)
		}
		if it.wide {
			it.rec, it.wide = Record{}, false
		}
		it.rec.TimeDelta, it.rec.Body = unzigzag(delta), p[n:]
		return &it.rec
	}
	return it.general(p)
}

// NextPlain is NextRef for readers that cannot defer a message. Before a record with a defer time it stays where it is,
// and returns nil, as at the end and at damage.
func (it *RecordIter) NextPlain() *Record {
	off, left := it.off, it.left
	r := it.NextRef()
	if r != nil && r.Defer != 0 {
		it.off, it.left = off, left
		return nil
	}
	return r
}

// longSize reads a size of more than one byte. It returns 0 if the size is invalid.
func (it *RecordIter) longSize(off int) (size, at int) {
	v, n := uvarint(it.body[off:])
	if v > MaxBatchBytes {
		return 0, 0
	}
	return int(v), off + int(n)
}

// finish sets Err if the walk ends before all records were read, or with bytes left over.
func (it *RecordIter) finish() {
	switch {
	case it.err != nil:
	case it.left != 0:
		it.fail("too few records")
	case it.off != len(it.body):
		it.fail("bytes after the last record")
	}
}

func (it *RecordIter) general(p []byte) *Record {
	it.rec, it.wide = Record{}, true
	r := &it.rec
	attrs := p[0]
	if attrs&^knownAttrs != 0 {
		return it.fail("unknown record attributes")
	}
	delta, n := uvarint(p[1:])
	if n == 0 {
		return it.fail("time delta")
	}
	r.TimeDelta = unzigzag(delta)
	p = p[1+n:]
	if attrs&attrDefer != 0 {
		d, n := uvarint(p)
		if n == 0 || d == 0 || d > math.MaxUint32 {
			return it.fail("defer time")
		}
		r.Defer, p = uint32(d), p[n:]
	}
	if attrs&attrHeaders != 0 {
		var ok bool
		if p, ok = it.readHeaders(p); !ok {
			return it.fail("headers")
		}
		r.Headers = it.headers
	}
	r.Body = p
	return r
}

func (it *RecordIter) readHeaders(p []byte) (rest []byte, ok bool) {
	count, n := uvarint(p)
	if n == 0 || count == 0 || count > MaxHeaderCount {
		return nil, false
	}
	p = p[n:]
	it.headers = it.headers[:0]
	for ; count > 0; count-- {
		// Nearly all keys and values are short. Reading the short ones here takes a third of the time of two calls of
		// cutBytes, and this loop runs once per header and delivery.
		if len(p) > 0 && p[0] < 0x80 {
			if v := 1 + int(p[0]); v < len(p) && p[v] < 0x80 {
				if end := v + 1 + int(p[v]); end <= len(p) {
					it.headers = append(it.headers, KV{p[1:v:v], p[v+1 : end : end]})
					p = p[end:]
					continue
				}
			}
		}
		var kv KV
		if kv.Key, p, ok = cutBytes(p); !ok {
			return nil, false
		}
		if kv.Value, p, ok = cutBytes(p); !ok {
			return nil, false
		}
		it.headers = append(it.headers, kv)
	}
	return p, true
}

func cutBytes(p []byte) (b, rest []byte, ok bool) {
	size, n := uvarint(p)
	if n == 0 || size > uint64(len(p))-n {
		return nil, nil, false
	}
	return p[n : n+size : n+size], p[n+size:], true
}

// uvarint is binary.Uvarint, but returns n = 0 for every failure.
func uvarint(p []byte) (v, n uint64) {
	v, k := binary.Uvarint(p)
	if k <= 0 {
		return 0, 0
	}
	return v, uint64(k)
}

func (it *RecordIter) fail(what string) *Record {
	it.err = fmt.Errorf("%w: %s, %d records before the end", ErrInvalid, what, it.left)
	it.body, it.off, it.left = nil, 0, 0
	return nil
}

// Err returns the error that ended the walk early, or nil. It is final once Next returned false.
func (it *RecordIter) Err() error { return it.err }
