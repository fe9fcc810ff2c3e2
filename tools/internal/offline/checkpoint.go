package offline

import (
	"encoding/binary"
	"errors"

	"github.com/google/uuid"

	"penstock/segment"
)

// Partition is one entry of the commit log's checkpoint: where the segments of a partition end.
type Partition struct {
	ID      segment.Identity
	State   segment.State
	Cursors []byte // the engine's own encoding
}

var errCheckpoint = errors.New("the checkpoint's checksum is right, but it does not decode: another version wrote it")

// DecodeCheckpoint reads the chunks of a checkpoint, put together: a count, and for each partition its
// topic (16 bytes), number (4), state (56) and cursors (length, bytes). No bytes are an empty node.
func DecodeCheckpoint(p []byte) ([]Partition, error) {
	const idBytes, stateBytes = 20, 56
	if len(p) == 0 {
		return nil, nil
	}
	if len(p) < 4 {
		return nil, errCheckpoint
	}
	le := binary.LittleEndian
	count := le.Uint32(p)
	p = p[4:]
	var parts []Partition
	for range count {
		if len(p) < idBytes+stateBytes+4 {
			return nil, errCheckpoint
		}
		q := p[idBytes:]
		part := Partition{
			ID: segment.Identity{Topic: uuid.UUID(p[:16]), Partition: le.Uint32(p[16:])},
			State: segment.State{
				Next: segment.Position(le.Uint64(q)), NextID: segment.MsgID(le.Uint64(q[8:])), End: segment.Offset(le.Uint64(q[16:])),
				LastCRC: le.Uint32(q[24:]), Epoch: segment.Epoch(le.Uint64(q[28:])), Segment: le.Uint32(q[36:]),
				SegmentBase: segment.Offset(le.Uint64(q[40:])), SegmentCapacity: int64(le.Uint64(q[48:])),
			},
		}
		n := le.Uint32(q[stateBytes:])
		p = q[stateBytes+4:]
		if uint64(n) > uint64(len(p)) {
			return nil, errCheckpoint
		}
		part.Cursors, p = p[:n], p[n:]
		parts = append(parts, part)
	}
	if len(p) != 0 {
		return nil, errCheckpoint
	}
	return parts, nil
}
