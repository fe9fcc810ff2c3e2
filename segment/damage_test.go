package segment

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
)

// flip damages one byte of a stored file.
func flip(t testing.TB, disk aio.Disk, name string, at int64) {
	t.Helper()
	f, err := disk.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if err := f.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x40
	if !disk.(*faultaio.Disk).Corrupt(name, b[:], at) {
		t.Fatal("no such file")
	}
}

// readAround reads batch by batch, like a reader that steps over isolated ranges. It returns the model's indexes of the
// batches it got, and of the damaged ones. It asks for each batch at most once, so it must end.
func (w *world) readAround() (got []int, damaged []int) {
	w.t.Helper()
	var v View
	for i := range w.model {
		m := &w.model[i]
		err := w.log.View(&v, m.slice.Offset, 1)
		var damage *CorruptError
		switch {
		case err == nil:
			if !bytes.Equal(v.Bytes(), m.data) {
				w.t.Fatalf("batch %d is served with other bytes", i)
			}
			v.Release()
			got = append(got, i)
		case errors.As(err, &damage):
			again := w.log.View(&v, m.slice.Offset, 1)
			if again == nil || again.Error() != err.Error() {
				w.t.Fatalf("batch %d: first %v, then %v", i, err, again)
			}
			damaged = append(damaged, i)
		default:
			w.t.Fatalf("batch %d: %v", i, err)
		}
	}
	return got, damaged
}

// B31, B37: any damaged byte of any batch is reported as CorruptError; the batches before it in its segment and all
// other segments are served, and all served bytes are what was written.
func TestDamageIsIsolated(t *testing.T) {
	base := newWorld(t, memoryDisk())
	base.fill(newRand(20), 60)
	base.settle()
	segs := base.log.Segments()
	for i := range base.model {
		m := &base.model[i]
		inFile := SegmentHeaderBytes + int64(m.slice.Offset-m.slice.SegmentBase)
		for _, at := range []int64{0, 8, 50, HeaderBytes - 1, HeaderBytes, int64(len(m.data)) - 1} {
			if at >= int64(len(m.data)) {
				continue
			}
			t.Run(fmt.Sprintf("batch %d byte %d", i, at), func(t *testing.T) {
				w := *base
				w.t = t
				w.disk = base.disk.(*faultaio.Disk).Kill(1)
				w.open(w.st)
				defer w.log.Close()
				flip(t, w.disk, fmt.Sprintf("%s/%010d.seg", w.dir, m.slice.Segment), inFile+at)
				got, damaged := w.readAround()
				if len(damaged) == 0 || damaged[0] != i {
					t.Fatalf("damaged batches %v", damaged)
				}
				for _, k := range damaged {
					if w.model[k].slice.Segment != m.slice.Segment {
						t.Errorf("batch %d of segment %d is not served", k, w.model[k].slice.Segment)
					}
				}
				if at >= HeaderBytes && len(damaged) != 1 { // the header still says where the next batch begins
					t.Errorf("a damaged body took batches %v with it", damaged)
				}
				if len(got)+len(damaged) != len(w.model) {
					t.Errorf("%d served, %d damaged of %d", len(got), len(damaged), len(w.model))
				}
				w.checkDamageReport(m.slice.Segment, inFile, m.slice.Offset)
			})
		}
	}
	if len(segs) < 3 {
		t.Fatalf("%d segments", len(segs))
	}
}

func (w *world) checkDamageReport(segment uint32, inFile int64, off Offset) {
	w.t.Helper()
	var damage *CorruptError
	if err := w.log.Health(); !errors.As(err, &damage) || damage.Offset != inFile ||
		damage.Path != fmt.Sprintf("%s/%010d.seg", w.dir, segment) ||
		!errors.Is(err, ErrInvalid) && !errors.Is(err, ErrUnwritten) {
		w.t.Errorf("Health: %v, want byte %d of segment %d", err, inFile, segment)
	}
	if r := w.log.Isolated(); len(r) != 1 || r[0].From != off || r[0].To <= off {
		w.t.Errorf("isolated %v, want from %d", r, off)
	}
}

// A run ends before a damaged batch, and a reader that continues there gets the error, whatever it asks for.
func TestRunEndsBeforeDamage(t *testing.T) {
	w := newWorld(t, memoryDisk())
	for range 5 {
		w.append(2, 100)
	}
	w.settle()
	flip(t, w.disk, w.dir+"/0000000000.seg", SegmentHeaderBytes+int64(w.model[3].slice.Offset)+HeaderBytes+5)
	var v View
	for range 2 {
		if err := w.log.View(&v, 0, 1<<20); err != nil || Offset(len(v.Bytes())) != w.model[3].slice.Offset {
			t.Fatalf("run of %d bytes, %v", len(v.Bytes()), err)
		}
		v.Release()
		var damage *CorruptError
		if err := w.log.View(&v, w.model[3].slice.Offset, 1<<20); !errors.As(err, &damage) {
			t.Fatal(err)
		}
	}
	if err := w.log.View(&v, w.model[4].slice.Offset, 1<<20); err != nil {
		t.Fatalf("after the damage: %v", err)
	}
	v.Release()
}

// A power cut may leave a file that is shorter than its segment and still holds all its batches. That is not damage:
// later writes have room, also beyond the old end of the file, and isolated ranges can be repaired.
func TestShortFileThatHasEverythingIsWrittenOn(t *testing.T) {
	onDisks(t, func(t *testing.T, disk aio.Disk) {
		w := newWorld(t, disk)
		for range 4 {
			w.append(2, 100)
		}
		w.settle()
		name := w.dir + "/0000000000.seg"
		data, err := disk.ReadFile(name, 1<<20)
		if err := errors.Join(err, w.log.Close(), disk.Remove(name)); err != nil {
			t.Fatal(err)
		}
		if err := disk.WriteFile(name, data[:2*SegmentHeaderBytes]); err != nil {
			t.Fatal(err)
		}
		w.open(w.st)
		w.check()
		if err := w.log.Health(); err != nil {
			t.Fatal(err)
		}
		for k := 0; w.st.End < 2*SegmentHeaderBytes-800; k++ {
			w.append(2, 100)
			if k%3 == 0 {
				w.flush()
			}
		}
		w.settle()
		if n := len(w.log.Segments()); n != 1 {
			t.Fatalf("%d segments: the test does not reach what it is for", n)
		}
		w.check()
		if r := w.log.Isolated(); len(r) != 0 {
			t.Errorf("isolated: %v", r)
		}
		w.reopen()
		w.check()
	})
}

// Damage in the segment that is being written does not affect later writes to it.
func TestDamageInTheCurrentSegment(t *testing.T) {
	w := newWorld(t, memoryDisk())
	for range 4 {
		w.append(2, 100)
	}
	w.settle()
	flip(t, w.disk, w.dir+"/0000000000.seg", SegmentHeaderBytes+int64(w.model[2].slice.Offset)+20)
	w.append(2, 100) // only in memory
	var v View
	if err := w.log.View(&v, w.model[2].slice.Offset, 1); err == nil {
		t.Fatal("damage is served")
	}
	r := w.log.Isolated()
	if len(r) != 1 || r[0] != (Range{w.model[2].slice.Offset, w.model[4].slice.Offset}) {
		t.Fatalf("isolated %v", r)
	}
	w.append(2, 100)
	w.settle()
	if _, damaged := w.readAround(); fmt.Sprint(damaged) != "[2 3]" {
		t.Errorf("damaged %v", damaged)
	}
	if err := w.log.Repair(w.w, r[0], append(bytes.Clone(w.model[2].data), w.model[3].data...)); err != nil {
		t.Fatal(err)
	}
	w.check()
}

// A batch that is whole but in the wrong place breaks the chain, and is not served as part of a run.
func TestMisplacedBatchBreaksTheChain(t *testing.T) {
	w := newWorld(t, memoryDisk())
	for range 6 {
		w.append(2, 100)
	}
	w.settle()
	d := w.disk.(*faultaio.Disk)
	// a write that went astray
	d.Corrupt(w.dir+"/0000000000.seg", w.model[2].data, SegmentHeaderBytes+int64(w.model[3].slice.Offset))
	got, _, err := w.readAll(1 << 20)
	if len(got) != 3 {
		t.Errorf("%d batches before the misplaced one, %v", len(got), err)
	}
	var damage *CorruptError
	if !errors.As(err, &damage) {
		t.Errorf("the misplaced batch was served: %v", err)
	}
}

// B34: an index that is missing, cut, damaged, of another segment, stale or simply wrong costs a scan, but never gives
// a wrong answer.
func TestIndexIsOnlyAHint(t *testing.T) {
	base := newWorld(t, memoryDisk())
	base.fill(newRand(21), 100)
	base.settle()
	name := func(n int) string { return fmt.Sprintf("%s/%010d.idx", base.dir, n) }
	index1, err := base.disk.ReadFile(name(1), 1<<20)
	if err != nil {
		t.Fatalf("a full segment has no index: %v", err)
	}
	h, entries, err := decodeIndex(index1)
	if err != nil || len(entries) < 4 {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	if _, err := base.disk.ReadFile(fmt.Sprintf("%s/%010d.idx", base.dir, base.st.Segment), 1<<20); err == nil {
		t.Error("the current segment has an index file")
	}
	shifted := append([]indexEntry(nil), entries...)
	for i := 1; i < len(shifted); i++ {
		shifted[i].off++
	}
	renamed := append([]indexEntry(nil), entries...)
	for i := 1; i < len(renamed)-1; i++ {
		renamed[i].id++
		renamed[i].pos++
		renamed[i].appended += 5000
	}
	inner := append([]indexEntry(nil), entries...)
	inner[2].off += 8
	for what, data := range map[string][]byte{
		"missing": nil, "empty": {}, "cut": index1[:len(index1)-1], "half": index1[:idxHeaderBytes+idxEntryBytes],
		"damaged": append(bytes.Clone(index1[:70]), bytes.Clone(index1[69:len(index1)-1])...),
		"shifted": encodeIndex(&h, shifted), "other ids": encodeIndex(&h, renamed), "one wrong": encodeIndex(&h, inner),
		"other end":     encodeIndex(&indexHeader{h.id, h.number, h.first, h.end + 1, h.lastCRC}, entries),
		"other segment": encodeIndex(&indexHeader{h.id, h.number + 1, h.first, h.end, h.lastCRC}, entries),
		"other topic":   encodeIndex(&indexHeader{Identity{}, h.number, h.first, h.end, h.lastCRC}, entries),
	} {
		t.Run(what, func(t *testing.T) {
			w := *base
			w.t = t
			w.disk = base.disk.(*faultaio.Disk).Kill(1)
			if err := w.disk.Remove(name(1)); err != nil {
				t.Fatal(err)
			}
			if data != nil {
				if err := w.disk.WriteFile(name(1), data); err != nil {
					t.Fatal(err)
				}
			}
			w.open(w.st)
			defer w.log.Close()
			w.check()
		})
	}
}

// Where several files in a row are missing, not all of them are listed. A view of what they held is damage, and never
// an empty one, with which a reader would not come further. (Seed 482 of the simulation, where the file before was
// full.)
func TestSeveralFilesMissing(t *testing.T) {
	base := newWorld(t, memoryDisk())
	base.fill(newRand(22), 90)
	base.settle()
	segs := base.log.Segments()
	for hit := 1; hit+1 < len(segs); hit++ {
		w := *base
		w.disk = base.disk.(*faultaio.Disk).Kill(1)
		for _, gone := range segs[hit : hit+2] {
			if err := w.disk.Remove(gone.Path); err != nil {
				t.Fatal(err)
			}
		}
		w.open(w.st)
		var v View
		var damage *CorruptError
		if err := w.log.View(&v, segs[hit].Start, 1<<20); !errors.As(err, &damage) {
			t.Errorf("segment %d: %d bytes, %v", hit, len(v.Bytes()), err)
		}
		_ = w.log.Close()
	}
}

// B37: Health names missing, short and foreign files at the start, in the middle and at the end of the log. Everything
// else is served.
func TestDamagedFiles(t *testing.T) {
	base := newWorld(t, memoryDisk())
	base.fill(newRand(22), 90)
	base.settle()
	segs := base.log.Segments()
	last := len(segs) - 1
	if last < 4 {
		t.Fatal("too few segments")
	}
	for _, hit := range []int{0, 1, 2, last} {
		for what, spoil := range map[string]func(d *faultaio.Disk, name string) error{
			"missing": func(d *faultaio.Disk, name string) error { return d.Remove(name) },
			"header": func(d *faultaio.Disk, name string) error {
				d.Corrupt(name, make([]byte, 100), 0)
				return nil
			},
			"other segment": func(d *faultaio.Disk, name string) error {
				data, err := d.ReadFile(segs[3].Path, 1<<20)
				d.Corrupt(name, data, 0)
				return err
			},
			"short": func(d *faultaio.Disk, name string) error {
				data, err := d.ReadFile(name, 1<<20)
				return errors.Join(err, d.Remove(name), d.WriteFile(name, data[:SegmentHeaderBytes+4000]))
			},
			"nearly empty": func(d *faultaio.Disk, name string) error {
				return errors.Join(d.Remove(name), d.WriteFile(name, []byte("PSEG")))
			},
		} {
			if hit == 0 && what == "missing" {
				continue // it looks like a trimmed log; the engine's cursors detect it
			}
			t.Run(fmt.Sprintf("%s %d", what, hit), func(t *testing.T) {
				w := *base
				w.t = t
				d := base.disk.(*faultaio.Disk).Kill(1)
				w.disk = d
				if err := spoil(d, segs[hit].Path); err != nil {
					t.Fatal(err)
				}
				w.open(w.st)
				defer w.log.Close()
				var damage *CorruptError
				if err := w.log.Health(); !errors.As(err, &damage) || damage.Path != segs[hit].Path {
					t.Errorf("Health: %v", err)
				}
				got, damaged := w.readAround()
				for _, k := range damaged {
					if w.model[k].slice.Segment != segs[hit].Number {
						t.Errorf("batch %d of segment %d is not served", k, w.model[k].slice.Segment)
					}
				}
				if len(damaged) == 0 || what == "short" && len(got)+len(damaged) != len(w.model) {
					t.Errorf("%d served, %d damaged", len(got), len(damaged))
				}
				w.seekAround(segs[hit].Number)
				// The log takes new batches, and if the current segment is whole they reach its files.
				w.append(1, 100)
				if _, err := w.log.Flush(w.w, 1<<20); (err != nil) != (hit == last) {
					t.Errorf("flush: %v", err)
				}
			})
		}
	}
}

// seekAround looks for every message and accepts damage only where there is some.
func (w *world) seekAround(damaged uint32) {
	w.t.Helper()
	for i := range w.model {
		s := &w.model[i].slice
		if s.Count == 0 {
			continue
		}
		at, first, err := w.log.Seek(s.FirstID)
		var damage *CorruptError
		switch {
		case err == nil && at == s.Offset && first == s.FirstID:
		case errors.As(err, &damage) && s.Segment == damaged:
		default:
			w.t.Errorf("Seek(%d) in segment %d = %d, %d, %v", s.FirstID, s.Segment, at, first, err)
		}
	}
}

// A file that shrinks under its mapping causes a processor fault. The reader gets an error; the process lives, other
// segments are served, and a reader keeps the bytes that it already has.
func TestFileCutUnderMapping(t *testing.T) {
	dir := t.TempDir()
	disk, err := aio.OpenDisk(dir, aio.DiskOptions{Mode: aio.ModePwrite})
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	w := newWorld(t, disk)
	w.fill(newRand(23), 60)
	w.settle()
	w.check()
	seg := w.log.Segments()[1]
	var v View
	if err := w.log.View(&v, seg.Start, 1); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, seg.Path), 4096); err != nil {
		t.Fatal(err)
	}
	got, damaged := w.readAround()
	if len(damaged) == 0 || len(got) == 0 {
		t.Fatalf("%d served, %d damaged", len(got), len(damaged))
	}
	for _, i := range damaged {
		if w.model[i].slice.Segment != seg.Number {
			t.Errorf("batch %d of segment %d is not served", i, w.model[i].slice.Segment)
		}
	}
	if err := w.log.Health(); !errors.Is(err, aio.ErrMedia) {
		t.Errorf("Health: %v", err)
	}
	first := 0
	for w.model[first].slice.Offset != seg.Start {
		first++
	}
	if n := len(v.Bytes()); n == 0 || !bytes.Equal(v.Bytes(), w.model[first].data[:n]) {
		t.Error("the bytes of a view changed when its file was cut")
	}
	v.Release()
	_ = w.log.Close()
}
