package aside

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock/segment"
	"penstock/tests/support/faultaio"
)

// A cut keeps every batch that it takes, wherever it lies, and says what they are.
func TestKeep(t *testing.T) {
	for name, settle := range map[string]bool{"in memory": false, "in segments": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, DefaultLimits)
			w.append(30, 700, 1)
			w.append(20, 700, 2)
			if settle {
				w.settle()
			}
			e := w.cut(13)
			w.check(e, 13, 50)
			if e.From != 13 || e.Until != 50 || e.KeptFrom != 13 || e.LastPosition != 49 || e.Messages != 28 ||
				e.Batches != 37 || e.Lost() != 0 || len(e.Holes) != 0 || e.LastTime.Sub(e.FirstTime) != 36 {
				t.Errorf("it says %+v", e.Cut)
			}
			if want := []EpochStart{{1, 13}, {2, 30}}; !slices.Equal(e.Epochs, want) {
				t.Errorf("epochs %v, want %v", e.Epochs, want)
			}
			w.begin(DefaultLimits)
			if s := w.keep.Stats(); s != (Stats{Cuts: 1, Messages: 28, Bytes: e.Bytes}) {
				t.Errorf("after a restart it has %+v", s)
			}
			if got := w.list()[0]; got.Name != e.Name || got.LastCRC != e.LastCRC || !got.Time.Equal(e.Time) {
				t.Errorf("after a restart it has %+v, and before %+v", got, e)
			}
		})
	}
}

// Small cuts are frequent: each waits for the disk five times. Two are for the names of directories, two for the files,
// one for the names of the files.
func TestKeepIsCheap(t *testing.T) {
	w := newWorld(t, DefaultLimits)
	w.append(10, 100, 1)
	w.cut(6)
	w.append(5, 100, 2)
	before := len(w.disk.Log())
	w.only(7)
	var flushes []string
	for _, op := range w.disk.Log()[before:] {
		if op.Kind == faultaio.KindSync || op.Kind == faultaio.KindSyncDir || op.Kind == faultaio.KindWriteSync {
			flushes = append(flushes, fmt.Sprint(op.Kind, " ", op.Name))
		}
	}
	if len(flushes) > 5 || len(flushes) == 0 {
		t.Errorf("%d flushes: %q", len(flushes), flushes)
	}
}

// Cuts of one partition within a second are kept beside each other.
func TestKeepTwiceInASecond(t *testing.T) {
	w := newWorld(t, DefaultLimits)
	w.append(10, 100, 1)
	a := w.cut(6)
	w.append(5, 100, 2)
	b := w.cut(7)
	w.check(a, 6, 10)
	w.check(b, 7, 11)
}

// A directory that the list does not have is not touched.
func TestKeepBesideUnlisted(t *testing.T) {
	w := newWorld(t, DefaultLimits)
	w.append(10, 100, 1)
	a := w.cut(6)
	w.keep.list, w.keep.bytes = nil, 0
	w.append(5, 100, 2)
	b := w.cut(7)
	w.check(a, 6, 10)
	w.check(b, 7, 11)
}

// Damage in what is cut does not stop the cut: what can be read is kept, and the rest is named.
func TestKeepAroundDamage(t *testing.T) {
	w := newWorld(t, DefaultLimits)
	w.append(60, 700, 1)
	w.settle()
	seg := w.log.Segments()[2]
	at := w.states[seg.FirstPosition+3]
	w.log.Unmap()
	if !w.disk.Corrupt(seg.Path, []byte("rotten"), segment.SegmentHeaderBytes+int64(at.End-seg.Start)+100) {
		t.Fatal("nothing was damaged")
	}
	e := w.only(5)
	if len(e.Holes) != 1 || e.Holes[0].From != at.Next || e.Holes[0].Until != at.Next+1 || e.Holes[0].Why == "" {
		t.Fatalf("holes %+v, position %d is damaged", e.Holes, at.Next)
	}
	all := slices.Concat(want(5, at.Next), want(e.Holes[0].Until, 60))
	if got := w.messages(e.Name); !slices.Equal(got, all) {
		t.Errorf("it has %q, want %q", got, all)
	}
	if e.Lost() != e.Holes[0].Messages {
		t.Errorf("%d messages are not kept, the hole has %d", e.Lost(), e.Holes[0].Messages)
	}
}

// The file of a segment was removed under the node: the other segments are kept.
func TestKeepWithoutAFile(t *testing.T) {
	w := newWorld(t, DefaultLimits)
	w.append(60, 700, 1)
	w.settle()
	segs := w.log.Segments()
	w.log.Unmap()
	if err := w.disk.Remove(segs[2].Path); err != nil {
		t.Fatal(err)
	}
	e := w.only(5)
	from, until := segs[2].FirstPosition, segs[3].FirstPosition
	if len(e.Holes) != 1 || e.Holes[0].From != from || e.Holes[0].Until != until {
		t.Fatalf("holes %+v, [%d, %d) is missing", e.Holes, from, until)
	}
	if got := w.messages(e.Name); !slices.Equal(got, slices.Concat(want(5, from), want(until, 60))) {
		t.Errorf("it has %q", got)
	}
}

// If the disk fails or is full, nothing is kept, and nothing is left. A later attempt keeps all.
func TestKeepFails(t *testing.T) {
	for _, kind := range []faultaio.Kind{
		faultaio.KindCreate, faultaio.KindWrite, faultaio.KindSync, faultaio.KindRename, faultaio.KindSyncDir,
	} {
		for _, why := range []error{syscall.ENOSPC, syscall.EIO} {
			t.Run(fmt.Sprint(kind, why), func(t *testing.T) {
				w := newWorld(t, DefaultLimits)
				w.append(10, 100, 1)
				w.disk.Inject(faultaio.Rule{Kind: kind, Name: Dir + "/*/*", Err: why, Count: 1})
				w.disk.Inject(faultaio.Rule{Kind: kind, Name: Dir + "/*", Err: why, Count: 1})
				about, from, until := w.about(5)
				if e, err := w.keep.Keep(w.log, about, from, until); !errors.Is(err, why) || e.Name != "" {
					t.Fatalf("it says %v, and names %q", err, e.Name)
				}
				w.disk.ClearRules()
				if s := w.keep.Stats(); s != (Stats{}) || w.keep.bytes != 0 || len(w.names()) != 0 {
					t.Errorf("it has %+v, counts %d bytes, and left %q", s, w.keep.bytes, w.names())
				}
				w.check(w.cut(5), 5, 10)
			})
		}
	}
}

// The power is cut at each operation while a cut is being kept. Afterwards there is all of it or nothing, and the log
// has everything; once Keep has returned, all of it is there. The next attempt leaves one directory with all of it.
func TestKeepPowerCut(t *testing.T) {
	done := false
	for op := 0; !done; op++ {
		w := newWorld(t, DefaultLimits)
		w.append(20, 700, 1) // in memory: the log is read after the power cut, too
		w.disk.CrashAt(w.disk.Ops() + op)
		about, from, until := w.about(5)
		_, err := w.keep.Keep(w.log, about, from, until)
		done = err == nil && !w.disk.Crashed()
		if op > 100 {
			t.Fatal("it never ends")
		}
		for seed := range uint64(3) {
			left := w.disk.Crash(seed)
			after := &world{t: t, disk: left, id: w.id, clock: w.clock.Add(time.Minute)}
			after.begin(DefaultLimits)
			all := after.list()
			if len(all) > 1 || err == nil && len(all) != 1 || len(after.names()) != len(all) {
				t.Fatalf("operation %d: the cut was kept: %v; %d cuts in %q", op, err, len(all), after.names())
			}
			for _, e := range all {
				after.check(e, 5, 20)
			}
			e, err := after.keep.Keep(w.log, about, from, until)
			if err != nil {
				t.Fatal(err)
			}
			after.check(e, 5, 20)
			if got := after.names(); len(got) != 1 {
				t.Fatalf("operation %d: after the next attempt there are %q", op, got)
			}
		}
	}
}

// What a cut that did not take place has kept gives way to the next cut, also if that one takes less: the log has the
// rest. If the next cut could not keep all of it, both stay.
func TestKeepAgain(t *testing.T) {
	w := newWorld(t, DefaultLimits)
	w.append(20, 700, 1)
	w.only(5)
	b := w.only(9)
	if got := w.names(); len(got) != 1 || got[0] != b.Name {
		t.Fatalf("there are %q", got)
	}
	c := w.cut(3)
	if got := w.names(); len(got) != 1 || got[0] != c.Name {
		t.Fatalf("there are %q", got)
	}
	w.check(c, 3, 20)

	w = newWorld(t, DefaultLimits)
	w.append(60, 700, 1)
	w.settle()
	a := w.only(5)
	seg := w.log.Segments()[2]
	w.log.Unmap()
	w.disk.Corrupt(seg.Path, []byte("rotten"), segment.SegmentHeaderBytes+100)
	b = w.cut(5)
	if got := w.names(); len(got) != 2 || len(b.Holes) == 0 {
		t.Fatalf("there are %q", got)
	}
	w.check(a, 5, 60)
}

// A cut above the bound keeps its newest part. Older cuts make room, but not those that are young.
func TestBoundBytes(t *testing.T) {
	limits := DefaultLimits
	limits.Bytes = 40 << 10
	w := newWorld(t, limits)
	w.append(100, 700, 1)
	w.settle()
	a := w.cut(80) // 16 KiB
	w.append(20, 700, 2)
	w.clock = w.clock.Add(time.Minute)
	b := w.cut(70) // more than there is room for
	w.check(a, 80, 100)
	if b.KeptFrom <= 70 || b.KeptFrom >= 100 || b.NoRoomBytes == 0 || b.Lost() <= 0 {
		t.Fatalf("it says %+v", b.Cut)
	}
	w.check(b, b.KeptFrom, 100)
	if w.keep.bytes > limits.Bytes {
		t.Errorf("it counts %d bytes", w.keep.bytes)
	}
	w.append(30, 700, 3)
	if c := w.cut(90); c.Name != "" || c.Lost() != int64(len(want(90, 100))) {
		t.Errorf("without room it says %+v", c.Cut)
	}
	w.append(30, 700, 3)
	w.clock = w.clock.Add(2 * time.Hour)
	d := w.cut(90)
	w.check(d, 90, 120)
	if got := w.names(); !slices.Contains(got, d.Name) || slices.Contains(got, a.Name) {
		t.Errorf("there are %q: the oldest was %s, the newest %s", got, a.Name, d.Name)
	}
	if !strings.Contains(w.said.String(), "before its time") {
		t.Errorf("it says %s", &w.said)
	}
}

// A partition has a bounded number of cuts. The oldest go.
func TestBoundPartition(t *testing.T) {
	limits := DefaultLimits
	limits.PerPartition = 3
	w := newWorld(t, limits)
	w.append(10, 100, 1)
	var all []string
	for i := range 5 {
		w.append(4, 100, segment.Epoch(i+2))
		w.clock = w.clock.Add(time.Second)
		all = append(all, w.cut(10).Name)
	}
	if got := w.names(); !slices.Equal(got, all[2:]) {
		t.Errorf("there are %q, want %q", got, all[2:])
	}
}

// Sweep removes what is too old, and what the log has again.
func TestSweep(t *testing.T) {
	w := newWorld(t, DefaultLimits)
	w.append(10, 100, 1)
	a := w.cut(6)
	w.append(6, 100, 2)
	b := w.cut(6)
	states := map[segment.Position]State{a.LastPosition: Unknown, b.LastPosition: Unknown}
	asked := 0
	sweep := func() {
		w.keep.Sweep(func(id segment.Identity, pos segment.Position, crc uint32) State {
			if asked++; id != w.id || pos == a.LastPosition && crc != a.LastCRC {
				t.Errorf("asked for %v, %d, %08x", id, pos, crc)
			}
			return states[pos]
		})
	}
	if sweep(); len(w.names()) != 2 {
		t.Fatalf("there are %q", w.names())
	}
	states[a.LastPosition], states[b.LastPosition] = Same, Other
	if sweep(); !slices.Equal(w.names(), []string{b.Name}) {
		t.Fatalf("there are %q, want %q", w.names(), b.Name)
	}
	asked = 0
	if sweep(); asked != 0 {
		t.Error("it asks again")
	}
	w.clock = w.clock.Add(7*24*time.Hour - time.Minute)
	if sweep(); len(w.names()) != 1 {
		t.Fatal("it is removed too early")
	}
	w.clock = w.clock.Add(2 * time.Minute)
	if sweep(); len(w.names()) != 0 || w.keep.bytes != 0 {
		t.Errorf("there are %q, and it counts %d bytes", w.names(), w.keep.bytes)
	}
}

// A process that starts with a wrong clock does not remove at once what is the last copy of something.
func TestSweepWithAWrongClock(t *testing.T) {
	w := newWorld(t, DefaultLimits)
	w.append(10, 100, 1)
	w.cut(6)
	none := func(segment.Identity, segment.Position, uint32) State { return Unknown }
	for name, off := range map[string]time.Duration{"ahead": 9000 * time.Hour, "behind": -9000 * time.Hour} {
		w.clock = w.clock.Add(off)
		w.begin(DefaultLimits)
		w.clock = w.clock.Add(23 * time.Hour)
		if w.keep.Sweep(none); len(w.names()) != 1 {
			t.Fatalf("a clock that is %s removes it", name)
		}
		w.clock = w.clock.Add(-off)
	}
	w.clock = w.clock.Add(8 * 24 * time.Hour)
	w.begin(DefaultLimits)
	w.clock = w.clock.Add(25 * time.Hour)
	if w.keep.Sweep(none); len(w.names()) != 0 {
		t.Error("it stays for ever")
	}
}

// On a full disk the oldest cut goes, but no young one.
func TestMakeRoom(t *testing.T) {
	w := newWorld(t, DefaultLimits)
	w.append(10, 100, 1)
	w.cut(6)
	w.append(6, 100, 2)
	w.clock = w.clock.Add(59 * time.Minute)
	b := w.cut(6)
	if w.keep.MakeRoom(); len(w.names()) != 2 {
		t.Fatal("a young one is removed")
	}
	w.clock = w.clock.Add(2 * time.Minute)
	w.keep.MakeRoom()
	if w.keep.MakeRoom(); !slices.Equal(w.names(), []string{b.Name}) {
		t.Fatalf("there are %q, want %q", w.names(), b.Name)
	}
}

// What is no cut is left alone, and what cannot be read is listed.
func TestListOdd(t *testing.T) {
	w := newWorld(t, DefaultLimits)
	w.append(10, 100, 1)
	e := w.cut(6)
	odd := nameOf(w.id, e.Time.Unix()+100)
	for _, d := range []string{Dir + "/segments-" + e.Name, Dir + "/" + odd} {
		if err := w.disk.MkdirAll(d); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.disk.WriteFile(Dir+"/"+odd+"/"+CutFile, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	w.begin(DefaultLimits)
	if got := w.names(); len(got) != 3 {
		t.Fatalf("there are %q", got)
	}
	if all := w.list(); len(all) != 3 || all[0].Name != e.Name || all[1].Err != errOnlySegments || all[2].Err == nil {
		t.Fatalf("it lists %+v", all)
	}
	if _, err := Find(w.disk, "../topics"); err == nil {
		t.Error("another directory is read")
	}
}
