package offline

import (
	"encoding/binary"
	"errors"

	"github.com/google/uuid"

	"penstock/segment"
)

// checkpointEntry is one entry of the commit log's checkpoint: where the segments of a partition end.
type checkpointEntry struct {
	ID      segment.Identity
	State   segment.State
	Cursors []byte // the engine's own encoding
}

var errCheckpoint = errors.New("the checkpoint's checksum is right, but it does not decode: another version wrote it")

// decodeCheckpoint reads the chunks of a checkpoint, put together: a count, and an entry for each partition. No bytes
// are an empty node.
func decodeCheckpoint(p []byte) ([]checkpointEntry, error) {
	if len(p) == 0 {
		return nil, nil
	}
	if len(p) < 4 {
		return nil, errCheckpoint
	}
	le := binary.LittleEndian
	count := le.Uint32(p)
	p = p[4:]
	var parts []checkpointEntry
	for range count {
		part, rest, err := decodeEntry(p)
		if err != nil {
			return nil, err
		}
		parts, p = append(parts, part), rest
	}
	if len(p) != 0 {
		return nil, errCheckpoint
	}
	return parts, nil
}

// decodeEntry reads one partition: topic (16 bytes), number (4), state (56), committed (8), a leader-epoch table
// (header of 8 bytes with the count in its second half, 24 bytes each) and cursors (length, bytes).
func decodeEntry(p []byte) (part checkpointEntry, rest []byte, err error) {
	const idBytes, stateBytes, tableBytes, epochBytes = 20, 64, 8, 24
	le := binary.LittleEndian
	if len(p) < idBytes+stateBytes+tableBytes {
		return part, nil, errCheckpoint
	}
	q := p[idBytes:]
	part = checkpointEntry{
		ID: segment.Identity{Topic: uuid.UUID(p[:16]), Partition: le.Uint32(p[16:])},
		State: segment.State{
			Next: segment.Position(le.Uint64(q)), NextID: segment.MsgID(le.Uint64(q[8:])),
			End:     segment.Offset(le.Uint64(q[16:])),
			LastCRC: le.Uint32(q[24:]), Epoch: segment.Epoch(le.Uint64(q[28:])), Segment: le.Uint32(q[36:]),
			SegmentBase: segment.Offset(le.Uint64(q[40:])), SegmentCapacity: int64(le.Uint64(q[48:])),
		},
	}
	q = q[stateBytes:]
	epochs := uint64(le.Uint32(q[4:])) * epochBytes
	if q = q[tableBytes:]; epochs+4 > uint64(len(q)) {
		return part, nil, errCheckpoint
	}
	q = q[epochs:]
	n := le.Uint32(q)
	if q = q[4:]; uint64(n) > uint64(len(q)) {
		return part, nil, errCheckpoint
	}
	part.Cursors = q[:n]
	return part, q[n:], nil
}

// decodeCut decodes the payload of a commit log record that cuts a partition: a byte for the kind (1 drops what lies
// above the entry's end, 2 lets the log begin anew there), 7 zero bytes, and the entry.
func decodeCut(p []byte) (part checkpointEntry, anew bool, err error) {
	if len(p) < 8 || p[0] != 1 && p[0] != 2 {
		return part, false, errCheckpoint
	}
	part, rest, err := decodeEntry(p[8:])
	if err == nil && len(rest) != 0 {
		err = errCheckpoint
	}
	return part, p[0] == 2, err
}
