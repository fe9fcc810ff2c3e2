package batch

import (
	"fmt"
	"sync"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

// Builder seals batches in Go memory: for producers outside the server (the native client, the embedding API) and for
// tests. The server itself appends records directly to the buffer of the group that will carry them.
//
// A Builder is reusable and not safe for concurrent use. Seal puts ProducerID, ProducerEpoch and BaseSequence into the
// batch as they are at that time.
type Builder struct {
	ProducerID    uint64
	ProducerEpoch uint32
	BaseSequence  uint32

	codec   Codec
	flags   Flags
	count   uint32
	records []byte // HeaderBytes of room, then the records
	out     []byte // the compressed batch
}

// Reset empties the builder. The batch that Seal returned last is invalid afterwards.
func (b *Builder) Reset(codec Codec) {
	b.codec, b.flags, b.count = codec, 0, 0
	if cap(b.records) < HeaderBytes {
		b.records = make([]byte, HeaderBytes, 4096)
	}
	b.records = b.records[:HeaderBytes]
}

// Add appends a copy of one message. It fails, and leaves the builder as it was, when the batch would exceed
// MaxBatchBytes or the record MaxHeaderCount: then seal the batch and start a new one.
func (b *Builder) Add(r *Record) error {
	if len(b.records) == 0 {
		b.Reset(b.codec)
	}
	if len(r.Headers) > MaxHeaderCount {
		return fmt.Errorf("batch: a message carries %d headers, at most %d are allowed; it was not added",
			len(r.Headers), MaxHeaderCount)
	}
	if size := r.Size(); size > MaxBatchBytes-len(b.records) {
		return fmt.Errorf("batch: a message of %d bytes does not fit into the rest of its batch (%d bytes at most); it "+
			"was not added",
			size, MaxBatchBytes)
	}
	b.records = AppendRecord(b.records, r)
	b.count++
	if len(r.Headers) != 0 {
		b.flags |= FlagHeaders
	}
	if r.Defer != 0 {
		b.flags |= FlagDefer
	}
	return nil
}

// Count is the number of messages added since Reset.
func (b *Builder) Count() int { return int(b.count) }

// Size is the size in bytes that the batch has so far, before compression.
func (b *Builder) Size() int { return max(len(b.records), HeaderBytes) }

// Seal completes the batch. created is the batch's time in ns since 1970, to which the records' time deltas refer. The
// leader's part is zero, for Stamp to fill. The returned bytes belong to the builder and are valid until Reset or Add.
// A batch that compression does not make smaller is stored uncompressed.
func (b *Builder) Seal(created int64) ([]byte, error) {
	if b.count == 0 {
		return nil, fmt.Errorf("batch: a batch without messages cannot be sealed")
	}
	batch, codec := b.records, CodecNone
	if b.codec != CodecNone {
		body, err := compressBody(b.codec, b.out[:0], b.records[HeaderBytes:])
		if err != nil {
			return nil, err
		}
		if b.out = body; len(body) < len(b.records) {
			batch, codec = body, b.codec
		}
	}
	h := Header{
		Codec: codec, Flags: b.flags, BodyBytes: uint32(len(batch) - HeaderBytes), Count: b.count, Created: created,
		ProducerID: b.ProducerID, ProducerEpoch: b.ProducerEpoch, BaseSequence: b.BaseSequence,
		BodyCRC: Checksum(batch[HeaderBytes:]),
	}
	h.Encode(batch)
	return batch, nil
}

// The zstd coders are shared: EncodeAll and DecodeAll are safe for concurrent use and keep their own pools of state.
// The decoder's memory limit bounds what a hostile body can inflate to.
var (
	zstdEncoder = sync.OnceValues(func() (*zstd.Encoder, error) {
		return zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false))
	})
	zstdDecoder = sync.OnceValues(func() (*zstd.Decoder, error) {
		return zstd.NewReader(nil, zstd.WithDecoderMaxMemory(MaxBatchBytes), zstd.WithDecoderConcurrency(0))
	})
)

// compressBody appends room for a header and then the compressed body to dst.
func compressBody(c Codec, dst, body []byte) ([]byte, error) {
	var room [HeaderBytes]byte
	dst = append(dst, room[:]...)
	switch c {
	case CodecS2:
		need := HeaderBytes + s2.MaxEncodedLen(len(body))
		if cap(dst) < need {
			dst = make([]byte, HeaderBytes, need)
		}
		n := len(s2.Encode(dst[HeaderBytes:need], body))
		return dst[:HeaderBytes+n], nil
	case CodecZstd:
		enc, err := zstdEncoder()
		if err != nil {
			return nil, fmt.Errorf("batch: zstd: %w", err)
		}
		return enc.EncodeAll(body, dst), nil
	}
	return nil, fmt.Errorf("batch: codec %d is unknown; the batch was not sealed", c)
}

// DecompressBody returns the records of a verified body: the body itself if it is stored uncompressed, else bytes
// decompressed into scratch. If scratch is too small, a larger buffer is allocated; pass the result again to reuse it.
// MaxBatchBytes bounds the result, whatever size the body claims. Errors are ErrInvalid.
func DecompressBody(h *Header, body, scratch []byte) ([]byte, error) {
	switch h.Codec {
	case CodecNone:
		return body, nil
	case CodecS2:
		n, err := s2.DecodedLen(body)
		if err != nil || n > MaxBatchBytes {
			return nil, fmt.Errorf("%w: s2 body claims %d bytes (%v)", ErrInvalid, n, err)
		}
		out, err := s2.Decode(scratch[:cap(scratch)], body)
		if err != nil {
			return nil, fmt.Errorf("%w: s2: %w", ErrInvalid, err)
		}
		return out, nil
	case CodecZstd:
		dec, err := zstdDecoder()
		if err != nil {
			return nil, fmt.Errorf("batch: zstd: %w", err)
		}
		out, err := dec.DecodeAll(body, scratch[:0])
		if err != nil {
			return nil, fmt.Errorf("%w: zstd: %w", ErrInvalid, err)
		}
		if len(out) > MaxBatchBytes {
			return nil, fmt.Errorf("%w: zstd body of more than %d bytes", ErrInvalid, MaxBatchBytes)
		}
		return out, nil
	}
	return nil, fmt.Errorf("%w: codec %d", ErrInvalid, h.Codec)
}
