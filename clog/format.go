package clog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/segment"
	"penstock/segment/aio"
)

// Sizes and limits of the format; FORMAT.md holds the tables, and a test compares the two.
const (
	// Version is the only version of the format so far. If a file begins with a group of a greater version, Open fails
	// and changes nothing.
	Version = 1
	// GroupHeaderBytes is the size of a group header.
	GroupHeaderBytes = 64
	// RecordHeaderBytes is the size of a record header: what a record takes besides its payload.
	RecordHeaderBytes = 56
	// MaxPayloadBytes bounds the payload of one record: the largest batch.
	MaxPayloadBytes = segment.MaxBatchBytes
	// MaxCheckpointChunkBytes bounds one chunk of a checkpoint.
	MaxCheckpointChunkBytes = 64 << 10

	groupMagic = 'P' | 'C'<<8 | 'G'<<16 | '1'<<24

	minBlockShift = 9  // 512 bytes
	maxBlockShift = 16 // 64 KiB

	// maxGroupBytes bounds a group, header included, before padding: one record of the largest size.
	maxGroupBytes = GroupHeaderBytes + RecordHeaderBytes + MaxPayloadBytes
)

// Offsets in a group header. The offsets up to offSeq, and the place of the checksum (the last 4 bytes of the header,
// whose size the header states), are the same in every version, so that any version can tell whose a file is.
const (
	offMagic       = 0
	offVersion     = 4
	offBlockShift  = 5
	offHeaderBytes = 6
	offStore       = 8
	offFile        = 24
	offSeq         = 32
	offDurableLag  = 40
	offOldestLag   = 44
	offGroupBytes  = 48
	offRecords     = 52
	offPrevCRC     = 56
	offGroupCRC    = 60
)

// Offsets in a record header.
const (
	recType        = 0
	recFlags       = 1
	recUncommitted = 2
	recBytes       = 4
	recGroupSeq    = 8
	recTopic       = 16
	recPartition   = 32
	recSegment     = 36
	recOffset      = 40
	recPayloadCRC  = 48
	recCRC         = 52
)

// Type says what a record is. Zero is invalid, so that unwritten space is recognized.
type Type uint8

// The types.
const (
	Batch      Type = 1 // payload: one sealed and stamped batch
	Truncate   Type = 2 // the partition is cut to the placement's offset; the source defines the payload
	Tombstone  Type = 3 // the topic or partition is gone; the source defines the payload
	Checkpoint Type = 4 // written by the log itself; payload: one chunk

	maxType = Checkpoint
)

// String returns the name of the type, for people.
func (t Type) String() string {
	switch t {
	case Batch:
		return "batch"
	case Truncate:
		return "truncate"
	case Tombstone:
		return "tombstone"
	case Checkpoint:
		return "checkpoint"
	}
	return fmt.Sprintf("invalid type %d", uint8(t))
}

// flagLast marks the last chunk of a checkpoint. A checkpoint without it was cut by a crash.
const flagLast = 1 << 0

// Placement says where a record belongs. For a Checkpoint, Partition is the number of the chunk.
type Placement struct {
	Type      Type
	Topic     uuid.UUID
	Partition uint32
	Segment   uint32
	Offset    segment.Offset
	// Uncommitted is, for a Batch, 1 plus the number of batches in front of it that its writer did not know to be
	// committed; 0: it does not say. Values other than 0 need a log that no version below feature level 4 reads.
	Uncommitted uint16
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(p []byte) uint32 { return crc32.Checksum(p, castagnoli) }

// groupHeader is the decoded header of a group.
//
// Always Durable < Seq and Oldest <= File. Durable and Oldest are promises: when this group was sealed, every group up
// to Durable was on stable storage, and every file from Oldest on was kept.
type groupHeader struct {
	BlockShift uint8
	Store      uuid.UUID
	File       uint64 // number of the file, its generation; recycled bytes carry an older one
	Seq        uint64 // 1, 2, ... over the life of the store
	Durable    uint64
	Oldest     uint64
	Bytes      uint32 // header and records, without the padding
	Records    uint32
	PrevCRC    uint32 // CRC of the group Seq-1, also across files; 0 for Seq 1
	CRC        uint32
}

// padded is the group's size on disk.
func (h *groupHeader) padded() int64 { return aio.RoundUp(int64(h.Bytes), 1<<h.BlockShift) }

// encode writes the header to p and sets h.CRC.
func (h *groupHeader) encode(p []byte) {
	if h.Durable >= h.Seq || h.Oldest > h.File || h.Seq-h.Durable > 1<<32-1 || h.File-h.Oldest > 1<<32-1 {
		panic(fmt.Sprintf("BUG: clog: group %d of file %d promises group %d and file %d", h.Seq, h.File, h.Durable, h.Oldest))
	}
	p = p[:GroupHeaderBytes]
	le := binary.LittleEndian
	le.PutUint32(p[offMagic:], groupMagic)
	p[offVersion] = Version
	p[offBlockShift] = h.BlockShift
	le.PutUint16(p[offHeaderBytes:], GroupHeaderBytes)
	copy(p[offStore:], h.Store[:])
	le.PutUint64(p[offFile:], h.File)
	le.PutUint64(p[offSeq:], h.Seq)
	le.PutUint32(p[offDurableLag:], uint32(h.Seq-h.Durable))
	le.PutUint32(p[offOldestLag:], uint32(h.File-h.Oldest))
	le.PutUint32(p[offGroupBytes:], h.Bytes)
	le.PutUint32(p[offRecords:], h.Records)
	le.PutUint32(p[offPrevCRC:], h.PrevCRC)
	h.CRC = checksum(p[:offGroupCRC])
	le.PutUint32(p[offGroupCRC:], h.CRC)
}

// headerState says what lies at a place where a group header could be.
type headerState uint8

const (
	headerNone  headerState = iota // no header, or a damaged one
	headerValid                    // a whole header of this version
	headerNewer                    // a whole header of a version that this program does not know
)

// decode reads a header at the start of p. All of h is defined with headerValid, and the fields up to Seq with
// headerNewer. Otherwise h is undefined. decode never allocates.
func (h *groupHeader) decode(p []byte) headerState {
	le := binary.LittleEndian
	if len(p) < GroupHeaderBytes || le.Uint32(p[offMagic:]) != groupMagic {
		return headerNone
	}
	size := int(le.Uint16(p[offHeaderBytes:]))
	if size < offSeq+8+4 || size > len(p) || checksum(p[:size-4]) != le.Uint32(p[size-4:]) {
		return headerNone
	}
	h.BlockShift = p[offBlockShift]
	copy(h.Store[:], p[offStore:])
	h.File = le.Uint64(p[offFile:])
	h.Seq = le.Uint64(p[offSeq:])
	if p[offVersion] > Version {
		return headerNewer
	}
	if p[offVersion] != Version || size != GroupHeaderBytes {
		return headerNone
	}
	durableLag, oldestLag := uint64(le.Uint32(p[offDurableLag:])), uint64(le.Uint32(p[offOldestLag:]))
	h.Durable = h.Seq - durableLag
	h.Oldest = h.File - oldestLag
	h.Bytes = le.Uint32(p[offGroupBytes:])
	h.Records = le.Uint32(p[offRecords:])
	h.PrevCRC = le.Uint32(p[offPrevCRC:])
	h.CRC = le.Uint32(p[offGroupCRC:])
	ok := durableLag > 0 && durableLag <= h.Seq && oldestLag <= h.File &&
		h.BlockShift >= minBlockShift && h.BlockShift <= maxBlockShift &&
		h.Bytes >= GroupHeaderBytes && h.Bytes <= maxGroupBytes &&
		h.Records <= (h.Bytes-GroupHeaderBytes)/RecordHeaderBytes
	if !ok {
		return headerNone
	}
	return headerValid
}

// recordHeader is the decoded header of a record.
type recordHeader struct {
	Placement
	Flags      uint8
	Bytes      uint32 // payload
	GroupSeq   uint64
	PayloadCRC uint32 // CRC of the payload; for a batch: its header CRC, which covers its body CRC
}

// encodeRecord writes everything but the two checksums, which depend on the payload; see sealRecord.
func encodeRecord(p []byte, place *Placement, flags uint8, bytes int, groupSeq uint64) {
	p = p[:RecordHeaderBytes]
	le := binary.LittleEndian
	p[recType] = byte(place.Type)
	p[recFlags] = flags
	le.PutUint16(p[recUncommitted:], place.Uncommitted)
	le.PutUint32(p[recBytes:], uint32(bytes))
	le.PutUint64(p[recGroupSeq:], groupSeq)
	copy(p[recTopic:], place.Topic[:])
	le.PutUint32(p[recPartition:], place.Partition)
	le.PutUint32(p[recSegment:], place.Segment)
	le.PutUint64(p[recOffset:], uint64(place.Offset))
}

// sealRecord sets the checksums of the record at the start of p and returns its size. It does not hash a batch again:
// the record holds the checksum of the batch's header, and that header holds the checksum of the body.
func sealRecord(p []byte, seed uint32) int {
	le := binary.LittleEndian
	n := RecordHeaderBytes + int(le.Uint32(p[recBytes:]))
	payload := p[RecordHeaderBytes:n]
	if Type(p[recType]) == Batch {
		var h segment.Header
		if err := h.Decode(payload); err != nil || h.Size() != len(payload) {
			panic(fmt.Sprintf("BUG: clog: a record of %d bytes is not one sealed batch: %v", len(payload), err))
		}
		le.PutUint32(p[recPayloadCRC:], h.CRC)
	} else {
		le.PutUint32(p[recPayloadCRC:], checksum(payload))
	}
	le.PutUint32(p[recCRC:], crc32.Update(seed, castagnoli, p[:recCRC]))
	return n
}

// recordSeed starts the checksums of a group's record headers with the file's number, so that recycled records never
// verify, whatever their group sequence. p begins with the group's header.
func recordSeed(p []byte) uint32 { return checksum(p[offFile : offFile+8]) }

// decode reads the record header at the start of p, which must end where the group ends. It returns the payload within
// p, not verified yet. It allocates nothing when it succeeds.
func (r *recordHeader) decode(p []byte, seed uint32, groupSeq uint64) ([]byte, error) {
	if len(p) < RecordHeaderBytes {
		return nil, fmt.Errorf("%d bytes are too few for a record", len(p))
	}
	le := binary.LittleEndian
	if want, got := le.Uint32(p[recCRC:]), crc32.Update(seed, castagnoli, p[:recCRC]); want != got {
		return nil, fmt.Errorf("record header checksum %08x, computed %08x", want, got)
	}
	r.Type = Type(p[recType])
	r.Flags = p[recFlags]
	r.Bytes = le.Uint32(p[recBytes:])
	r.GroupSeq = le.Uint64(p[recGroupSeq:])
	copy(r.Topic[:], p[recTopic:])
	r.Partition = le.Uint32(p[recPartition:])
	r.Segment = le.Uint32(p[recSegment:])
	r.Offset = segment.Offset(le.Uint64(p[recOffset:]))
	r.Uncommitted = le.Uint16(p[recUncommitted:])
	r.PayloadCRC = le.Uint32(p[recPayloadCRC:])
	switch {
	case r.Type == 0 || r.Type > maxType:
		return nil, fmt.Errorf("record of %v", r.Type)
	case r.Flags&^flagLast != 0 || r.Flags != 0 && r.Type != Checkpoint || r.Uncommitted != 0 && r.Type != Batch:
		return nil, fmt.Errorf("record of %v with flags %#x and mark %d", r.Type, r.Flags, r.Uncommitted)
	case r.GroupSeq != groupSeq:
		return nil, fmt.Errorf("record of group %d within group %d", r.GroupSeq, groupSeq)
	case int64(r.Bytes) > int64(len(p)-RecordHeaderBytes):
		return nil, fmt.Errorf("record of %d bytes with %d left in its group", r.Bytes, len(p)-RecordHeaderBytes)
	}
	end := RecordHeaderBytes + int(r.Bytes)
	return p[RecordHeaderBytes:end:end], nil
}

// verify checks the payload that decode returned.
func (r *recordHeader) verify(payload []byte) error {
	if r.Type != Batch {
		if got := checksum(payload); got != r.PayloadCRC {
			return fmt.Errorf("%v checksum %08x, computed %08x", r.Type, r.PayloadCRC, got)
		}
		return nil
	}
	var h segment.Header
	if err := h.Decode(payload); err != nil {
		return err
	}
	if h.CRC != r.PayloadCRC || h.Size() != len(payload) {
		return fmt.Errorf("another batch than the record names: checksum %08x, not %08x; %d bytes, not %d",
			h.CRC, r.PayloadCRC, h.Size(), len(payload))
	}
	return batch.VerifyBody(&h, payload[segment.HeaderBytes:])
}

// verifyGroup checks everything behind the header h in p, which holds the group with its padding. If it fails, the
// returned offset is where, within p, the part begins that does not verify.
func verifyGroup(h *groupHeader, p []byte) (int, error) {
	seed := recordSeed(p)
	at := GroupHeaderBytes
	var r recordHeader
	for range h.Records {
		payload, err := r.decode(p[at:h.Bytes], seed, h.Seq)
		if err == nil {
			err = r.verify(payload)
		}
		if err != nil {
			return at, err
		}
		at += RecordHeaderBytes + len(payload)
	}
	if at != int(h.Bytes) {
		return at, fmt.Errorf("%d bytes behind the last record", int(h.Bytes)-at)
	}
	if padding := p[at:h.padded()]; !bytes.Equal(padding, zeros[:len(padding)]) {
		return at, errors.New("the padding is not zero")
	}
	return at, nil
}

// zeros is as long as the longest padding.
var zeros [1 << maxBlockShift]byte

// eachRecord calls visit for every record of a group that verifyGroup accepted.
func eachRecord(h *groupHeader, p []byte, visit func(r *recordHeader, payload []byte) error) error {
	seed := recordSeed(p)
	at := GroupHeaderBytes
	var r recordHeader
	for range h.Records {
		payload, err := r.decode(p[at:h.Bytes], seed, h.Seq)
		if err != nil {
			return err
		}
		if err := visit(&r, payload); err != nil {
			return err
		}
		at += RecordHeaderBytes + len(payload)
	}
	return nil
}

// blockShiftOf returns the exponent of a power of two.
func blockShiftOf(blockBytes int) uint8 { return uint8(bits.TrailingZeros32(uint32(blockBytes))) }
