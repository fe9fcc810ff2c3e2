package segment

import (
	"bytes"
	"testing"
)

// tailWorld is a tail and, as plain slices, what must be in it.
type tailWorld struct {
	*world
	tail tail
	want []Slice
	data [][]byte
}

// push appends a batch of n messages. With turn it goes to a new buffer.
func (w *tailWorld) push(n, size int, turn bool) {
	w.t.Helper()
	p := w.batch(n, size)
	var h Header
	if err := h.Decode(p); err != nil {
		w.t.Fatal(err)
	}
	w.sizes.Place(&w.st, len(p))
	s := Slice{
		Position: h.Position, FirstID: h.FirstID, Count: h.Count, Control: h.Control(), Appended: h.Appended,
		Offset: w.st.End, Segment: w.st.Segment, SegmentBase: w.st.SegmentBase, SegmentCapacity: w.st.SegmentCapacity,
		FileSeq: w.fileSeq,
	}
	at := 0
	if k := len(w.want); k > 0 && !turn {
		last := &w.want[k-1]
		s.Buf, at = last.Buf, last.Buf.Offset(last.Data)+len(last.Data)+56 // other bytes lie between the batches
	}
	if s.Buf == nil || at+len(p) > len(s.Buf.Bytes()) {
		s.Buf, at = w.arena.Get(), 0
		defer s.Buf.Release() // as the commit log does when its group is durable
	}
	s.Data = s.Buf.Bytes()[at : at+copy(s.Buf.Bytes()[at:], p)]
	w.tail.push(&s)
	w.st.Advance(&h)
	w.want, w.data = append(w.want, s), append(w.data, p)
}

// pop drops a slice from one end and releases the buffer that the tail returns.
func (w *tailWorld) pop(front bool) {
	k := len(w.want)
	buf := w.tail.popBack
	if front {
		buf = w.tail.popFront
		w.want, w.data = w.want[1:], w.data[1:]
	} else {
		w.want, w.data = w.want[:k-1], w.data[:k-1]
	}
	if b := buf(); b != nil {
		b.Release()
	}
}

func (w *tailWorld) check() {
	w.t.Helper()
	held := map[int]bool{}
	if w.tail.n != len(w.want) {
		w.t.Fatalf("%d slices, want %d", w.tail.n, len(w.want))
	}
	for i := range w.want {
		want, got := w.want[i], w.tail.at(i)
		if !bytes.Equal(got.Data, w.data[i]) || cap(got.Data) != len(got.Data) {
			w.t.Fatalf("slice %d of %d has other bytes", i, len(w.want))
		}
		if got.Buf != want.Buf || got.Position != want.Position || got.FirstID != want.FirstID || got.Count != want.Count ||
			got.Control != want.Control ||
			got.Appended != want.Appended || got.Offset != want.Offset || got.Segment != want.Segment ||
			got.SegmentBase != want.SegmentBase ||
			got.SegmentCapacity != want.SegmentCapacity || got.FileSeq != want.FileSeq {
			w.t.Fatalf("slice %d is %+v, want %+v", i, got, want)
		}
		if w.tail.offset(i) != want.Offset || w.tail.endOf(i) != want.End() || w.tail.find(want.Offset) != i ||
			w.tail.find(want.Offset+1) != i+1 {
			w.t.Fatalf("slice %d at [%d, %d) is not found there", i, want.Offset, want.End())
		}
		held[want.Buf.Index()] = true
	}
	if free := w.arena.Free(); free != w.arena.Count()-len(held) {
		w.t.Fatalf("%d of %d buffers are free, %d are needed", free, w.arena.Count(), len(held))
	}
}

// B30: the tail returns every slice as it was pushed, whichever end slices leave by, and holds a buffer exactly as long
// as one of its slices is left.
func TestTailKeepsSlices(t *testing.T) {
	for seed := range uint64(20) {
		rng := newRand(seed)
		w := &tailWorld{world: newWorld(t, memoryDisk())}
		for range 400 {
			switch k := rng.IntN(10); {
			case k < 5:
				w.push(rng.IntN(3), rng.IntN(300), rng.IntN(4) == 0)
				if rng.IntN(6) == 0 {
					w.fileSeq++ // the next stretch is in the same buffer, but in another file
				}
			case len(w.want) == 0:
			case k < 8:
				w.pop(true)
			case k == 8: // a cut: later batches continue from there
				w.st = w.stateBefore(len(w.want) - 1)
				w.pop(false)
			default:
				for n := rng.IntN(len(w.want) + 1); n > 0; n-- {
					w.pop(true)
				}
			}
			w.check()
		}
		for len(w.want) > 0 {
			w.pop(true)
		}
		w.check()
		if len(w.tail.entries.slots) > minRingSlots || len(w.tail.stretches.slots) > minRingSlots {
			t.Errorf("an empty tail keeps %d and %d slots", len(w.tail.entries.slots), len(w.tail.stretches.slots))
		}
	}
}

// stateBefore is the state of the partition before slice i, as far as the tail uses it.
func (w *tailWorld) stateBefore(i int) State {
	s := &w.want[i]
	return State{
		Next: s.Position, NextID: s.FirstID, End: s.Offset, Epoch: w.st.Epoch,
		Segment: s.Segment, SegmentBase: s.SegmentBase, SegmentCapacity: s.SegmentCapacity,
	}
}

// The numbers of stretches wrap around. A tail that lives across the wrap is not affected.
func TestStretchNumbersWrap(t *testing.T) {
	w := &tailWorld{world: newWorld(t, memoryDisk())}
	w.tail.gone = 1<<32 - 3
	for range 8 {
		w.push(1, 50, true)
		w.push(2, 50, false)
		w.check()
	}
	for len(w.want) > 1 {
		w.pop(true)
		w.check()
	}
	w.pop(false)
	w.check()
	if w.tail.gone != 4 { // a stretch that leaves by the back does not count
		t.Errorf("%d stretches left by the front after the wrap, want 4", w.tail.gone)
	}
}

// One reference holds a buffer for all slices of a stretch: appending batch after batch to it allocates only when the
// rings grow.
func TestAppendAllocatesOnlyGrowth(t *testing.T) {
	w := &tailWorld{world: newWorld(t, memoryDisk())}
	for range 100 {
		w.push(1, 10, false)
	}
	want := append([]Slice(nil), w.want...)
	for len(w.want) > 1 {
		w.pop(true)
	}
	if n := testing.AllocsPerRun(100, func() {
		for i := 1; i < 60; i++ {
			w.tail.push(&want[i])
		}
		for range 59 {
			if buf := w.tail.popBack(); buf != nil {
				buf.Release()
			}
		}
	}); n != 0 {
		t.Errorf("%.1f allocations", n)
	}
	w.pop(true)
}
