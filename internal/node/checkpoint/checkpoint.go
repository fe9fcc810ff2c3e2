package checkpoint

import (
	"encoding/binary"
	"errors"

	"github.com/google/uuid"

	"penstock/internal/node/fold"
	"penstock/replicate"
	"penstock/segment"
)

// Entry is everything that the commit log stores about a partition, in a checkpoint or in a record that cuts the
// partition's log.
type Entry struct {
	ID        segment.Identity
	State     segment.State
	Committed segment.Position // a lower bound of the committed position
	Epochs    []replicate.EpochStart
	Fold      *fold.Cursors // nil: unknown
}

// Append appends the encoding of an entry. A cursors length of 0 says that the fold is unknown
// (internal/node/partition/unread.go).
//
//	topic 16 | partition u32 | next u64 | nextID u64 | end u64 | lastCRC u32 | epoch u64 | segment u32 |
//	segmentBase u64 | segmentCapacity u64 | committed u64 | leader-epoch table (replicate/FORMAT.md) |
//	cursors length u32 | cursors
func Append(dst []byte, en *Entry) []byte {
	le := binary.LittleEndian
	dst = append(dst, en.ID.Topic[:]...)
	dst = le.AppendUint32(dst, en.ID.Partition)
	dst = appendState(dst, &en.State)
	dst = le.AppendUint64(dst, uint64(en.Committed))
	dst = replicate.AppendEpochs(dst, en.Epochs)
	at := len(dst)
	dst = le.AppendUint32(dst, 0)
	if en.Fold == nil {
		return dst
	}
	dst = en.Fold.Append(dst)
	le.PutUint32(dst[at:], uint32(len(dst)-at-4))
	return dst
}

func appendState(dst []byte, st *segment.State) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint64(dst, uint64(st.Next))
	dst = le.AppendUint64(dst, uint64(st.NextID))
	dst = le.AppendUint64(dst, uint64(st.End))
	dst = le.AppendUint32(dst, st.LastCRC)
	dst = le.AppendUint64(dst, uint64(st.Epoch))
	dst = le.AppendUint32(dst, st.Segment)
	dst = le.AppendUint64(dst, uint64(st.SegmentBase))
	return le.AppendUint64(dst, uint64(st.SegmentCapacity))
}

const (
	identityBytes = 16 + 4
	stateBytes    = 8*6 + 4*2

	// FixedBytes is the size of an entry without the epoch table and the fold.
	FixedBytes = identityBytes + stateBytes + 8 + 4
)

func decodeState(p []byte) segment.State {
	le := binary.LittleEndian
	return segment.State{
		Next: segment.Position(le.Uint64(p)), NextID: segment.MsgID(le.Uint64(p[8:])), End: segment.Offset(le.Uint64(p[16:])),
		LastCRC: le.Uint32(p[24:]), Epoch: segment.Epoch(le.Uint64(p[28:])), Segment: le.Uint32(p[36:]),
		SegmentBase: segment.Offset(le.Uint64(p[40:])), SegmentCapacity: int64(le.Uint64(p[48:])),
	}
}

// ErrDecode says that a checkpoint or a cut in the commit log does not decode.
var ErrDecode = errors.New("engine: the commit log's checkpoint does not decode although its checksum is " +
	"right: it was written by a different version; nothing was changed, start the version that wrote it")

// decodeEntry decodes the entry at the start of p and returns the rest of p.
func decodeEntry(p []byte) (en Entry, rest []byte, err error) {
	le := binary.LittleEndian
	if len(p) < identityBytes+stateBytes+8 {
		return en, nil, ErrDecode
	}
	en.ID = segment.Identity{Topic: uuid.UUID(p[:16]), Partition: le.Uint32(p[16:])}
	p = p[identityBytes:]
	en.State, en.Committed = decodeState(p), segment.Position(le.Uint64(p[stateBytes:]))
	if en.Epochs, p, err = replicate.DecodeEpochs(nil, p[stateBytes+8:]); err != nil || len(p) < 4 {
		return en, nil, ErrDecode
	}
	n := le.Uint32(p)
	if p = p[4:]; uint64(n) > uint64(len(p)) {
		return en, nil, ErrDecode
	}
	if n == 0 {
		return en, p, nil
	}
	var over []byte
	if en.Fold, over, err = fold.DecodeCursors(p[:n]); err != nil || len(over) != 0 {
		return en, nil, ErrDecode
	}
	return en, p[n:], nil
}

// AppendCount appends the header of a checkpoint with n partitions. Their entries follow.
//
//	count u32 | entry*
func AppendCount(dst []byte, n int) []byte { return binary.LittleEndian.AppendUint32(dst, uint32(n)) }

// Decode calls each with every entry of a checkpoint, which may be empty. each may keep the entry.
func Decode(p []byte, each func(*Entry)) error {
	if len(p) == 0 {
		return nil
	}
	if len(p) < 4 {
		return ErrDecode
	}
	count := binary.LittleEndian.Uint32(p)
	p = p[4:]
	for range count {
		en, rest, err := decodeEntry(p)
		if err != nil {
			return err
		}
		each(&en)
		p = rest
	}
	if len(p) != 0 {
		return ErrDecode
	}
	return nil
}

// A record of type clog.Truncate says that the log of a replica was cut or reset. Its payload describes the remaining
// log:
//
//	kind u8 | zero 7 | entry
const (
	cutTruncate = 1 // everything above the end is removed
	cutReset    = 2 // nothing of the earlier log is left, whatever its segments hold
	cutBytes    = 8
)

// AppendCut appends the payload of a record that cuts the log to the state in en or, with reset, resets the log to that
// state.
func AppendCut(dst []byte, reset bool, en *Entry) []byte {
	kind := byte(cutTruncate)
	if reset {
		kind = cutReset
	}
	return Append(append(dst, kind, 0, 0, 0, 0, 0, 0, 0), en)
}

// DecodeCut decodes the output of AppendCut.
func DecodeCut(p []byte) (en Entry, reset bool, err error) {
	if len(p) < cutBytes || p[0] != cutTruncate && p[0] != cutReset {
		return en, false, ErrDecode
	}
	en, rest, err := decodeEntry(p[cutBytes:])
	if err != nil || len(rest) != 0 {
		return en, false, ErrDecode
	}
	return en, p[0] == cutReset, nil
}
