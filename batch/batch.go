package batch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// Layout of a batch header; FORMAT.md holds the table, and a test compares the two.
//
//	0     4  5  6    8       12     16       24          32     36    40      44
//	magic v  c  flags bodyLen count created  producerID  pEpoch bSeq  bodyCRC reserved
//	48        56       64     72        80       84
//	position  firstID  epoch  appended  prevCRC  headerCRC
//
// The producer sets [0,48), the leader [48,88). headerCRC covers [0,84), which includes bodyCRC, so stamping the
// leader's part never reads the body.
const (
	// HeaderBytes is the size of a batch header.
	HeaderBytes = 88
	// MaxBatchBytes bounds a batch, header included, and also what a compressed body may inflate to.
	MaxBatchBytes = 16 << 20
	// BatchVersion is the only version of the batch layout so far.
	BatchVersion = 1

	batchMagic = 'P' | 'S'<<8 | 'B'<<16 | '1'<<24

	offMagic         = 0
	offVersion       = 4
	offCodec         = 5
	offFlags         = 6
	offBodyBytes     = 8
	offCount         = 12
	offCreated       = 16
	offProducerID    = 24
	offProducerEpoch = 32
	offBaseSequence  = 36
	offBodyCRC       = 40
	offReserved      = 44
	offPosition      = 48
	offFirstID       = 56
	offEpoch         = 64
	offAppended      = 72
	offPrevCRC       = 80
	offHeaderCRC     = 84
)

// Codec says how the body of a batch is compressed.
type Codec uint8

// The codecs. The server itself produces only CodecNone.
const (
	CodecNone Codec = 0
	CodecS2   Codec = 1
	CodecZstd Codec = 2

	maxCodec = CodecZstd
)

// Flags describe the body of a batch. Unknown bits make a batch invalid: a reader that does not know a flag cannot know
// what the body means.
type Flags uint16

// The flags.
const (
	FlagControl Flags = 1 << 0 // the body is for the engine, not for consumers; Count is 0
	FlagHeaders Flags = 1 << 1 // at least one record carries headers
	FlagDefer   Flags = 1 << 2 // at least one record carries a defer time

	knownFlags = FlagControl | FlagHeaders | FlagDefer
)

// Errors of decoding, tested with errors.Is.
var (
	// ErrInvalid says that bytes are not a batch: damaged, cut, or something else.
	ErrInvalid = errors.New("batch: not a valid batch")
	// ErrUnwritten says that zeros stand where a batch should begin: the space was reserved and never written.
	ErrUnwritten = errors.New("batch: unwritten space")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum is CRC-32C, the checksum of batches and of the files that hold them.
func Checksum(p []byte) uint32 { return crc32.Checksum(p, castagnoli) }

// Header is the decoded header of one batch.
type Header struct {
	Codec         Codec
	Flags         Flags
	BodyBytes     uint32 // bytes after the header, as stored (compressed if Codec says so)
	Count         uint32 // messages; 0 for control batches only
	Created       int64  // ns since 1970, the producer's clock
	ProducerID    uint64 // 0: the producer is not idempotent
	ProducerEpoch uint32
	BaseSequence  uint32 // sequence of the first message
	BodyCRC       uint32 // CRC-32C of the stored body

	Position Position // the leader's part begins here; zero in a batch that is not stamped yet
	FirstID  MsgID    // id of the first message; in a control batch: the next id
	Epoch    Epoch
	Appended int64  // ns since 1970, the leader's clock
	PrevCRC  uint32 // header CRC of the previous batch, 0 at position 0
	CRC      uint32 // CRC-32C of the header's first 84 bytes
}

// Size is the size of the whole batch in bytes.
func (h *Header) Size() int { return HeaderBytes + int(h.BodyBytes) }

// NextID is the id that follows the batch's last message.
func (h *Header) NextID() MsgID { return h.FirstID + MsgID(h.Count) }

// Control says whether the batch is for the engine and not for consumers.
func (h *Header) Control() bool { return h.Flags&FlagControl != 0 }

// Decode reads the header at the start of p and checks everything that can be checked without the body. It allocates
// nothing when it succeeds. On an error h is undefined. Errors are ErrUnwritten or ErrInvalid.
func (h *Header) Decode(p []byte) error {
	if len(p) < HeaderBytes {
		return fmt.Errorf("%w: %d bytes are too few for a header", ErrInvalid, len(p))
	}
	p = p[:HeaderBytes]
	le := binary.LittleEndian
	if m := le.Uint32(p[offMagic:]); m != batchMagic {
		return magicError(p, m)
	}
	if p[offVersion] != BatchVersion {
		return fmt.Errorf("%w: version %d, this program knows %d", ErrInvalid, p[offVersion], BatchVersion)
	}
	h.CRC = le.Uint32(p[offHeaderCRC:])
	if got := Checksum(p[:offHeaderCRC]); got != h.CRC {
		return fmt.Errorf("%w: header checksum %08x, computed %08x", ErrInvalid, h.CRC, got)
	}
	h.Codec = Codec(p[offCodec])
	h.Flags = Flags(le.Uint16(p[offFlags:]))
	h.BodyBytes = le.Uint32(p[offBodyBytes:])
	h.Count = le.Uint32(p[offCount:])
	h.Created = int64(le.Uint64(p[offCreated:]))
	h.ProducerID = le.Uint64(p[offProducerID:])
	h.ProducerEpoch = le.Uint32(p[offProducerEpoch:])
	h.BaseSequence = le.Uint32(p[offBaseSequence:])
	h.BodyCRC = le.Uint32(p[offBodyCRC:])
	h.Position = Position(le.Uint64(p[offPosition:]))
	h.FirstID = MsgID(le.Uint64(p[offFirstID:]))
	h.Epoch = Epoch(le.Uint64(p[offEpoch:]))
	h.Appended = int64(le.Uint64(p[offAppended:]))
	h.PrevCRC = le.Uint32(p[offPrevCRC:])
	if le.Uint32(p[offReserved:]) != 0 {
		return fmt.Errorf("%w: reserved bytes are not zero", ErrInvalid)
	}
	return h.check()
}

// Peek reads the place of a batch in its log from the batch's header, which was verified before. It checks nothing.
func Peek(p []byte) (pos Position, first MsgID, count uint32, control bool, appended int64) {
	le := binary.LittleEndian
	_ = p[HeaderBytes-1]
	return Position(le.Uint64(p[offPosition:])), MsgID(le.Uint64(p[offFirstID:])), le.Uint32(p[offCount:]),
		Flags(le.Uint16(p[offFlags:]))&FlagControl != 0, int64(le.Uint64(p[offAppended:]))
}

func magicError(p []byte, m uint32) error {
	if m == 0 {
		for _, b := range p {
			if b != 0 {
				return fmt.Errorf("%w: no magic", ErrInvalid)
			}
		}
		return ErrUnwritten
	}
	return fmt.Errorf("%w: magic %08x", ErrInvalid, m)
}

// check verifies the rules between fields. A checksum does not cover these: a faulty writer computes a correct checksum
// over wrong fields.
func (h *Header) check() error {
	switch {
	case h.Codec > maxCodec:
		return fmt.Errorf("%w: codec %d", ErrInvalid, h.Codec)
	case h.Flags&^knownFlags != 0:
		return fmt.Errorf("%w: flags %#x", ErrInvalid, uint16(h.Flags))
	case h.BodyBytes > MaxBatchBytes-HeaderBytes:
		return fmt.Errorf("%w: body of %d bytes, at most %d are allowed", ErrInvalid, h.BodyBytes, MaxBatchBytes-HeaderBytes)
	case h.Control() != (h.Count == 0):
		return fmt.Errorf("%w: %d messages with flags %#x", ErrInvalid, h.Count, uint16(h.Flags))
	case h.Count > MaxBatchBytes/minRecordBytes,
		h.Codec == CodecNone && h.Count > h.BodyBytes/minRecordBytes:
		return fmt.Errorf("%w: %d messages in %d bytes", ErrInvalid, h.Count, h.BodyBytes)
	case h.FirstID > MaxMsgID+1-MsgID(h.Count):
		return fmt.Errorf("%w: first id %d and %d messages pass the largest id", ErrInvalid, h.FirstID, h.Count)
	case h.Position == 0 && h.PrevCRC != 0:
		return fmt.Errorf("%w: position 0 follows a batch", ErrInvalid)
	}
	return nil
}

// Encode writes all HeaderBytes to p and sets h.CRC. It does not look at the body: set BodyBytes and BodyCRC first.
func (h *Header) Encode(p []byte) {
	p = p[:HeaderBytes]
	le := binary.LittleEndian
	le.PutUint32(p[offMagic:], batchMagic)
	p[offVersion] = BatchVersion
	p[offCodec] = byte(h.Codec)
	le.PutUint16(p[offFlags:], uint16(h.Flags))
	le.PutUint32(p[offBodyBytes:], h.BodyBytes)
	le.PutUint32(p[offCount:], h.Count)
	le.PutUint64(p[offCreated:], uint64(h.Created))
	le.PutUint64(p[offProducerID:], h.ProducerID)
	le.PutUint32(p[offProducerEpoch:], h.ProducerEpoch)
	le.PutUint32(p[offBaseSequence:], h.BaseSequence)
	le.PutUint32(p[offBodyCRC:], h.BodyCRC)
	le.PutUint32(p[offReserved:], 0)
	le.PutUint64(p[offPosition:], uint64(h.Position))
	le.PutUint64(p[offFirstID:], uint64(h.FirstID))
	le.PutUint64(p[offEpoch:], uint64(h.Epoch))
	le.PutUint64(p[offAppended:], uint64(h.Appended))
	le.PutUint32(p[offPrevCRC:], h.PrevCRC)
	h.CRC = Checksum(p[:offHeaderCRC])
	le.PutUint32(p[offHeaderCRC:], h.CRC)
}

// VerifyBody checks the body, as stored, against its header. The error is ErrInvalid.
func VerifyBody(h *Header, body []byte) error {
	if len(body) != int(h.BodyBytes) {
		return fmt.Errorf("%w: body of %d bytes, the header says %d", ErrInvalid, len(body), h.BodyBytes)
	}
	if got := Checksum(body); got != h.BodyCRC {
		return fmt.Errorf("%w: body checksum %08x, computed %08x", ErrInvalid, h.BodyCRC, got)
	}
	return nil
}

// Stamp sets the leader's part of a sealed batch in place and returns the new header CRC, which the next batch of the
// partition carries as prevCRC. It reads and hashes only the header. The batch must not be visible to others yet.
func Stamp(batch []byte, pos Position, first MsgID, epoch Epoch, appended int64, prevCRC uint32) (crc uint32) {
	p := batch[:HeaderBytes]
	le := binary.LittleEndian
	le.PutUint64(p[offPosition:], uint64(pos))
	le.PutUint64(p[offFirstID:], uint64(first))
	le.PutUint64(p[offEpoch:], uint64(epoch))
	le.PutUint64(p[offAppended:], uint64(appended))
	le.PutUint32(p[offPrevCRC:], prevCRC)
	crc = Checksum(p[:offHeaderCRC])
	le.PutUint32(p[offHeaderCRC:], crc)
	return crc
}

// BatchIter walks a run of whole batches, such as View.Bytes. It verifies headers; View has verified the bodies
// already. It allocates nothing unless the run is damaged.
type BatchIter struct {
	h    Header
	rest []byte
	err  error
}

// Reset starts at the first batch of run. The iterator borrows run until the last Next.
func (it *BatchIter) Reset(run []byte) { it.rest, it.err = run, nil }

// Next returns the next batch: its header, valid until the following call, and its stored body, borrowed from the run.
// At the end and at damage it returns false; see Err.
func (it *BatchIter) Next() (h *Header, body []byte, ok bool) {
	if len(it.rest) == 0 || it.err != nil {
		return nil, nil, false
	}
	if it.err = it.h.Decode(it.rest); it.err != nil {
		return nil, nil, false
	}
	size := it.h.Size()
	if size > len(it.rest) {
		it.err = fmt.Errorf("%w: cut after %d of %d bytes", ErrInvalid, len(it.rest), size)
		return nil, nil, false
	}
	body, it.rest = it.rest[HeaderBytes:size:size], it.rest[size:]
	return &it.h, body, true
}

// Err returns the error that ended the walk early, or nil.
func (it *BatchIter) Err() error { return it.err }
