package segment

import (
	"bytes"
	"cmp"

	"github.com/google/uuid"

	"penstock/segment/aio"
)

// Identity says whose bytes a log holds. Every file's header carries it, so that a topic that was deleted and created
// again under the same name never finds old bytes.
type Identity struct {
	Topic     uuid.UUID
	Partition uint32
}

// Compare orders identities by topic and number.
func (i Identity) Compare(j Identity) int {
	return cmp.Or(bytes.Compare(i.Topic[:], j.Topic[:]), cmp.Compare(i.Partition, j.Partition))
}

// Sizes are the capacities through which segments grow: segment n of a partition holds MinSegmentBytes<<n bytes of
// batches, at most MaxSegmentBytes, and more only if its first batch alone is larger. All replicas of a partition must
// use the same Sizes, or their files differ.
type Sizes struct {
	MinSegmentBytes int64
	MaxSegmentBytes int64
}

// capacityUnit divides every capacity. It is the block of direct writes, so that every file consists of whole blocks.
const capacityUnit = aio.BlockBytes

// DefaultSizes give a busy partition few files. A small one takes 64 KiB of the disk, see FirstReservedBytes.
var DefaultSizes = Sizes{MinSegmentBytes: 1 << 20, MaxSegmentBytes: 128 << 20}

// State is what a checkpoint keeps of a log: enough to open the log without reading its data. The zero State is an
// empty log. A State is a value and shares nothing.
type State struct {
	Next    Position // of the next batch
	NextID  MsgID    // of the next message
	End     Offset   // where the next batch begins; a new segment, if Place chooses one, begins at the same offset
	LastCRC uint32   // header CRC of the last batch, 0 if there is none
	Epoch   Epoch    // of the last batch

	Segment         uint32 // number of the segment that End lies in
	SegmentBase     Offset // offset where that segment's batches begin; SegmentBase <= End
	SegmentCapacity int64  // bytes of batches that fit into that segment; 0: it is not begun
}

// Place decides where a batch of the given size goes: into the current segment or into a new one. For a new segment it
// advances Segment, SegmentBase and SegmentCapacity. It is pure and deterministic, so that leader, followers and replay
// produce the same files. It does not advance End.
func (z Sizes) Place(s *State, batchBytes int) (newSegment bool) {
	switch {
	case s.SegmentCapacity == 0 || s.End == s.SegmentBase:
		// Not begun, or begun and then cut back to nothing: the number is still free.
	case int64(s.End-s.SegmentBase)+int64(batchBytes) > s.SegmentCapacity:
		s.Segment++
	default:
		return false
	}
	s.SegmentBase = s.End
	s.SegmentCapacity = z.capacity(s.Segment, batchBytes)
	return true
}

func (z Sizes) capacity(segment uint32, batchBytes int) int64 {
	c := z.MinSegmentBytes
	for ; segment > 0 && c < z.MaxSegmentBytes; segment-- {
		c <<= 1
	}
	return aio.RoundUp(max(min(c, z.MaxSegmentBytes), int64(batchBytes)), capacityUnit)
}

// Advance moves the state past a batch that Place placed. h is the batch's stamped header.
func (s *State) Advance(h *Header) {
	s.Next = h.Position + 1
	s.NextID = h.NextID()
	s.End += Offset(h.Size())
	s.LastCRC = h.CRC
	s.Epoch = h.Epoch
}
