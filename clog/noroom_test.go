package clog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"
	"testing"
	"time"

	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
	"penstock/tests/support/patience"
)

// Nothing is written again while a write is on its way, and nothing before it is due.
func TestStepForRoom(t *testing.T) {
	for _, c := range []struct {
		underway, due bool
		want          roomStep
	}{
		{true, true, roomCollect},
		{true, false, roomCollect},
		{false, true, roomAgain},
		{false, false, roomSleep},
	} {
		if got := stepForRoom(c.underway, c.due); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
	for _, c := range []struct {
		err  error
		want outcome
	}{
		{nil, writtenWhole},
		{fmt.Errorf("a write: %w", syscall.ENOSPC), writtenNoRoom},
		{fmt.Errorf("a write: %w", syscall.EDQUOT), writtenNoRoom},
		{syscall.EIO, writtenFailed},
		{io.ErrShortWrite, writtenFailed}, // the kernel did not say why
		{syscall.EFBIG, writtenFailed},    // waiting does not help
	} {
		if got := judgeWrite(c.err); got != c.want {
			t.Errorf("%v: %d", c.err, got)
		}
	}
}

// TestNoRoom lets each durable write of a run find no room in turn, for one try or several, with nothing or a part of
// it written. Nothing fails, and in the end everything is durable.
func TestNoRoom(t *testing.T) {
	arena := testArena(t, 4*aio.BlockBytes, 3)
	for _, name := range []string{"clog/*", MarkName} {
		stalls := uint64(0)
		for n := range 40 {
			for _, short := range []int{0, 512, aio.BlockBytes} {
				d := faultaio.New(faultaio.Options{Seed: uint64(n)})
				if err := CreateMark(d, testStore); err != nil {
					t.Fatal(err)
				}
				d.Inject(faultaio.Rule{
					Kind: faultaio.KindWriteSync, Name: name, After: n, Count: 1 + n%3, Err: syscall.ENOSPC, ShortBytes: short,
				})
				m := crashModel()
				f := newLife(d, arena, m, uint64(n))
				f.opts.MarkRequired = true
				if err := f.run(60, true); err != nil || m.failed > 0 {
					t.Fatalf("%s, write %d: %v; failed %d times", name, n, err, m.failed)
				}
				stalls += f.stats.StallsRoom
				r, report, err := recovered(d.Crash(uint64(n)), arena, m)
				if err == nil {
					err = r.check()
				}
				if err != nil || report.Forgotten != nil || r.next != m.added {
					t.Fatalf("%s, write %d: %v; %d records of %d: %+v", name, n, err, r.next, m.added, report)
				}
				if mark, _ := markOn(t, d.Crash(uint64(n))); mark.File != report.NewestFile {
					t.Fatalf("%s, write %d: log.mark names file %d, the log has begun %d", name, n, mark.File, report.NewestFile)
				}
			}
		}
		if stalls == 0 {
			t.Errorf("%s: no write found no room", name)
		}
	}
}

// While there is no room, nothing is reported, whatever of it is on the disk, and each crash leaves what was
// acknowledged. Then the groups are written again where they were, the first one first.
func TestNoRoomInFlight(t *testing.T) {
	arena := testArena(t, 4*aio.BlockBytes, 3)
	for which := range 2 { // the first of two groups finds no room, or the second
		for seed := range uint64(20) {
			d := faultaio.New(faultaio.Options{Seed: seed, Log: true})
			m := newModel()
			l := openOn(t, d, arena, small(2), m)
			step(t, l, 5)
			m.put(1)
			for m.acked < 1 {
				step(t, l, 1)
			}
			d.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, After: which, Err: syscall.ENOSPC, ShortBytes: 512})
			m.put(1)
			l.mu.Lock()
			for range 2 { // no completion is collected in between
				if more, err := l.submitNext(); !more || err != nil {
					t.Fatal(more, err)
				}
				m.put(1)
			}
			l.mu.Unlock()
			d.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Count: -1, Err: syscall.ENOSPC, ShortBytes: 512})
			for !l.NoRoom() || l.queue.InFlight() > 0 {
				step(t, l, 1)
			}
			was := m.acked
			ops := d.Ops()
			step(t, l, 5)
			for _, op := range d.Log()[ops:] {
				if first := l.inFlight[0]; op.Offset != first.fileEnd-int64(len(first.data)) || op.Bytes != len(first.data) {
					t.Fatalf("which %d, seed %d: %+v, the first group without room ends at %d", which, seed, op, first.fileEnd)
				}
			}
			if m.acked != was || d.Ops() == ops || which == 0 && was != 1 {
				t.Fatalf("which %d, seed %d: %d are reported without room, %d before", which, seed, m.acked, was)
			}
			for crash := range uint64(5) {
				for _, after := range []*faultaio.Disk{d.Crash(crash), d.Kill(crash)} {
					r, _, err := recovered(after, arena, m)
					if err == nil {
						err = r.check()
					}
					if err != nil {
						t.Fatalf("which %d, seed %d: %v", which, seed, err)
					}
				}
			}
			d.ClearRules()
			var want []int64 // each group that was not reported is written again, also one whose write succeeded
			for _, g := range l.inFlight {
				want = append(want, g.fileEnd-int64(len(g.data)))
			}
			m.put(3)
			ops = d.Ops()
			for m.acked < m.added || m.waiting > 0 {
				step(t, l, 1)
			}
			for i, at := range want {
				if op := d.Log()[ops+i]; op.Offset != at {
					t.Fatalf("which %d, seed %d: write %d goes to %d, want %d", which, seed, i, op.Offset, at)
				}
			}
			r, _, err := recovered(d.Crash(seed), arena, m)
			if err != nil || r.next != m.added || l.NoRoom() || m.failed > 0 {
				t.Fatalf("which %d, seed %d: %v; %d records of %d; waits: %v", which, seed, err, r.next, m.added, l.NoRoom())
			}
			closeLog(t, l)
		}
	}
}

// A log with goroutines of its own goes on by itself when there is room, though nobody wakes it. Meanwhile no caller
// does its work.
func TestNoRoomEndsByItself(t *testing.T) {
	for name, put := range map[string]func(l *Log){
		"by the log": (*Log).Wake,
		"on the spot": func(l *Log) {
			if !l.StepOnSpot() {
				l.Wake()
			}
		},
	} {
		d, m, l, ran := spotLog(t)
		d.SetNoRoom(true)
		m.put(1)
		put(l)
		soon(t, name+": the log waits for room", l.NoRoom)
		m.put(1)
		if l.StepOnSpot() || m.gathered() != 2 {
			t.Errorf("%s: a group was begun without room", name)
		}
		if n := m.durable(); n != 1 {
			t.Errorf("%s: %d records are durable, want 1", name, n)
		}
		ops := d.Ops()
		soon(t, name+": it tries again, and again", func() bool { return d.Ops() >= ops+2 })
		d.SetNoRoom(false)
		soon(t, name+": the log goes on", func() bool { return m.durable() == 3 })
		l.Stop()
		if err := <-ran; err != nil || l.NoRoom() || m.failed > 0 {
			t.Errorf("%s: %v, waits: %v, failed %d times", name, err, l.NoRoom(), m.failed)
		}
		closeLog(t, l)
	}
}

// A caller does not do the work of a log either that waits to begin a file.
func TestNoRoomForACheckpoint(t *testing.T) {
	d, m, l, ran := spotLog(t)
	second := fileName(l.Current() + 1)
	d.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Name: second, Count: -1, Err: syscall.ENOSPC, ShortBytes: 512})
	for n := uint64(2); !l.NoRoom(); n++ {
		m.put(1)
		l.Wake()
		soon(t, "the record is durable, or has no room", func() bool { return m.durable() == n || l.NoRoom() })
	}
	was, durable := m.gathered(), m.durable()
	m.put(1)
	soon(t, "the log sleeps", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.asleep
	})
	if l.StepOnSpot() || m.gathered() != was || m.durable() != durable {
		t.Errorf("%d records were gathered, %d before; %d durable, %d before", m.gathered(), was, m.durable(), durable)
	}
	d.ClearRules()
	soon(t, "the log goes on", func() bool { return !l.NoRoom() && m.durable() > was })
	l.Stop()
	if err := <-ran; err != nil || m.failed > 0 {
		t.Errorf("%v, failed %d times", err, m.failed)
	}
	closeLog(t, l)
	if r, _, err := recovered(d.Crash(1), l.arena, m); err != nil || r.next != m.added {
		t.Errorf("%v, %d records of %d", err, r.next, m.added)
	}
}

// Stop waits for no room. The source learns that records which are in groups were not stored; a mark is nobody's.
func TestStopWithoutRoom(t *testing.T) {
	for _, records := range []bool{true, false} {
		d, m, l, ran := spotLog(t)
		d.SetNoRoom(true)
		if records {
			m.put(1)
			l.Wake()
			soon(t, "the log waits for room", l.NoRoom)
		}
		l.Stop()
		select {
		case err := <-ran:
			if records != (errors.Is(err, ErrFailed) && errors.Is(err, syscall.ENOSPC)) || records != (m.failed == 1) {
				t.Errorf("records %v: %v, failed %d times", records, err, m.failed)
			}
		case <-time.After(patience.Or(time.Minute)):
			t.Fatal("a log that is to stop waits for room")
		}
		closeLog(t, l)
		r, _, err := recovered(d.Crash(1), l.arena, m)
		if err != nil || r.next < 1 {
			t.Errorf("records %v: %v, %d records", records, err, r.next)
		}
	}
}

// However often the write of a mark finds no room, the mark before it stays whole.
func TestMarkWithoutRoom(t *testing.T) {
	d := faultaio.New(faultaio.Options{})
	if err := CreateMark(d, testStore); err != nil {
		t.Fatal(err)
	}
	r := &recovery{disk: d, store: testStore, block: aio.BlockBytes}
	var err error
	if r.mark, r.markState, r.stride, err = readLogMark(d, testStore); err != nil {
		t.Fatal(err)
	}
	var m marker
	if err := m.open(r, new(Report)); err != nil {
		t.Fatal(err)
	}
	defer m.close()
	if err := m.note(1, 3, false); err != nil {
		t.Fatal(err)
	}
	d.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Count: 3, Err: syscall.ENOSPC, ShortBytes: 48})
	for range 3 {
		if err := m.note(2, 5, true); !aio.NoRoom(err) {
			t.Fatal(err)
		}
		if mark, state := markOn(t, d.Kill(1)); state != markValid || mark.File != 1 || mark.Seq != 3 {
			t.Fatalf("state %d, %+v", state, mark)
		}
	}
	if err := m.note(2, 5, true); err != nil {
		t.Fatal(err)
	}
	if mark, state := markOn(t, d.Kill(1)); state != markValid || mark.File != 2 || !mark.Noted {
		t.Fatalf("state %d, %+v", state, mark)
	}
}

// A log that waits for the room of a mark alone makes no progress meanwhile. If it said that it does, its owner would
// step it for ever, and it would log with each try that it goes on, and that it waits.
func TestNotesWithoutRoom(t *testing.T) {
	arena := testArena(t, 4*aio.BlockBytes, 3)
	d := faultaio.New(faultaio.Options{})
	if err := CreateMark(d, testStore); err != nil {
		t.Fatal(err)
	}
	m := newModel()
	o := small(2)
	o.MarkRequired = true
	l := openOn(t, d, arena, o, m)
	m.put(1)
	for m.acked < 1 {
		step(t, l, 1)
	}
	d.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Name: MarkName, Count: -1, Err: syscall.ENOSPC})
	l.NoteStarts()
	step(t, l, 1)
	for range 10 {
		if progress, err := l.Step(false); progress || err != nil || !l.NoRoom() {
			t.Fatalf("progress %v, %v; it waits: %v", progress, err, l.NoRoom())
		}
	}
	d.ClearRules()
	step(t, l, 3)
	if mark, _ := markOn(t, d.Kill(1)); !mark.Noted || l.NoRoom() {
		t.Errorf("there is room: %+v, it waits: %v", mark, l.NoRoom())
	}
	closeLog(t, l)
}

// A shortage of descriptors or memory while a file is prepared is no failure either, at whatever step: the log goes on,
// and every crash leaves a log that recovery can read.
func TestShortageInPreparation(t *testing.T) {
	arena := testArena(t, 4*aio.BlockBytes, 3)
	for _, rule := range []faultaio.Rule{
		{Kind: faultaio.KindSyncDir, Name: dirName, Err: syscall.EMFILE},
		{Kind: faultaio.KindSyncDir, Name: spareName, Err: syscall.ENFILE},
		{Kind: faultaio.KindRename, Name: spareName + "/*", Err: syscall.ENOMEM},
		{Kind: faultaio.KindRename, Name: dirName + "/*", Err: syscall.ENOMEM},
		{Kind: faultaio.KindRemove, Name: dirName + "/*", Err: syscall.ENOMEM},
		{Kind: faultaio.KindCreate, Name: spareName + "/*", Err: syscall.EMFILE},
	} {
		for n := range 12 {
			for seed := range uint64(3) {
				name := fmt.Sprintf("%v of %s, %d, seed %d", rule.Kind, rule.Name, n, seed)
				d := faultaio.New(faultaio.Options{Seed: seed})
				if _, err := d.ReadDir("."); err != nil {
					t.Fatal(err)
				}
				m := crashModel()
				f := newLife(d, arena, m, seed)
				rule.After, rule.Count = 2+n, 1+n%2 // the first two are of Open
				d.Inject(rule)
				if err := f.run(60, seed != 2); err != nil || m.failed > 0 {
					t.Fatalf("%s: %v, failed %d times", name, err, m.failed)
				}
				for crash := range uint64(4) {
					r, _, err := recovered(d.Crash(crash), arena, m)
					if err == nil {
						err = r.check()
					}
					if err != nil {
						t.Fatalf("%s, crash %d: %v", name, crash, err)
					}
				}
			}
		}
	}
}

// A file that is too small for the next checkpoint, and cannot be removed for want of memory, is removed later. It
// would be a file without groups between two that continue each other.
func TestFileTooSmallWaits(t *testing.T) {
	d := faultaio.New(faultaio.Options{})
	m := newModel()
	m.silent = true
	l := openOn(t, d, testArena(t, 4*aio.BlockBytes, 3), small(0), m)
	m.put(1)
	step(t, l, 5)
	for l.prep.ready == nil {
		if err := l.prep.work(); err != nil {
			t.Fatal(err)
		}
	}
	small, size := l.prep.ready.number, 2*l.opts.FileBytes
	d.Inject(faultaio.Rule{Kind: faultaio.KindRemove, Name: fileName(small), Err: syscall.ENOMEM, Count: 2})
	l.prep.resize(size, size)
	for range 3 {
		if err := l.prep.work(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Identify(fileName(small)); !errors.Is(err, fs.ErrNotExist) || l.prep.ready == nil ||
		l.prep.ready.sizeBytes != size {
		t.Errorf("the file that is too small is there (%v), or none is ready: %+v", err, l.prep.ready)
	}
}
