package segment

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
	// MaxRecordOverheadBytes is the most that a record without headers adds to its body:
	// size 4, attributes 1, time delta 10, defer 5.
	MaxRecordOverheadBytes = 4 + 1 + binary.MaxVarintLen64 + binary.MaxVarintLen32
	// MaxHeaderCount bounds the headers of one record.
	MaxHeaderCount = 256

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
	Defer     uint32 // ms that the first delivery waits; 0: none
	Headers   []KV   // at most MaxHeaderCount
	Body      []byte
}

// RecordSize is the exact size in bytes that AppendRecord needs for a record with time
// delta 0 and no headers.
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

// AppendRecord appends the encoding of r to dst and returns it. It allocates nothing
// when dst has capacity for r.Size() more bytes. The caller sets FlagHeaders and FlagDefer of the
// batch that the record goes into, and keeps MaxHeaderCount.
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

// RecordIter walks the records of one batch. It is reusable and allocates nothing, but
// for growing its header slice once. The zero value is an iterator at its end.
type RecordIter struct {
	rest    []byte
	left    uint32
	headers []KV
	err     error
}

// Reset starts at the first record of body, the decompressed body of the batch that h
// heads. A control batch has no records. The body is borrowed until the last Next.
func (it *RecordIter) Reset(h *Header, body []byte) {
	it.rest, it.left, it.err = body, h.Count, nil
	if h.Control() {
		it.rest = nil
	}
}

// Next returns the next record. Body is borrowed from the batch; Headers is overwritten
// by the following Next. It returns false at the end and at damage; see Err.
func (it *RecordIter) Next() (r Record, ok bool) {
	if it.left == 0 {
		if len(it.rest) != 0 && it.err == nil {
			it.fail("bytes after the last record")
		}
		return r, false
	}
	p := it.rest
	var size, n uint64
	if len(p) != 0 && p[0] < 0x80 {
		size, n = uint64(p[0]), 1
	} else if size, n = uvarint(p); n == 0 {
		return r, it.fail("record size")
	}
	if size > uint64(len(p))-n || size < minRecordBytes-1 {
		return r, it.fail("record size")
	}
	it.rest = p[n+size:]
	it.left--
	p = p[n : n+size : n+size]
	if p[0] == 0 && p[1] < 0x80 { // no defer, no headers, delta within ±64 µs
		r.TimeDelta = unzigzag(uint64(p[1]))
		r.Body = p[2:]
		return r, true
	}
	return it.general(p)
}

func (it *RecordIter) general(p []byte) (r Record, ok bool) {
	attrs := p[0]
	if attrs&^knownAttrs != 0 {
		return r, it.fail("unknown record attributes")
	}
	delta, n := uvarint(p[1:])
	if n == 0 {
		return r, it.fail("time delta")
	}
	r.TimeDelta = unzigzag(delta)
	p = p[1+n:]
	if attrs&attrDefer != 0 {
		d, n := uvarint(p)
		if n == 0 || d == 0 || d > math.MaxUint32 {
			return r, it.fail("defer time")
		}
		r.Defer, p = uint32(d), p[n:]
	}
	if attrs&attrHeaders != 0 {
		if p, ok = it.readHeaders(p); !ok {
			return r, it.fail("headers")
		}
		r.Headers = it.headers
	}
	r.Body = p
	return r, true
}

func (it *RecordIter) readHeaders(p []byte) (rest []byte, ok bool) {
	count, n := uvarint(p)
	if n == 0 || count == 0 || count > MaxHeaderCount {
		return nil, false
	}
	p = p[n:]
	it.headers = it.headers[:0]
	for ; count > 0; count-- {
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

// uvarint is binary.Uvarint with 0 for every failure.
func uvarint(p []byte) (v, n uint64) {
	v, k := binary.Uvarint(p)
	if k <= 0 {
		return 0, 0
	}
	return v, uint64(k)
}

func (it *RecordIter) fail(what string) bool {
	it.err = fmt.Errorf("%w: %s, %d records before the end", ErrInvalid, what, it.left)
	it.rest, it.left = nil, 0
	return false
}

// Err is what ended the walk early, or nil. It is final once Next returned false.
func (it *RecordIter) Err() error { return it.err }
