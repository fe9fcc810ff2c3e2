package segment

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"penstock/segment/aio"
	"penstock/segment/aio/faultaio"
)

// B34, B36: without any checkpoint or index the end is found from the data; zeros behind the last batch are the end.
func TestRecover(t *testing.T) {
	onDisks(t, func(t *testing.T, disk aio.Disk) {
		w := newWorld(t, disk)
		recovered := func() {
			t.Helper()
			st, err := Recover(disk, w.dir, w.id, w.opts)
			if err != nil || st != w.st {
				t.Fatalf("recovered %+v, %v, want %+v", st, err, w.st)
			}
		}
		recovered()
		rng := newRand(60)
		for range 40 {
			w.fill(rng, 3)
			w.settle()
			recovered()
		}
		if _, err := w.log.Trim(w.st.End / 2); err != nil {
			t.Fatal(err)
		}
		w.trimmed()
		recovered()
		for _, s := range w.log.Segments() {
			_ = disk.Remove(indexPath(s.Path))
		}
		recovered()
		w.reopen()
		w.check()
	})
}

// B29, B36: a last batch that is cut, at every byte, is not part of the log; what is before it is.
func TestRecoverTornTail(t *testing.T) {
	w := newWorld(t, memoryDisk())
	w.fill(newRand(61), 30)
	w.settle()
	last := w.model[len(w.model)-1]
	before := w.model[len(w.model)-2].after
	name := fmt.Sprintf("%s/%010d.seg", w.dir, last.slice.Segment)
	at := SegmentHeaderBytes + int64(last.slice.Offset-last.slice.SegmentBase)
	for keep := range last.data {
		d := w.disk.(*faultaio.Disk).Kill(1)
		d.Corrupt(name, append(bytes.Clone(last.data[:keep]), make([]byte, len(last.data)-keep)...), at)
		st, err := Recover(d, w.dir, w.id, w.opts)
		if stored, _ := d.ReadFile(name, 1<<20); bytes.Equal(stored[at:at+int64(len(last.data))], last.data) {
			continue // the batch ended in zeros
		}
		var damage *CorruptError
		if st.End != before.End || st.Next != before.Next || st.LastCRC != before.LastCRC {
			t.Fatalf("kept %d bytes: recovered %+v, want %+v (%v)", keep, st, before, err)
		}
		if torn := errors.As(err, &damage); torn != (keep > 0) {
			t.Fatalf("kept %d bytes: %v", keep, err)
		}
	}
}

// B37: what a peer sends over an isolated range is served again, durably, and its neighbours are untouched.
func TestRepair(t *testing.T) {
	w := newWorld(t, memoryDisk())
	w.fill(newRand(62), 80)
	w.append(1, 9000)
	w.settle()
	for i := range w.model {
		s := &w.model[i].slice
		name := fmt.Sprintf("%s/%010d.seg", w.dir, s.Segment)
		flip(t, w.disk, name, SegmentHeaderBytes+int64(s.Offset-s.SegmentBase)+int64(i*37%len(w.model[i].data)))
	}
	_, damaged := w.readAround()
	if len(damaged) == 0 {
		t.Fatal("nothing is damaged")
	}
	for rounds := 0; len(w.log.Isolated()) > 0; rounds++ {
		if rounds > len(w.model) {
			t.Fatal("repair does not end")
		}
		for _, r := range w.log.Isolated() {
			var peer []byte
			for _, m := range w.model {
				if m.slice.Offset >= r.From && m.slice.Offset < r.To {
					peer = append(peer, m.data...)
				}
			}
			for _, wrong := range [][]byte{nil, peer[:len(peer)-1], append([]byte{1}, peer[1:]...)} {
				if w.log.Repair(w.w, r, wrong) == nil {
					t.Fatalf("repaired %v with wrong bytes", r)
				}
			}
			if w.log.Repair(w.w, Range{r.From + 1, r.To}, peer[1:]) == nil {
				t.Fatal("repaired a range that is not isolated")
			}
			if err := w.log.Repair(w.w, r, peer); err != nil {
				t.Fatal(err)
			}
		}
		w.readAround()
	}
	w.check()
	w.disk = w.disk.(*faultaio.Disk).Crash(1)
	w.reopen()
	w.check()
	w.fill(newRand(63), 10)
	w.settle()
	w.check()
}

// B37: an isolated range that comes in pieces is repaired from its beginning on; what is left of it stays isolated, and a crash in between
// changes nothing.
func TestRepairByPieces(t *testing.T) {
	w := newWorld(t, memoryDisk())
	for range 12 {
		w.append(2, 100)
	}
	w.settle()
	from, to := w.model[3].slice.Offset, w.model[9].slice.Offset
	name := w.dir + "/0000000000.seg"
	if !w.disk.(*faultaio.Disk).Corrupt(name, make([]byte, to-from), SegmentHeaderBytes+int64(from)) {
		t.Fatal("the segment is gone")
	}
	w.reopen()
	w.readAround()
	r := w.log.Isolated()
	if len(r) != 1 || r[0].From != from || r[0].To < to {
		t.Fatalf("isolated %v", r)
	}
	last := r[0].To
	for i := 3; i < len(w.model) && w.model[i].slice.Offset < last; i++ {
		m := &w.model[i]
		if err := w.log.Repair(w.w, Range{m.slice.Offset + 1, m.slice.Offset + 2}, m.data[:1]); err == nil {
			t.Fatal("repaired what is not the beginning of an isolated range")
		}
		next := m.slice.Offset + Offset(len(m.data))
		if err := w.log.Repair(w.w, Range{m.slice.Offset, next}, m.data); err != nil {
			t.Fatal(err)
		}
		if left := w.log.Isolated(); next < last && (len(left) != 1 || left[0] != (Range{next, last})) || next >= last && len(left) != 0 {
			t.Fatalf("after batch %d isolated %v", i, left)
		}
		if next < last && w.log.Health() == nil {
			t.Fatal("a log that is half repaired calls itself whole")
		}
		if i == 5 {
			w.disk = w.disk.(*faultaio.Disk).Crash(1)
			w.reopen()
			if _, damaged := w.readAround(); len(damaged) == 0 || damaged[0] != 6 {
				t.Fatalf("after a crash damaged: %v", damaged)
			}
			last = w.log.Isolated()[0].To
		}
	}
	w.check()
	if err := w.log.Health(); err != nil {
		t.Error(err)
	}
}
