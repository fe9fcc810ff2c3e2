package segment

import (
	"sort"

	"penstock/batch"
	"penstock/segment/aio"
)

// Slice is one batch where it lies in memory: in the buffer of the group that carries it through the commit log.
// FileSeq names the commit log file that holds the batch until a segment does.
type Slice struct {
	Buf  *aio.Buf
	Data []byte // the whole batch, stamped, within Buf

	Position        Position
	FirstID         MsgID
	Count           uint32 // messages; 0 for control batches
	Control         bool
	Appended        int64 // ns since 1970
	Offset          Offset
	Segment         uint32 // where Sizes.Place put it
	SegmentBase     Offset
	SegmentCapacity int64
	FileSeq         uint64
}

// End is the offset after the batch.
func (s *Slice) End() Offset { return s.Offset + Offset(len(s.Data)) }

// entry is what the tail keeps of a Slice besides its stretch; the rest is in the batch's own header. An entry is small
// and has no pointers: with single messages in many partitions there are hundreds of thousands of entries, and the
// garbage collector must not scan them.
type entry struct {
	off     Offset
	start   uint32 // where the batch begins in its buffer
	stretch uint32 // number of its stretch; the numbers wrap around
}

// stretch holds what consecutive slices have in common, with one reference to the buffer for all of them.
type stretch struct {
	buf      *aio.Buf
	fileSeq  uint64
	base     Offset // offset where the segment begins; capacity and segment are that segment's, too
	capacity int64
	segment  uint32
	count    uint32 // slices of it that are still in the tail
}

// takes says whether s can join the stretch.
func (st *stretch) takes(s *Slice) bool {
	return st.buf == s.Buf && st.fileSeq == s.FileSeq && st.segment == s.Segment && st.base == s.SegmentBase &&
		st.capacity == s.SegmentCapacity
}

// tail is a deque of slices in log order, without gaps. It frees its rings when it becomes empty, so that an idle
// partition holds no memory. Log.mu guards it.
type tail struct {
	n         int
	end       Offset // after the last slice; valid while n > 0
	entries   ring[entry]
	stretches ring[stretch]
	gone      uint32 // number of the first stretch; popFront advances it
}

// push appends s. The first slice of a stretch takes a reference to the buffer for the whole stretch.
func (t *tail) push(s *Slice) {
	if k := t.stretches.n; k == 0 || !t.stretches.at(k-1).takes(s) {
		s.Buf.Retain()
		t.stretches.push(stretch{
			buf: s.Buf, fileSeq: s.FileSeq, base: s.SegmentBase, capacity: s.SegmentCapacity, segment: s.Segment,
		})
	}
	last := t.stretches.n - 1
	t.stretches.at(last).count++
	t.entries.push(entry{s.Offset, uint32(s.Buf.Offset(s.Data)), t.gone + uint32(last)})
	t.n, t.end = t.n+1, s.End()
}

// offset returns the offset at which slice i begins.
func (t *tail) offset(i int) Offset { return t.entries.at(i).off }

// endOf is where slice i ends.
func (t *tail) endOf(i int) Offset {
	if i+1 < t.n {
		return t.entries.at(i + 1).off
	}
	return t.end
}

func (t *tail) stretchOf(i int) *stretch {
	return t.stretches.at(int(t.entries.at(i).stretch - t.gone))
}

// at reassembles slice i. Its bytes are valid as long as the slice is in the tail, or its buffer is retained.
func (t *tail) at(i int) Slice {
	e := t.entries.at(i)
	st := t.stretchOf(i)
	p := st.buf.Bytes()[e.start:]
	p = p[: t.endOf(i)-e.off : t.endOf(i)-e.off]
	pos, first, count, control, appended := batch.Peek(p)
	return Slice{
		Buf: st.buf, Data: p, Position: pos, FirstID: first, Count: count, Control: control, Appended: appended,
		Offset: e.off, Segment: st.segment, SegmentBase: st.base, SegmentCapacity: st.capacity, FileSeq: st.fileSeq,
	}
}

// popFront drops the first slice. If that slice was the last of its stretch, popFront returns the buffer, which the
// caller must release, else nil.
func (t *tail) popFront() (buf *aio.Buf) {
	t.entries.popFront()
	if st := t.stretches.at(0); st.count > 1 {
		st.count--
	} else {
		buf = st.buf
		t.stretches.popFront()
		t.gone++
	}
	t.n--
	return buf
}

// popBack drops the last slice, and returns a buffer to release as popFront does.
func (t *tail) popBack() (buf *aio.Buf) {
	t.end = t.offset(t.n - 1)
	t.entries.popBack()
	if st := t.stretches.at(t.stretches.n - 1); st.count > 1 {
		st.count--
	} else {
		buf = st.buf
		t.stretches.popBack()
	}
	t.n--
	return buf
}

// search is sort.Search over the slices.
func (t *tail) search(f func(s *Slice) bool) int {
	return sort.Search(t.n, func(i int) bool {
		s := t.at(i)
		return f(&s)
	})
}

// find returns the index of the slice that begins at off, or else of the first slice behind off.
func (t *tail) find(off Offset) int {
	lo, hi := 0, t.n
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); t.offset(mid) < off {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// ring is a deque that keeps its memory until it becomes empty.
type ring[T any] struct {
	slots []T // len is a power of two, or 0
	head  int
	n     int
}

const minRingSlots = 8

func (r *ring[T]) at(i int) *T { return &r.slots[(r.head+i)&(len(r.slots)-1)] }

func (r *ring[T]) push(v T) {
	if r.n == len(r.slots) {
		slots := make([]T, max(2*len(r.slots), minRingSlots))
		n := copy(slots, r.slots[r.head:])
		copy(slots[n:], r.slots[:r.head])
		r.slots, r.head = slots, 0
	}
	r.n++
	*r.at(r.n - 1) = v
}

func (r *ring[T]) popFront() {
	var zero T
	*r.at(0) = zero
	r.head = (r.head + 1) & (len(r.slots) - 1)
	r.shrink()
}

func (r *ring[T]) popBack() {
	var zero T
	*r.at(r.n - 1) = zero
	r.shrink()
}

func (r *ring[T]) shrink() {
	if r.n--; r.n == 0 && len(r.slots) > minRingSlots {
		r.slots, r.head = nil, 0
	}
}

// mark says in which commit log file a stretch of the log begins. The stretch ends where the next mark begins, or at
// the end of the log. A mark is kept until a segment durably holds its whole stretch. So marks outlive the slices,
// which leave the tail once they are flushed.
type mark struct {
	seq   uint64
	start Offset
}

// marks is ordered by offset, and by seq too, because commit log files are filled one after another. There are at most
// as many marks as commit log files.
type marks struct {
	list []mark
	last uint64 // seq of the last mark of list, if there is one
}

// add notes that batches from start on are in commit log file seq.
func (m *marks) add(seq uint64, start Offset) {
	if len(m.list) == 0 || m.last != seq {
		m.list = append(m.list, mark{seq, start})
		m.last = seq
	}
}

// above returns the marks whose stretches reach above off, in a log that ends at end.
func (m *marks) above(off, end Offset) []mark {
	if off >= end {
		return nil
	}
	n := 0
	for n+1 < len(m.list) && m.list[n+1].start <= off {
		n++
	}
	return m.list[n:]
}

// synced drops the marks whose stretches a segment durably holds: those that end at or below upTo.
func (m *marks) synced(upTo, end Offset) {
	m.list = append(m.list[:0], m.above(upTo, end)...)
}

// cut drops the marks at or above the new end of the log.
func (m *marks) cut(end Offset) {
	n := len(m.list)
	for n > 0 && m.list[n-1].start >= end {
		n--
	}
	if m.list = m.list[:n]; n > 0 {
		m.last = m.list[n-1].seq
	}
}
