package clog

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
	"penstock/tests/support/formattest"
	"penstock/tests/support/underrace"
)

// TestFormatOfLogMark compares the table of the log mark in FORMAT.md with the code.
func TestFormatOfLogMark(t *testing.T) {
	formattest.Layout(t, formattest.Tables(t)["Log mark"], LogMarkBytes,
		offMarkMagic, offMarkVersion, offMarkFlags, offMarkReserved, offMarkStore, offMarkCounter, offMarkFile, offMarkSeq,
		offMarkUsed, offMarkZero, offMarkCRC)
}

// TestFormatOfJudgements compares the truth table about the log mark in FORMAT.md with the code, and demands exactly
// one row for every case.
func TestFormatOfJudgements(t *testing.T) {
	marks := map[markState]string{
		markNone: "none", markDamaged: "damaged", markForeign: "another store's", markValid: "valid",
	}
	names := map[judgement]string{
		judgedNew: "new", judgedUnmarked: "from before marks", judgedGood: "good", judgedForgotten: "forgotten",
	}
	rows := formattest.Tables(t)["What the log mark decides"]
	seen := map[judgement]bool{}
	for i := range int(markStates) * 8 {
		m, required, begun, reached := markState(i/8), i&1 != 0, i&2 != 0, i&4 != 0
		n := 0
		for k := range judgings {
			if judgings[k].holds(m, required, begun, reached) {
				n++
			}
		}
		if n != 1 {
			t.Fatalf("%s, required %v, begun %v, reached %v: %d rules hold", marks[m], required, begun, reached, n)
		}
		j := judge(m, required, begun, reached)
		seen[j] = true
		prose := ""
		for _, row := range rows {
			if strings.Contains(row[0], marks[m]) && says(row[1], required) && says(row[2], begun) && says(row[3], reached) {
				prose += row[4]
			}
		}
		if !strings.HasPrefix(prose, names[j]) {
			t.Errorf("%s, required %v, begun %v, reached %v: the code says %s, FORMAT.md %q",
				marks[m], required, begun, reached, names[j], prose)
		}
	}
	if len(seen) != int(judgements) {
		t.Errorf("only %d of %d judgements are possible", len(seen), judgements)
	}
}

// marked is small for a directory that must have a log mark.
func marked() Options {
	o := small(0)
	o.MarkRequired = true
	return o
}

// markOn returns what log.mark says.
func markOn(t *testing.T, d aio.Disk) (logMark, markState) {
	t.Helper()
	m, state, _, err := readLogMark(d, testStore)
	if err != nil {
		t.Fatal(err)
	}
	return m, state
}

// written is a disk with a log of several files, each with a checkpoint of two groups, and a mark.
func written(t *testing.T, arena *aio.Arena) (*faultaio.Disk, *model) {
	t.Helper()
	d, m := faultaio.New(faultaio.Options{Log: true}), crashModel()
	if err := CreateMark(d, testStore); err != nil {
		t.Fatal(err)
	}
	f := newLife(d, arena, m, 0)
	f.opts = marked()
	if err := f.run(20, true); err != nil {
		t.Fatal(err)
	}
	if mark, state := markOn(t, d); state != markValid || mark.File < 3 || mark.Seq == 0 || mark.Used != mark.File {
		t.Fatalf("state %d, %+v", state, mark)
	}
	return d, m
}

// judged opens the log on a disk, closes it and returns the report.
func judged(t *testing.T, d aio.Disk, arena *aio.Arena, o Options, m *model) (*Report, error) {
	t.Helper()
	r := &replayed{m: m}
	l, report, err := Open(d, arena, o, r)
	if l != nil {
		err = errors.Join(err, l.Close())
	}
	return report, err
}

// A log that lacks what its mark names has forgotten, by name. Nothing is changed, so that the same is found again, and
// that a file that comes back makes the log whole.
func TestForgotten(t *testing.T) {
	arena := testArena(t, 4*aio.BlockBytes, 3)
	remove := func(d *faultaio.Disk, names ...string) {
		for _, name := range names {
			if err := d.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name string
		harm func(d *faultaio.Disk, mark logMark)
		file func(mark logMark) string
		says string
	}{
		{
			"the newest file", func(d *faultaio.Disk, m logMark) { remove(d, fileName(m.File)) },
			func(m logMark) string { return fileName(m.File) }, ".clog is gone",
		},
		{"what the newest file held", func(d *faultaio.Disk, m logMark) {
			d.Corrupt(fileName(m.File), make([]byte, 8*aio.BlockBytes), 0)
		}, func(m logMark) string { return fileName(m.File) }, "does not hold the groups that it began with"},
		{"the end of its checkpoint", func(d *faultaio.Disk, m logMark) {
			d.Corrupt(fileName(m.File), make([]byte, 7*aio.BlockBytes), aio.BlockBytes)
		}, func(m logMark) string { return fileName(m.File) }, "does not hold the groups that it began with"},
		{"the folder", func(d *faultaio.Disk, _ logMark) {
			if err := d.RemoveAll(dirName); err != nil {
				t.Fatal(err)
			}
		}, func(logMark) string { return dirName }, "the folder clog is empty or gone"},
		{
			"the mark", func(d *faultaio.Disk, _ logMark) { remove(d, MarkName) },
			func(logMark) string { return MarkName }, "log.mark is gone",
		},
		{"both slots", func(d *faultaio.Disk, _ logMark) {
			d.Corrupt(MarkName, make([]byte, 2*aio.BlockBytes), 0)
		}, func(logMark) string { return MarkName }, "log.mark is damaged"},
		{"another's mark", func(d *faultaio.Disk, _ logMark) {
			if err := CreateMark(d, uuid.New()); err != nil {
				t.Fatal(err)
			}
		}, func(logMark) string { return MarkName }, "log.mark belongs to another store"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, m := written(t, arena)
			mark, _ := markOn(t, d)
			c.harm(d, mark)
			before := d.Ops()
			for range 2 {
				report, err := judged(t, d, arena, marked(), m)
				f := new(Forgotten)
				if !errors.As(err, &f) || !errors.Is(err, ErrForgotten) || report.Forgotten != f || f.File != c.file(mark) ||
					!strings.HasSuffix(f.Detail, c.says) {
					t.Fatalf("%v (%+v)", err, report.Forgotten)
				}
				if f.File != MarkName && (f.Wanted != mark.Seq || f.Reached >= f.Wanted) {
					t.Errorf("%+v, the mark says %+v", f, mark)
				}
			}
			for _, op := range changes(d, before) {
				t.Errorf("it was changed: %v", op)
			}
		})
	}
}

// What is left of a log that has lost its newest file may say that it needs a file which the newest one has given back.
// The log has forgotten, and names what it lacks: the newest file, and not that one.
func TestForgottenFileHadGivenBackAnother(t *testing.T) {
	arena := testArena(t, 4*aio.BlockBytes, 3)
	d := faultaio.New(faultaio.Options{})
	if err := CreateMark(d, testStore); err != nil {
		t.Fatal(err)
	}
	m := newModel()
	l := openOn(t, d, arena, marked(), m)
	for l.Current() < 3 {
		m.put(1)
		step(t, l, 3)
	}
	l.Release(2)
	m.put(1) // its group says that the first file is not needed
	step(t, l, 20)
	if l.Current() != 3 || l.headerOldest != 2 {
		t.Fatalf("the log is in file %d and needs those from %d on", l.Current(), l.headerOldest)
	}
	d = d.Kill(1)
	_ = d.Remove(fileName(1)) // as the preparer does, unless it has
	if err := d.Remove(fileName(3)); err != nil {
		t.Fatal(err)
	}
	o := marked()
	o.MayForget = true
	report, err := judged(t, d, arena, o, m)
	if err != nil || report.Forgotten == nil || report.Forgotten.File != fileName(3) {
		t.Errorf("%v: %+v", err, report.Forgotten)
	}
}

// changes counts the operations since a moment that are no flush.
func changes(d *faultaio.Disk, since int) (all []faultaio.Op) {
	for _, op := range d.Log()[min(since, len(d.Log())):] {
		if op.Kind != faultaio.KindSync {
			all = append(all, op)
		}
	}
	return all
}

// A log that may have forgotten goes on, and says so at each start until it has begun a file. Numbers of files are not
// used again, even if all files are gone.
func TestForgottenGoesOn(t *testing.T) {
	arena := testArena(t, 4*aio.BlockBytes, 3)
	d, m := written(t, arena)
	mark, _ := markOn(t, d)
	if err := d.RemoveAll(dirName); err != nil {
		t.Fatal(err)
	}
	o := marked()
	o.MayForget = true
	for range 2 {
		report, err := judged(t, d, arena, o, m)
		if err != nil || report.Forgotten == nil {
			t.Fatalf("%v, %+v", err, report)
		}
	}
	m = newModel()
	l, report, err := Open(d, arena, o, &replayed{m: m})
	if err != nil || report.Forgotten == nil || !l.Stats().Forgotten {
		t.Fatalf("%v, %+v", err, report)
	}
	l.SetSource(m)
	if err := l.Start(); err != nil {
		t.Fatal(err)
	}
	m.put(1)
	step(t, l, 3)
	if now, _ := markOn(t, d); m.acked != 1 || now.File != mark.Used+1 || now.Used != now.File || now.Seq != 1 {
		t.Errorf("%d acknowledged, the mark says %+v after %+v", m.acked, now, mark)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if report, err := judged(t, d, arena, marked(), m); err != nil || report.Forgotten != nil {
		t.Errorf("%v, %+v", err, report)
	}
}

// A log without a mark in a directory that may be from before marks is taken for whole and gets a mark. The mark is
// true at once.
func TestFromBeforeMarks(t *testing.T) {
	arena := testArena(t, 4*aio.BlockBytes, 3)
	for _, left := range []string{"none", "damaged"} {
		d, m := written(t, arena)
		if left == "none" {
			if err := d.Remove(MarkName); err != nil {
				t.Fatal(err)
			}
		} else {
			d.Corrupt(MarkName, make([]byte, 2*aio.BlockBytes), 0)
		}
		report, err := judged(t, d, arena, small(0), m)
		if err != nil || report.Forgotten != nil {
			t.Fatalf("%s: %v, %+v", left, err, report)
		}
		mark, state := markOn(t, d)
		if state != markValid || mark.File != report.NewestFile || mark.Seq != report.LastSeq {
			t.Errorf("%s: state %d, %+v after %+v", left, state, mark, report)
		}
		if _, err := judged(t, d, arena, marked(), m); err != nil {
			t.Errorf("%s: %v", left, err)
		}
		if err := d.Remove(fileName(mark.File)); err != nil {
			t.Fatal(err)
		}
		if _, err := judged(t, d, arena, small(0), m); !errors.Is(err, ErrForgotten) {
			t.Errorf("%s, without its newest file: %v", left, err)
		}
	}
}

// If one slot is damaged, the other one counts. It is the mark of the file before, if it was the newer one.
func TestDamagedSlot(t *testing.T) {
	arena := testArena(t, 4*aio.BlockBytes, 3)
	for slot := range int64(markSlots) {
		d, m := written(t, arena)
		was, _ := markOn(t, d)
		d.Corrupt(MarkName, []byte{0xff}, slot*aio.BlockBytes+offMarkSeq)
		mark, state := markOn(t, d)
		if state != markValid || mark != was && mark.Counter != was.Counter-1 || mark.Seq > was.Seq {
			t.Fatalf("slot %d: state %d, %+v after %+v", slot, state, mark, was)
		}
		if _, err := judged(t, d, arena, marked(), m); err != nil {
			t.Errorf("slot %d: %v", slot, err)
		}
	}
}

// A version that does not know log.mark goes on behind it; the mark is a lower bound then.
func TestMarkOfEarlier(t *testing.T) {
	arena := testArena(t, 4*aio.BlockBytes, 3)
	d, m := written(t, arena)
	was, err := d.ReadFile(MarkName, maxMarkFileBytes)
	if err != nil {
		t.Fatal(err)
	}
	f := newLife(d, arena, m, 0)
	if err := f.run(40, true); err != nil {
		t.Fatal(err)
	}
	if err := d.WriteFile(MarkName, was); err != nil {
		t.Fatal(err)
	}
	if _, err := judged(t, d, arena, marked(), m); err != nil {
		t.Error(err)
	}
}

// Every record that is acknowledged lies in a file that the mark names durably.
func TestMarkComesFirst(t *testing.T) {
	arena := testArena(t, 4*aio.BlockBytes, 3)
	d, m := faultaio.New(faultaio.Options{}), newModel()
	if err := CreateMark(d, testStore); err != nil {
		t.Fatal(err)
	}
	l := openOn(t, d, arena, marked(), m)
	files := map[uint64]bool{}
	for range 60 {
		acked := m.acked
		m.put(3)
		step(t, l, 1)
		if m.acked > acked {
			mark, state := markOn(t, d.Crash(1))
			if state != markValid || mark.File != l.Current() {
				t.Fatalf("records of file %d are acknowledged, the mark says %+v", l.Current(), mark)
			}
			files[mark.File] = true
		}
		l.Release(m.release())
	}
	if len(files) < 3 {
		t.Errorf("only %d files", len(files))
	}
}

// A mark that cannot be written fails the log: nothing of that file is acknowledged.
func TestFailedMark(t *testing.T) {
	arena := testArena(t, 4*aio.BlockBytes, 3)
	d, m := faultaio.New(faultaio.Options{}), newModel()
	if err := CreateMark(d, testStore); err != nil {
		t.Fatal(err)
	}
	d.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Name: MarkName, Err: syscall.EIO})
	f := newLife(d, arena, m, 0)
	f.opts = marked()
	err := f.run(20, true)
	if !errors.Is(err, ErrFailed) || !errors.Is(err, syscall.EIO) || m.acked != 0 || m.failed != 1 {
		t.Errorf("%v; %d acknowledged, failed %d times", err, m.acked, m.failed)
	}
}

// TestMarkAtEveryCrash cuts the power in every operation of a life that begins with a new mark and passes through
// several files. No crash leaves a log that counts as one that forgot.
func TestMarkAtEveryCrash(t *testing.T) {
	arena := testArena(t, 4*aio.BlockBytes, 3)
	run := func(d *faultaio.Disk, m *model) error {
		if err := CreateMark(d, testStore); err != nil {
			return err
		}
		f := newLife(d, arena, m, 0)
		f.opts = marked()
		return f.run(40, true)
	}
	whole := faultaio.New(faultaio.Options{})
	if err := run(whole, crashModel()); err != nil {
		t.Fatal(err)
	}
	ops := whole.Ops()
	if mark, _ := markOn(t, whole); mark.File < 4 {
		t.Fatalf("the life has only %d files", mark.File)
	}
	states := 0
	for op := 0; op < ops; op += underrace.Stride {
		d, m := faultaio.New(faultaio.Options{}), crashModel()
		d.CrashAt(op)
		if err := run(d, m); !errors.Is(err, faultaio.ErrCrashed) {
			t.Fatalf("op %d: %v", op, err)
		}
		for crash := range uint64(4) {
			left := d.Crash(crash)
			if crash == 3 {
				left = d.Kill(crash)
			}
			name := fmt.Sprintf("op %d, crash %d", op, crash)
			if _, state := markOn(t, left); state == markNone && m.added == 0 {
				continue // the directory is not this store's yet: see CreateMark
			}
			for range 2 {
				r := &replayed{m: m}
				l, report, err := Open(left, arena, marked(), r)
				if err == nil {
					err = errors.Join(r.check(), l.Close())
				}
				if err != nil || report.Forgotten != nil {
					t.Fatalf("%s: %v (%+v)", name, err, report)
				}
			}
			states++
		}
	}
	t.Logf("%d crash states", states)
}

// A mark that is made of what the log holds is reached by the log, whatever the old one said, and keeps the numbers of
// files that were used.
func TestRenewMark(t *testing.T) {
	arena := testArena(t, 4*aio.BlockBytes, 3)
	d, m := written(t, arena)
	was, _ := markOn(t, d)
	if err := d.Remove(fileName(was.File)); err != nil {
		t.Fatal(err)
	}
	if err := RenewMark(d, arena, testStore); err != nil {
		t.Fatal(err)
	}
	mark, state := markOn(t, d)
	if state != markValid || mark.File == 0 || mark.File >= was.File || mark.Seq >= was.Seq || mark.Used != was.Used {
		t.Errorf("state %d, %+v after %+v", state, mark, was)
	}
	if _, err := judged(t, d, arena, marked(), m); err != nil {
		t.Error(err)
	}
	if err := d.RemoveAll(dirName); err != nil {
		t.Fatal(err)
	}
	if _, err := judged(t, d, arena, marked(), m); !errors.Is(err, ErrForgotten) {
		t.Errorf("without all files: %v", err)
	}
}

// The mark of a disk with larger blocks has larger slots.
func TestMarkOfAnotherBlock(t *testing.T) {
	m := logMark{Store: testStore, Counter: 7, File: 3, Seq: 9, Used: 4}
	for _, stride := range []int64{512, 4096, 1 << maxBlockShift} {
		got, state := newestSlot(m.content(stride), stride, testStore)
		if state != markValid || got != m {
			t.Errorf("slots of %d: state %d, %+v", stride, state, got)
		}
	}
}

// A mark is written without memory from the heap.
func TestMarkAllocatesNothing(t *testing.T) {
	d := openDisk(t, t.TempDir(), aio.ModePwrite)
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := CreateMark(d, testStore); err != nil {
		t.Fatal(err)
	}
	r := &recovery{disk: d, store: testStore, block: int64(d.Info().BlockBytes)}
	var err error
	if r.mark, r.markState, r.stride, err = readLogMark(d, testStore); err != nil {
		t.Fatal(err)
	}
	var m marker
	if err := m.open(r, new(Report)); err != nil {
		t.Fatal(err)
	}
	file := uint64(0)
	n := testing.AllocsPerRun(20, func() {
		file++
		if err := m.note(file, 3*file, false); err != nil {
			t.Fatal(err)
		}
	})
	if err := m.close(); err != nil || n != 0 {
		t.Errorf("%v allocations, %v", n, err)
	}
	if mark, state := markOn(t, d); state != markValid || mark.File != file || mark.Seq != 3*file || mark.Used != file {
		t.Errorf("state %d, %+v after file %d", state, mark, file)
	}
}
