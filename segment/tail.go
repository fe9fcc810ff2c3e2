package segment

import (
	"sort"

	"penstock/segment/aio"
)

// Slice is one committed batch where it lies in memory: in the buffer of the group that
// carried it through the commit log. FileSeq names the commit log file that holds it, until a
// segment does.
type Slice struct {
	Buf  *aio.Buf
	Data []byte // the whole batch, within Buf

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

// tail is a deque of slices in log order, without gaps. Its ring is given back whenever it
// runs empty: an idle partition holds no memory.
type tail struct {
	ring []Slice // len is a power of two, or 0
	head int
	n    int
}

const minTailSlots = 8

func (t *tail) at(i int) *Slice { return &t.ring[(t.head+i)&(len(t.ring)-1)] }

func (t *tail) push(s *Slice) {
	if t.n == len(t.ring) {
		ring := make([]Slice, max(2*len(t.ring), minTailSlots))
		for i := range t.n {
			ring[i] = *t.at(i)
		}
		t.ring, t.head = ring, 0
	}
	t.n++
	*t.at(t.n - 1) = *s
}

func (t *tail) popFront() *aio.Buf {
	s := t.at(0)
	buf := s.Buf
	*s = Slice{}
	t.head = (t.head + 1) & (len(t.ring) - 1)
	t.shrink()
	return buf
}

func (t *tail) popBack() *aio.Buf {
	s := t.at(t.n - 1)
	buf := s.Buf
	*s = Slice{}
	t.shrink()
	return buf
}

func (t *tail) shrink() {
	if t.n--; t.n == 0 && len(t.ring) > minTailSlots {
		t.ring, t.head = nil, 0
	}
}

// search is sort.Search over the slices.
func (t *tail) search(f func(s *Slice) bool) int {
	return sort.Search(t.n, func(i int) bool { return f(t.at(i)) })
}

// find returns the index of the slice that begins at off, or the next one.
func (t *tail) find(off Offset) int {
	lo, hi := 0, t.n
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); t.at(mid).Offset < off {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// mark remembers which commit log file a stretch of the log is in, for as long as no
// segment durably holds it. It outlives the slices, which go once they are written.
type mark struct {
	seq        uint64
	start, end Offset
}

// marks is ordered by offset, and by seq too, because commit log files are filled one after
// another. There are at most as many as commit log files.
type marks []mark

func (m *marks) add(seq uint64, start, end Offset) {
	if n := len(*m); n > 0 && (*m)[n-1].seq == seq {
		(*m)[n-1].end = end
		return
	}
	*m = append(*m, mark{seq, start, end})
}

func (m *marks) synced(upTo Offset) {
	n := 0
	for n < len(*m) && (*m)[n].end <= upTo {
		n++
	}
	*m = append((*m)[:0], (*m)[n:]...)
}

func (m *marks) cut(end Offset) {
	n := len(*m)
	for n > 0 && (*m)[n-1].start >= end {
		n--
	}
	if *m = (*m)[:n]; n > 0 {
		(*m)[n-1].end = min((*m)[n-1].end, end)
	}
}
