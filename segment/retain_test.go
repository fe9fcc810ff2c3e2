package segment

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
)

// B24, B33: cut to every batch of a log of several segments, in each state of writing, then append, read and reopen.
func TestTruncateAnywhere(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(w *world)
	}{
		{"in memory", func(*world) {}},
		{"half flushed", func(w *world) { _, _ = w.log.Flush(w.w, int64(w.st.End)/2) }},
		{"flushed", func(w *world) { w.flush() }},
		{"flushed, evicted", func(w *world) { w.flush(); w.log.Evict(w.st.End) }},
		{"synced, evicted", func(w *world) { w.settle() }},
		{"reopened", func(w *world) { w.settle(); w.reopen() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			const count = 50
			for keep := 0; keep <= count; keep += count / trials(count) {
				w := newWorld(t, memoryDisk())
				w.fill(newRand(6), count)
				if w.st.Segment < 2 {
					t.Fatal("the log does not span segments")
				}
				c.prepare(w)
				w.truncate(keep)
				w.check()
				w.append(2, 77)
				w.check()
				w.fill(newRand(7), 5)
				if keep%2 == 0 {
					w.settle()
				} else {
					w.flush()
				}
				w.check()
				w.reopen()
				w.check()
			}
		})
	}
}

// B38: a view that was taken before a cut keeps showing its bytes while the log is written anew below it. No view taken
// after the cut shows those bytes.
func TestTruncateUnderReaders(t *testing.T) {
	onDisks(t, func(t *testing.T, disk aio.Disk) {
		w := newWorld(t, disk)
		w.fill(newRand(8), 30)
		w.settle()
		var views []*View
		var want [][]byte
		for i := range w.model {
			v := new(View)
			if err := w.log.View(v, w.model[i].slice.Offset, 1); err != nil {
				t.Fatal(err)
			}
			views, want = append(views, v), append(want, w.model[i].data)
		}
		for _, keep := range []int{25, 14, 5, 0} {
			w.truncate(keep)
			w.fill(newRand(uint64(keep)), 12)
			w.settle()
			w.check()
			for i, v := range views {
				if !bytes.Equal(v.Bytes(), want[i]) {
					t.Fatalf("cut to %d: the view of batch %d changed", keep, i)
				}
			}
		}
		w.reopen()
		w.check()
		for _, v := range views {
			v.Release()
		}
	})
}

func TestTruncateOutside(t *testing.T) {
	w := newWorld(t, memoryDisk())
	w.fill(newRand(9), 100)
	w.settle()
	if err := w.log.Truncate(State{End: w.st.End + 1}); !errors.Is(err, ErrPastEnd) {
		t.Errorf("past the end: %v", err)
	}
	if _, err := w.log.Trim(w.st.End); err != nil {
		t.Fatal(err)
	}
	w.trimmed()
	if err := w.log.Truncate(State{}); !errors.Is(err, ErrBelowStart) {
		t.Errorf("below the start: %v", err)
	}
	w.check()
	w.truncate(0) // to the very start of the remaining log
	w.check()
	w.fill(newRand(10), 20)
	w.settle()
	w.check()
	w.reopen()
	w.check()
}

// B28: start anew at any place: at a segment's start, inside a segment, below or above the old contents.
func TestReset(t *testing.T) {
	for _, st := range []State{
		{},
		{Next: 7, NextID: 100, End: 1 << 40, LastCRC: 5, Epoch: 3},
		{Next: 7, NextID: 100, End: 777_777, LastCRC: 5, Segment: 40, SegmentBase: 777_777},
		{Next: 7, NextID: 100, End: 777_777, LastCRC: 5, Segment: 40, SegmentBase: 777_777, SegmentCapacity: 32 << 10},
		{Next: 7, NextID: 100, End: 777_777, LastCRC: 5, Segment: 40, SegmentBase: 770_000, SegmentCapacity: 32 << 10},
		{Next: 7, NextID: 100, End: 5000, LastCRC: 5, Segment: 0, SegmentBase: 0, SegmentCapacity: 8 << 10},
	} {
		for _, before := range []int{0, 100} {
			t.Run(fmt.Sprintf("%d at %d after %d", st.Segment, st.End, before), func(t *testing.T) {
				w := newWorld(t, memoryDisk())
				w.fill(newRand(11), before)
				w.flush()
				if err := w.log.Reset(st); err != nil {
					t.Fatal(err)
				}
				w.model, w.begin, w.st = nil, st, st
				w.check()
				w.reopen()
				w.check()
				if n := len(w.log.Segments()); n > 1 {
					t.Fatalf("%d files after a reset", n)
				}
				w.fill(newRand(12), 60)
				w.check()
				w.reopen() // none of it was synced
				w.check()
				w.settle()
				w.check()
				w.reopen()
				w.check()
				w.truncate(0)
				w.check()
				w.reopen()
				w.check()
			})
		}
	}
}

// B25, B39: trimming to any place removes exactly the whole segments below it and keeps the last one. Everything in the
// remaining segments stays readable by the same ids, also after reopening.
func TestTrim(t *testing.T) {
	var ends []Offset
	w := newWorld(t, memoryDisk())
	w.fill(newRand(13), 80)
	w.settle()
	for _, s := range w.log.Segments() {
		ends = append(ends, s.End-1, s.End, s.End+1)
	}
	for _, to := range append(ends, 0, 1<<62) {
		w := newWorld(t, memoryDisk())
		w.fill(newRand(13), 80)
		w.flush()
		if n, err := w.log.Trim(to); n != 0 || err != nil {
			t.Fatalf("trimmed %d bytes that are not synced, %v", n, err)
		}
		w.sync()
		if to%2 == 0 {
			w.log.Evict(w.st.End)
		}
		before := w.log.Segments()
		want, wantBytes := 0, int64(0)
		for want < len(before)-1 && before[want].End <= to {
			wantBytes += before[want].FileBytes
			want++
		}
		removed, err := w.log.Trim(to)
		if err != nil || removed != wantBytes {
			t.Fatalf("trim to %d removed %d bytes, want %d (%v)", to, removed, wantBytes, err)
		}
		if got := w.log.Segments(); len(got) != len(before)-want || got[0].Number != before[want].Number {
			t.Fatalf("trim to %d left %d segments from %d, want %d from %d", to, len(got), got[0].Number, len(before)-want, want)
		}
		w.trimmed()
		w.check()
		if got, want := w.log.Bytes(), int64(w.st.End-w.begin.End); got != want {
			t.Errorf("Bytes %d, want %d", got, want)
		}
		w.reopen()
		w.check()
		w.fill(newRand(14), 30)
		w.settle()
		w.check()
		infos, err := w.disk.ReadDir(w.dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, info := range infos {
			if number, ok := parseSegmentName(info.Name()); ok && number < before[want].Number {
				t.Errorf("%s is still there", info.Name())
			}
		}
	}
}

// Files that somebody else than retention removed from a log are missing, also those that it began with, whether
// retention has removed others before: their indexes are still there. Retention can give up what is missing.
func TestFirstFilesMissing(t *testing.T) {
	for trim := range 2 {
		for from := range 2 {
			for to := from + 1; to <= from+3; to++ {
				t.Run(fmt.Sprintf("%d trimmed, then %d to %d", trim, from, to), func(t *testing.T) {
					w := newWorld(t, memoryDisk())
					w.opts.Noted = false // the indexes are enough
					w.fill(newRand(13), 300)
					w.settle()
					if _, err := w.log.Trim(w.log.Segments()[trim].Start); err != nil {
						t.Fatal(err)
					}
					w.trimmed()
					firstFilesMissing(w, w.log.Segments(), from, to)
				})
			}
		}
	}
}

// Versions before removed the index after the file, so a crash left indexes whose files are not missing. Open removes
// them, and the next one need not be told.
func TestIndexesOfOldVersions(t *testing.T) {
	w := newWorld(t, memoryDisk())
	w.fill(newRand(13), 300)
	w.settle()
	segs := w.log.Segments()
	if _, err := w.log.Trim(segs[2].Start); err != nil {
		t.Fatal(err)
	}
	w.trimmed()
	for _, s := range segs[:2] {
		if err := w.disk.WriteFile(indexPath(s.Path), []byte("an index")); err != nil {
			t.Fatal(err)
		}
	}
	for _, old := range []bool{true, false} {
		opts := w.opts
		opts.OldIndexes = old
		log, err := Open(w.disk, w.dir, w.id, w.st, opts)
		if err != nil {
			t.Fatal(err)
		}
		if h := log.Health(); h != nil {
			t.Errorf("old %v: %v", old, h)
		}
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func firstFilesMissing(w *world, segs []SegmentInfo, from, to int) {
	for _, s := range segs[from:to] {
		if err := w.disk.Remove(s.Path); err != nil {
			w.t.Fatal(err)
		}
	}
	w.reopen()
	var v View
	var damage *CorruptError
	if err := w.log.View(&v, segs[from].Start, 1<<20); !errors.As(err, &damage) {
		w.t.Errorf("%d bytes, %v", len(v.Bytes()), err)
	}
	if w.log.Health() == nil {
		w.t.Error("it says that it is whole")
	}
	if _, err := w.log.Trim(segs[to].Start); err != nil {
		w.t.Fatal(err)
	}
	w.reopen()
	if off, _, _ := w.log.Start(); off != segs[to].Start || w.log.Health() != nil {
		w.t.Errorf("it begins at %d, want %d: %v", off, segs[to].Start, w.log.Health())
	}
}

// A crash at any step of trimming leaves a log of which nothing is missing.
func TestCrashWhileTrimming(t *testing.T) {
	for at, done := 0, false; !done; at++ {
		w := newWorld(t, memoryDisk())
		w.fill(newRand(13), 80)
		w.settle()
		d := w.disk.(*faultaio.Disk)
		if err := d.SyncDir(w.dir); err != nil { // the names of the indexes
			t.Fatal(err)
		}
		d.CrashAt(d.Ops() + at)
		_, _ = w.log.Trim(w.st.End)
		done = !d.Crashed()
		for seed := range uint64(40) {
			log, err := Open(d.Crash(seed), w.dir, w.id, w.st, w.opts)
			if err != nil {
				t.Fatal(err)
			}
			if h := log.Health(); h != nil {
				t.Errorf("a crash at step %d, seed %d: %v", at, seed, h)
			}
			_ = log.Close()
		}
	}
}

// A checkpoint that ends exactly at the end of a segment that retention removed later opens as an empty log there.
func TestOpenAtTrimmedEnd(t *testing.T) {
	w := newWorld(t, memoryDisk())
	w.fill(newRand(15), 40)
	w.settle()
	last := w.log.Segments()[len(w.log.Segments())-1]
	st := w.stateAt(last.Start)
	if st.End != last.Start || st.Segment != last.Number-1 {
		t.Fatalf("state %+v is not the end of the segment before %d", st, last.Number)
	}
	if _, err := w.log.Trim(w.st.End); err != nil {
		t.Fatal(err)
	}
	w.trimmed()
	w.opts.Noted = false // it was a version of feature level 2: no other one removes it
	w.reopenAt(st)
	w.check()
	w.settle()
	w.check()
	w.reopen()
	w.check()
}

// B41: files of another topic of the same name, or of another partition, are refused, and the error says so.
func TestForeignSegmentsAreRefused(t *testing.T) {
	w := newWorld(t, memoryDisk())
	w.fill(newRand(16), 60)
	w.settle()
	st := w.st
	for _, id := range []Identity{
		{Topic: [16]byte{1}, Partition: testIdentity.Partition},
		{Topic: testIdentity.Topic, Partition: testIdentity.Partition + 1},
	} {
		l, err := Open(w.disk, w.dir, id, st, w.opts)
		if err != nil {
			t.Fatal(err)
		}
		var damage *CorruptError
		if err := l.Health(); !errors.As(err, &damage) {
			t.Errorf("Health of a foreign log: %v", err)
		}
		var v View
		for _, m := range w.model {
			if err := l.View(&v, m.slice.Offset, 1<<20); !errors.As(err, &damage) {
				t.Fatalf("view of foreign bytes: %v", err)
			}
		}
		if _, _, err := l.Seek(0); !errors.As(err, &damage) {
			t.Errorf("seek in foreign bytes: %v", err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		// B41: a new topic in the same place starts empty and never shows old bytes.
		fresh := newWorldAt(t, w.disk, id)
		fresh.fill(newRand(17), 20)
		fresh.check()
		if id.Partition == testIdentity.Partition {
			fresh.settle()
			fresh.check()
			fresh.reopen()
			fresh.check()
		}
	}
}

func newWorldAt(t *testing.T, disk aio.Disk, id Identity) *world {
	w := newWorld(t, disk)
	w.id = id
	w.open(State{})
	return w
}

// B40: segment numbers beyond a million sort numerically and open.
func TestManySegmentNumbers(t *testing.T) {
	onDisks(t, func(t *testing.T, disk aio.Disk) {
		for _, first := range []uint32{999_998, 9_999_998, 1<<32 - 6} {
			w := newWorld(t, disk)
			w.dir = fmt.Sprintf("topics/many/%d", first)
			w.open(State{Segment: first})
			st := State{End: 4096, Next: 1, NextID: 1, Segment: first, SegmentBase: 4096, LastCRC: 1}
			if err := w.log.Reset(st); err != nil {
				t.Fatal(err)
			}
			w.begin, w.st = st, st
			for w.st.Segment != first+4 {
				w.append(1, 2000)
			}
			w.settle()
			w.check()
			w.reopen()
			w.check()
			if got := w.log.Segments(); len(got) != 5 || got[0].Number != first || got[4].Number != first+4 {
				t.Errorf("segments %v", got)
			}
		}
	})
	for name, want := range map[string]bool{
		"0000000001.seg": true, "1000000000.seg": true, "4294967295.seg": true, "4294967296.seg": false, "1.seg": false,
		"00000000001.seg": false, "000000001.seg": false, "+000000001.seg": false, "0000000001.idx": false,
		"0000000001.seg.cut": false,
	} {
		if _, ok := parseSegmentName(name); ok != want {
			t.Errorf("%s: %v", name, ok)
		}
	}
}

// The number of mappings is bounded: segments that nobody reads are unmapped, and mapped again on use.
func TestMappingsAreBounded(t *testing.T) {
	onDisks(t, func(t *testing.T, disk aio.Disk) {
		w := newWorld(t, disk)
		w.fill(newRand(18), 200)
		w.settle()
		mapped := func() (n int) {
			for _, s := range w.log.Segments() {
				if s.Mapped {
					n++
				}
			}
			return n
		}
		var held []*View
		for _, s := range w.log.Segments() {
			v := new(View)
			if err := w.log.View(v, s.Start, 1); err != nil {
				t.Fatal(err)
			}
			held = append(held, v)
		}
		if n := mapped(); n != len(held) || n <= w.opts.MaxMappedSegments {
			t.Fatalf("%d of %d pinned segments are mapped", n, len(held))
		}
		for _, v := range held {
			v.Release()
		}
		w.check()
		if n := mapped(); n > w.opts.MaxMappedSegments {
			t.Errorf("%d segments stay mapped", n)
		}
		w.log.Unmap()
		if n := mapped(); n != 0 {
			t.Errorf("%d segments are mapped after Unmap", n)
		}
		w.check()
	})
}

// Removal leaves nothing behind: no segment, no index, no trash.
func TestRemovedFilesAreGone(t *testing.T) {
	onDisks(t, func(t *testing.T, disk aio.Disk) {
		w := newWorld(t, disk)
		w.fill(newRand(19), 100)
		w.settle()
		w.truncate(0)
		for _, dir := range []string{w.dir, "trash"} {
			infos, err := disk.ReadDir(dir)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			for _, info := range infos {
				t.Errorf("%s/%s is left", dir, info.Name())
			}
		}
	})
}

// The trash may be emptied at a start while retention already puts files there. A reader that pinned a file and finds
// it nowhere gets the error of retention, not one of damage.
func TestTrashEmptiedUnderAReader(t *testing.T) {
	w := newWorld(t, memoryDisk())
	w.fill(newRand(6), 50)
	w.settle()
	w.reopen()
	f := w.log.segs[0]
	f.pin()
	defer f.release()
	if n, err := w.log.Trim(w.st.End); err != nil || n == 0 {
		t.Fatalf("%d bytes removed, %v", n, err)
	}
	if err := w.disk.RemoveAll(trashDir); err != nil {
		t.Fatal(err)
	}
	if _, err := f.mapped(); !errors.Is(err, ErrBelowStart) {
		t.Fatalf("got %v, want ErrBelowStart", err)
	}
}
