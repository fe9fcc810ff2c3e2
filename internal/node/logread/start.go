package logread

import (
	"errors"
	"sync/atomic"

	"penstock/replicate"
	"penstock/segment"
)

// Start knows the first batch of a log. A partition has one. The machines of replicas need the state of the log in
// front of that batch, part of which only the batch itself tells. Any goroutine may use it. A crash loses what was
// read.
type Start struct {
	first atomic.Pointer[firstBatch] // when Read was last called
}

// firstBatch holds the values of the log's first batch that Start.State needs. It is not changed after it was made.
type firstBatch struct {
	at      segment.Offset
	prevCRC uint32
}

// ErrFirstUnread says that Start.State needs the first batch of the log, and that batch is in a segment and was not
// read: when Start.Read was called, the log began at another batch.
var ErrFirstUnread = errors.New("the first batch of the log is in a segment, and was not read yet")

// Read reads the first batch of the log from the device, and keeps the values of it that State needs. The read may
// hang, so the caller must not hold Replica.mu: puts to every partition of the node would wait for it (F6).
func (s *Start) Read(log *segment.Log) error {
	if s := log.Segments(); len(s) > 0 && segment.DeviceFailed(s[0].Err) {
		return s[0].Err // the log begins where that segment says
	}
	at, _, _ := log.Start()
	end, _, _ := log.End()
	if at == 0 || at == end {
		return nil
	}
	h, err := header(log, at)
	if err == nil {
		s.first.Store(&firstBatch{at, h.PrevCRC})
	}
	return err
}

// maxFirstReads bounds the attempts of Start.With and StateAt. Each further attempt means that retention has moved the
// start of the log meanwhile.
const maxFirstReads = 4

// With reads the first batch of the log, and calls fn, which takes Replica.mu and calls State. It does both again if
// retention has removed that batch in between.
func (s *Start) With(log *segment.Log, fn func() error) (err error) {
	for range maxFirstReads {
		_ = s.Read(log) // State finds out what fails
		if err = fn(); !errors.Is(err, ErrFirstUnread) {
			break
		}
	}
	return err
}

// State returns the state of the log in front of its first batch. end is the state behind its last one, and epochs are
// those of its batches. State does not wait for the device. If the first batch is in a segment, Read must have read it
// before; otherwise State returns ErrFirstUnread.
func (s *Start) State(log *segment.Log, end segment.State, epochs *replicate.EpochTable) (segment.State, error) {
	off, pos, id := log.Start()
	if s := log.Segments(); len(s) > 0 && segment.DeviceFailed(s[0].Err) {
		return segment.State{}, s[0].Err // the log begins where that segment says
	}
	if off == 0 {
		return segment.State{}, nil
	}
	if at, _, _ := log.End(); at == off {
		return end, nil
	}
	st := segment.State{Next: pos, NextID: id, End: off}
	where, err := log.Where(off)
	if err != nil {
		return st, err
	}
	st.Segment, st.SegmentBase, st.SegmentCapacity = where.Segment, where.SegmentBase, where.SegmentCapacity
	if first := s.first.Load(); first != nil && first.at == off {
		st.LastCRC = first.prevCRC
	} else {
		h, err := header(log.Memory(), off)
		if err == segment.ErrNotInMemory {
			err = ErrFirstUnread
		}
		if err != nil {
			return st, err
		}
		st.LastCRC = h.PrevCRC
	}
	if pos > 0 {
		if epoch, ok := epochs.At(pos - 1); ok {
			st.Epoch = epoch
		}
	}
	return st, nil
}
