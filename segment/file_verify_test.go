package segment

import (
	"path"
	"slices"
	"testing"

	"penstock/segment/aio"
)

// verified passes a file to a FileVerifier in pieces of size bytes.
func verified(t testing.TB, disk aio.Disk, name string, e Extent, size int) []Lost {
	t.Helper()
	f, err := disk.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	total, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	v := NewFileVerifier(e)
	for at := int64(0); at < total; {
		p := make([]byte, min(int64(size), total-at))
		if err := f.ReadAt(p, at); err != nil {
			t.Fatal(err)
		}
		if n, err := v.Write(p); n != len(p) || err != nil {
			t.Fatal(n, err)
		}
		at += int64(len(p))
	}
	return v.Lost()
}

// A file of which no log is open is judged as a log would: a batch whose body is damaged is lost alone, and behind a
// header that is damaged all is. The messages that are lost are named.
func TestFileVerifier(t *testing.T) {
	disk := memoryDisk()
	w := newWorld(t, disk)
	for range 12 {
		w.append(3, 400)
	}
	w.settle()
	var held []*HeldFile
	if err := w.log.HoldFiles(func(h *HeldFile) error { held = append(held, h); return nil }); err != nil {
		t.Fatal(err)
	}
	first := held[0]
	var in []*stored // the batches of the first file
	for i := range w.model {
		if m := &w.model[i]; m.slice.Offset < first.End {
			in = append(in, m)
		}
	}
	if len(in) < 4 || len(held) < 2 || !first.Full {
		t.Fatalf("%d batches in the first of %d files", len(in), len(held))
	}
	e := Extent{ID: w.log.id, End: first.End, NextID: held[1].FirstID}
	name := path.Join(w.log.dir, segmentName(0))
	check := func(what string, want ...Lost) {
		t.Helper()
		for _, size := range []int{1, 1000, 1 << 20} {
			got := verified(t, disk, name, e, size)
			for i := range got {
				if got[i].Err == nil {
					t.Errorf("%s: no reason", what)
				}
				got[i].Err = nil
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s, in pieces of %d: %+v, want %+v", what, size, got, want)
			}
		}
	}
	of := func(m *stored) Lost {
		id := m.slice.FirstID
		return Lost{Range: Range{m.slice.Offset, m.after.End}, FirstID: id, NextID: id + MsgID(m.slice.Count)}
	}
	place := func(m *stored, at int) int64 { return SegmentHeaderBytes + int64(m.slice.Offset) + int64(at) }
	check("whole")
	flip(t, disk, name, place(in[1], HeaderBytes+5))
	check("a body", of(in[1]))
	flip(t, disk, name, place(in[2], HeaderBytes+5))
	both := of(in[1])
	both.To, both.NextID = of(in[2]).To, of(in[2]).NextID
	check("two bodies", both)
	flip(t, disk, name, place(in[2], HeaderBytes+5))
	last := in[len(in)-1]
	flip(t, disk, name, place(in[3], 9))
	rest := of(in[3])
	rest.To, rest.NextID = first.End, of(last).NextID
	check("a body and a header", of(in[1]), rest)
	flip(t, disk, name, 40)
	check("the header block", Lost{Range: Range{first.First, first.End}, FirstID: first.FirstID, NextID: of(last).NextID})
	for _, h := range held {
		h.Release()
	}
}

// A file that ends before its batches do has lost the rest; and so has one whose batch does not continue the one
// before.
func TestFileVerifierMeetsTheEnd(t *testing.T) {
	disk := memoryDisk()
	w := newWorld(t, disk)
	for range 4 {
		w.append(1, 300)
	}
	w.settle()
	name := path.Join(w.log.dir, segmentName(0))
	f, err := disk.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	end := w.model[3].after.End
	all := make([]byte, SegmentHeaderBytes+end)
	if err := f.ReadAt(all, 0); err != nil {
		t.Fatal(err)
	}
	e := Extent{ID: w.log.id, End: end, NextID: 4}
	ask := func(p []byte) []Lost {
		v := NewFileVerifier(e)
		_, _ = v.Write(p)
		return v.Lost()
	}
	if lost := ask(all); lost != nil {
		t.Fatalf("whole: %+v", lost)
	}
	from := w.model[3].slice.Offset
	want := Range{from, end}
	open := e
	open.End, open.Open = end+100, true
	v := NewFileVerifier(open)
	_, _ = v.Write(all)
	_, _ = v.Write(make([]byte, 1000))
	if at, next := v.Behind(); v.Lost() != nil || at != end || next != 4 {
		t.Errorf("without a known end: %v, %d, %d", v.Lost(), at, next)
	}
	if lost := ask(all[:len(all)-1]); len(lost) != 1 || lost[0].Range != want || lost[0].FirstID != 3 {
		t.Errorf("too short: %+v", lost)
	}
	older := slices.Clone(all)
	copy(older[SegmentHeaderBytes+from:], all[SegmentHeaderBytes+w.model[2].slice.Offset:][:end-from])
	if lost := ask(older); len(lost) != 1 || lost[0].Range != want || lost[0].NextID != 4 {
		t.Errorf("another batch in its place: %+v", lost)
	}
}
