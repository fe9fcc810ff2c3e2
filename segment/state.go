package segment

import (
	"github.com/google/uuid"

	"penstock/segment/aio"
)

// Identity is whose bytes a log holds. It stands in every file's header, so that a deleted and
// re-created topic of the same name never finds old bytes.
type Identity struct {
	Topic     uuid.UUID
	Partition uint32
}

// Sizes are the capacities that segments grow through: segment n of a partition holds
// MinSegmentBytes<<n bytes of batches, at most MaxSegmentBytes, and more only if its first
// batch alone is bigger. All replicas of a partition must use the same, or their files differ.
type Sizes struct {
	MinSegmentBytes int64
	MaxSegmentBytes int64
}

// capacityUnit divides every capacity; it is the block of direct writes, so that files are whole blocks.
const capacityUnit = aio.BlockBytes

// roundUp rounds to a multiple of unit, a power of two.
func roundUp(n, unit int64) int64 { return (n + unit - 1) &^ (unit - 1) }

// DefaultSizes let ten thousand idle partitions cost 1 MiB each and a busy one few files.
var DefaultSizes = Sizes{MinSegmentBytes: 1 << 20, MaxSegmentBytes: 128 << 20}

// State is what a checkpoint knows of a log: enough to open it without reading its data.
// The zero State is an empty log. It is a value; nothing in it is shared.
type State struct {
	Next    Position // of the next batch
	NextID  MsgID    // of the next message
	End     Offset   // where the next batch begins, unless Place moves to a new segment (same offset)
	LastCRC uint32   // header CRC of the last batch, 0 if there is none
	Epoch   Epoch    // of the last batch

	Segment         uint32 // number of the segment that End lies in
	SegmentBase     Offset // offset of that segment's first byte; SegmentBase <= End
	SegmentCapacity int64  // bytes of batches it has room for; 0: it is not begun
}

// Place decides where a batch of the given size goes, with DefaultSizes: into the current segment, or
// into a new one, and then it moves Segment, SegmentBase and SegmentCapacity on. It is pure
// and deterministic: leader, followers and replay come to the same files. It does not advance End.
func (s *State) Place(batchBytes int) (newSegment bool) { return DefaultSizes.Place(s, batchBytes) }

// Place is State.Place with other sizes.
func (z Sizes) Place(s *State, batchBytes int) (newSegment bool) {
	switch {
	case s.SegmentCapacity == 0 || s.End == s.SegmentBase:
		// Not begun, or begun and cut back to nothing: its number is still free.
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
	return roundUp(max(min(c, z.MaxSegmentBytes), int64(batchBytes)), capacityUnit)
}

// Advance moves the state past a batch that Place placed: h is its stamped header.
func (s *State) Advance(h *Header) {
	s.Next = h.Position + 1
	s.NextID = h.NextID()
	s.End += Offset(h.Size())
	s.LastCRC = h.CRC
	s.Epoch = h.Epoch
}
