package segment

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"penstock/segment/aio"
)

// B21, B27, B32: what was written is read back in order across segment boundaries, from memory, from half-written
// segments and from segments alone, and every id and time is found.
func TestReadBack(t *testing.T) {
	onDisks(t, func(t *testing.T, disk aio.Disk) {
		w := newWorld(t, disk)
		w.check()
		rng := newRand(1)
		for round := range 6 {
			w.fill(rng, 40)
			w.check()
			if _, err := w.log.Flush(w.w, 5000); err != nil {
				t.Fatal(err)
			}
			w.check()
			w.log.Evict(w.log.Flushed())
			w.check()
			if round%2 == 0 {
				w.sync()
				w.check()
			}
		}
		w.settle()
		w.check()
		if n := len(w.log.Segments()); n < 4 {
			t.Fatalf("only %d segments: the test does not roll", n)
		}
	})
}

// B32: batches that fill a segment to the byte, and batches that are one byte too large for it.
func TestSegmentBoundaries(t *testing.T) {
	for _, spare := range []int{-1, 0, 1} {
		t.Run(fmt.Sprint(spare), func(t *testing.T) {
			w := newWorld(t, memoryDisk())
			w.append(1, 3000)
			room := int(w.st.SegmentCapacity) - int(w.st.End)
			w.append(0, room-HeaderBytes-spare)
			if fits := w.st.Segment == 0; fits != (spare >= 0) {
				t.Fatalf("a batch of the room minus %d went to segment %d", spare, w.st.Segment)
			}
			w.append(1, 10)
			w.append(2, 40000) // larger than any segment: gets one of its own
			w.append(1, 10)
			w.settle()
			w.check()
			w.reopen()
			w.check()
			for _, s := range w.log.Segments() {
				if int64(s.End-s.Start) > s.FileBytes-SegmentHeaderBytes {
					t.Errorf("segment %d holds more than its capacity", s.Number)
				}
			}
		})
	}
}

func TestPlace(t *testing.T) {
	var st State
	if !DefaultSizes.Place(&st, 100) || st.Segment != 0 || st.SegmentCapacity != 1<<20 {
		t.Fatalf("first batch: %+v", st)
	}
	for _, want := range []int64{2, 4, 8, 16, 32, 64, 128, 128, 128} {
		st.End = st.SegmentBase + Offset(st.SegmentCapacity)
		full := st
		if !DefaultSizes.Place(&st, 1) || st.Segment != full.Segment+1 || st.SegmentBase != full.End ||
			st.SegmentCapacity != want<<20 {
			t.Fatalf("want %d MiB: %+v after %+v", want, st, full)
		}
		if st.End++; DefaultSizes.Place(&st, int(st.SegmentCapacity)-1) {
			t.Fatal("a batch that fits exactly began a new segment")
		}
	}
	st = State{}
	if DefaultSizes.Place(&st, MaxBatchBytes-5); st.SegmentCapacity != MaxBatchBytes {
		t.Errorf("a first batch of 16 MiB gets %d bytes", st.SegmentCapacity)
	}
	st = State{End: 500, Segment: 1<<32 - 5}
	if !DefaultSizes.Place(&st, 1) || st.SegmentBase != 500 || st.Segment != 1<<32-5 || st.SegmentCapacity != 128<<20 {
		t.Errorf("a log begun anew: %+v", st)
	}
}

// B26: below the start, at the end and past the end are three different errors.
func TestPlacesOutsideTheLog(t *testing.T) {
	w := newWorld(t, memoryDisk())
	var v View
	for _, c := range []struct {
		at   Offset
		want error
	}{{0, ErrAtEnd}, {1, ErrPastEnd}} {
		if err := w.log.View(&v, c.at, 100); !errors.Is(err, c.want) {
			t.Errorf("empty log, view at %d: %v", c.at, err)
		}
	}
	w.fill(newRand(2), 200)
	w.settle()
	if _, err := w.log.Trim(w.st.End); err != nil {
		t.Fatal(err)
	}
	w.trimmed()
	start, _, startID := w.log.Start()
	for _, c := range []struct {
		at   Offset
		id   MsgID
		want error
	}{
		{start - 1, startID - 1, ErrBelowStart},
		{0, 0, ErrBelowStart},
		{w.st.End, w.st.NextID, ErrAtEnd},
		{w.st.End + 1, w.st.NextID + 1, ErrPastEnd},
		{1 << 62, 1 << 47, ErrPastEnd},
	} {
		if err := w.log.View(&v, c.at, 100); !errors.Is(err, c.want) {
			t.Errorf("view at %d: %v, want %v", c.at, err, c.want)
		}
		if _, _, err := w.log.Seek(c.id); !errors.Is(err, c.want) {
			t.Errorf("seek %d: %v, want %v", c.id, err, c.want)
		}
	}
	w.append(1, 10)
	for _, at := range []Offset{start + 1, w.model[0].after.End - 1, w.model[len(w.model)-1].slice.Offset + 1} {
		if err := w.log.View(&v, at, 100); !errors.Is(err, ErrNotBoundary) {
			t.Errorf("view inside a batch at %d: %v", at, err)
		}
	}
	w.check() // the wrong place did no harm
	if err := w.log.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.log.View(&v, start, 100); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// B30: a batch that does not continue the log is refused, and so is one outside its segment.
func TestAppendRefusesGaps(t *testing.T) {
	w := newWorld(t, memoryDisk())
	w.append(3, 100)
	w.append(3, 100)
	good := w.model[1].slice
	buf := w.arena.Get()
	defer buf.Release()
	good.Buf, good.Data = buf, buf.Bytes()[:200]
	good.Offset, good.Position, good.FirstID = w.st.End, w.st.Next, w.st.NextID
	for name, spoil := range map[string]func(s *Slice){
		"id again":           func(s *Slice) { s.FirstID-- },
		"id skipped":         func(s *Slice) { s.FirstID++ },
		"position again":     func(s *Slice) { s.Position-- },
		"offset":             func(s *Slice) { s.Offset++ },
		"segment skipped":    func(s *Slice) { s.Segment += 2; s.SegmentBase = s.Offset },
		"segment in the mid": func(s *Slice) { s.Segment++ },
		"beyond capacity":    func(s *Slice) { s.SegmentCapacity = 100 },
		"too short":          func(s *Slice) { s.Data = s.Data[:HeaderBytes-1] },
	} {
		func() {
			defer func() {
				if msg, _ := recover().(string); !strings.HasPrefix(msg, "BUG: ") {
					t.Errorf("%s: accepted (%q)", name, msg)
				}
			}()
			s := good
			spoil(&s)
			w.log.Append(&s)
		}()
	}
	w.check()
}

// B22, B23, B29, B35: after any number of batches, flushed wholly or in part, a reopened log ends where the last synced
// batch ended, whatever bytes lie behind it, and goes on from there.
func TestReopen(t *testing.T) {
	onDisks(t, func(t *testing.T, disk aio.Disk) {
		w := newWorld(t, disk)
		rng := newRand(3)
		for i := range trials(60) {
			w.fill(rng, 3)
			if i%3 != 0 {
				w.flush()
			}
			if i%3 == 1 {
				w.sync() // otherwise flushed bytes lie behind the end of the checkpoint
			}
			w.reopen()
			w.check()
		}
		w.settle()
		w.reopen()
		w.check()
	})
}

// B22: a log that was only ever in memory has no files, and opening it makes none.
func TestEmptyLogMakesNoFile(t *testing.T) {
	disk := memoryDisk().(interface {
		aio.Disk
		Ops() int
	})
	w := newWorld(t, disk)
	w.append(1, 10)
	w.check()
	if err := w.log.Close(); err != nil || disk.Ops() != 0 {
		t.Errorf("%d changes on the disk, %v", disk.Ops(), err)
	}
}

// The order of release does not matter: a view outlives evict, trim, reset and close.
func TestViewsOutliveTheirLog(t *testing.T) {
	onDisks(t, func(t *testing.T, disk aio.Disk) {
		w := newWorld(t, disk)
		w.fill(newRand(4), 120)
		mid := len(w.model) / 2
		w.flush()
		w.sync()
		w.log.Evict(w.model[mid].slice.Offset)
		var mapped, tail View
		if err := w.log.View(&mapped, 0, 4096); err != nil {
			t.Fatal(err)
		}
		if err := w.log.View(&tail, w.model[mid].slice.Offset, 4096); err != nil {
			t.Fatal(err)
		}
		wantMapped, wantTail := bytes.Clone(mapped.Bytes()), bytes.Clone(tail.Bytes())
		w.log.Evict(w.st.End)
		if n, err := w.log.Trim(w.st.End); err != nil || n == 0 {
			t.Fatalf("trim: %d, %v", n, err)
		}
		trashed, err := disk.ReadDir("trash")
		if err != nil || len(trashed) != 1 {
			t.Fatalf("%d files in the trash, want the pinned one (%v)", len(trashed), err)
		}
		if err := w.log.Reset(State{}); err != nil {
			t.Fatal(err)
		}
		if err := w.log.Close(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(mapped.Bytes(), wantMapped) || !bytes.Equal(tail.Bytes(), wantTail) {
			t.Error("bytes changed under a view")
		}
		mapped.Release()
		tail.Release()
		tail.Release() // harmless
		if trashed, err = disk.ReadDir("trash"); err != nil || len(trashed) != 0 {
			t.Errorf("%d files in the trash after the last release (%v)", len(trashed), err)
		}
	})
}

// OldestUnsyncedFileSeq names the oldest commit log file that is still needed, and never a later one.
// OldestUnflushedFileSeq names the oldest file that the next Flush reads from.
func TestOldestUnsyncedFile(t *testing.T) {
	w := newWorld(t, memoryDisk())
	if _, ok := w.log.OldestUnsyncedFileSeq(); ok {
		t.Fatal("an empty log needs a file")
	}
	rng := newRand(5)
	for range 100 {
		w.fill(rng, 1+rng.IntN(4))
		w.fileSeq += uint64(rng.IntN(2))
		if rng.IntN(2) == 0 {
			if _, err := w.log.Flush(w.w, int64(rng.IntN(5000))); err != nil {
				t.Fatal(err)
			}
		}
		if rng.IntN(4) == 0 {
			w.sync()
			w.log.Evict(w.log.Flushed())
		}
		if rng.IntN(20) == 0 {
			w.truncate(len(w.model) - rng.IntN(len(w.model)))
		}
		var want uint64
		for _, m := range w.model {
			if m.after.End > w.log.Synced() {
				want = m.slice.FileSeq
				break
			}
		}
		if got, ok := w.log.OldestUnsyncedFileSeq(); got != want || ok != (want != 0) {
			t.Fatalf("file %d (%v), want %d", got, ok, want)
		}
		var unflushed uint64
		for _, m := range w.model {
			if m.after.End > w.log.Flushed() {
				unflushed = m.slice.FileSeq
				break
			}
		}
		if got, ok := w.log.OldestUnflushedFileSeq(); got != unflushed || ok != (unflushed != 0) {
			t.Fatalf("unflushed from file %d (%v), want %d", got, ok, unflushed)
		}
	}
}

// MakeFile makes exactly the file that the next Flush needs, once. NeedsFile says when.
func TestMakeFile(t *testing.T) {
	onDisks(t, func(t *testing.T, disk aio.Disk) {
		w := newWorld(t, disk)
		if err := w.log.MakeFile(); err != nil || w.log.NeedsFile() || len(w.log.Segments()) != 0 {
			t.Fatalf("an empty log: %v, needs a file: %v, has %d", err, w.log.NeedsFile(), len(w.log.Segments()))
		}
		rng := newRand(9)
		made := 0
		for range 40 {
			w.fill(rng, 3)
			for w.log.Unflushed() > 0 {
				before, need := len(w.log.Segments()), w.log.NeedsFile()
				for range 2 {
					if err := w.log.MakeFile(); err != nil {
						t.Fatal(err)
					}
				}
				if n := len(w.log.Segments()) - before; n != 0 != need || n > 1 {
					t.Fatalf("%d files made, needed: %v", n, need)
				} else if made += n; w.log.NeedsFile() {
					t.Fatal("still needs a file")
				}
				w.check()
				if _, err := w.log.Flush(w.w, 1); err != nil { // one batch, so that segments begin one at a time
					t.Fatal(err)
				}
			}
			if rng.IntN(3) == 0 {
				w.sync()
				w.reopen()
				w.check()
			}
		}
		if made < 4 {
			t.Fatalf("only %d files", made)
		}
	})
}

// A file that was only created holds nothing durably, not even its name, so the segment before it must not be removed.
func TestTrimNeedsADurableSuccessor(t *testing.T) {
	w := newWorld(t, memoryDisk())
	for w.st.Segment == 0 {
		w.append(1, 1000)
	}
	next := w.st.SegmentBase
	for w.log.Flushed() < next {
		if _, err := w.log.Flush(w.w, 1); err != nil {
			t.Fatal(err)
		}
	}
	w.sync()
	if err := w.log.MakeFile(); err != nil {
		t.Fatal(err)
	}
	if to, ok := w.log.TrimmableTo(); !ok || to != next {
		t.Fatalf("TrimmableTo is %d (%v), want %d", to, ok, next)
	}
	if n, err := w.log.Trim(next); n != 0 || err != nil {
		t.Fatalf("%d bytes went, %v", n, err)
	}
	w.settle()
	if n, err := w.log.Trim(next); n == 0 || err != nil {
		t.Fatalf("%d bytes went, %v", n, err)
	}
	if _, ok := w.log.TrimmableTo(); ok {
		t.Error("the last segment counts as removable")
	}
	w.trimmed()
	w.check()
}
