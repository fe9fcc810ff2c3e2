package logtest

import (
	"testing"

	"penstock/batch"
	"penstock/segment"
	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
)

// Dir is the directory of the log on its disk.
const Dir = "p"

// Log is a log on a disk of its own; both are closed at the end of the test. Only Flush flushes the log.
type Log struct {
	*segment.Log
	Disk  *faultaio.Disk
	Arena *aio.Arena
	State segment.State // the end of the log

	t     *testing.T
	sizes segment.Sizes
}

// New returns an empty log. Its memory has 16 buffers of 256 KiB.
func New(t *testing.T, sizes segment.Sizes) *Log {
	t.Helper()
	l := &Log{t: t, sizes: sizes, Disk: faultaio.New(faultaio.Options{Seed: 1})}
	var err error
	if l.Arena, err = aio.NewArena(256<<10, 16); err != nil {
		t.Fatal(err)
	}
	if l.Log, err = segment.Open(l.Disk, Dir, segment.Identity{}, segment.State{}, segment.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		_ = l.Arena.Close()
	})
	return l
}

// Put appends a batch of count messages of size bytes, as a leader does whose clock shows ns. It returns the size of
// the batch in the log.
func (l *Log) Put(count, size int, ns int64) int {
	l.t.Helper()
	var b batch.Builder
	b.Reset(segment.CodecNone)
	for range count {
		if err := b.Add(&segment.Record{Body: make([]byte, size)}); err != nil {
			l.t.Fatal(err)
		}
	}
	sealed, err := b.Seal(ns)
	if err != nil {
		l.t.Fatal(err)
	}
	buf := l.Arena.Get()
	if buf == nil {
		l.t.Fatal("the log's memory is full: flush it")
	}
	defer buf.Release()
	s := &l.State
	batch.Stamp(sealed, s.Next, s.NextID, s.Epoch, ns, s.LastCRC)
	var h segment.Header
	if err := h.Decode(sealed); err != nil {
		l.t.Fatal(err)
	}
	l.sizes.Place(s, len(sealed))
	l.Append(&segment.Slice{
		Buf: buf, Data: buf.Bytes()[:copy(buf.Bytes(), sealed)],
		Position: h.Position, FirstID: h.FirstID, Count: h.Count, Appended: h.Appended, Offset: s.End,
		Segment: s.Segment, SegmentBase: s.SegmentBase, SegmentCapacity: s.SegmentCapacity, FileSeq: 1,
	})
	s.Advance(&h)
	return len(sealed)
}

// Flush moves everything from memory to segments.
func (l *Log) Flush() {
	l.t.Helper()
	w := segment.NewWriter()
	defer w.Close()
	if _, err := l.Log.Flush(w, 1<<30); err != nil {
		l.t.Fatal(err)
	}
	l.Evict(l.Flushed())
}
