package batch

import (
	"fmt"
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

// Seal completes the batch. created is the batch's time in ns since 1970, to which the records' time deltas refer. The
// leader's part is zero, for Stamp to fill. The returned bytes belong to the builder and are valid until Reset or Add.
// A batch that compression does not make smaller is stored uncompressed, and so is one that it makes so much smaller
// that nodes refuse it (mayInflate).
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
		b.out = body
		if len(body) < len(b.records) && mayInflate(len(body)-HeaderBytes, len(b.records)-HeaderBytes, MaxInflationRatio) {
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
