package clog

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"penstock/segment"
	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
	"penstock/tests/support/underrace"
)

// growing is a model whose checkpoint outgrows the files with which the log begins. With silent the model does not
// announce that.
func growing(silent bool) *model {
	m := crashModel()
	m.chunks, m.grows, m.silent = 2, 2, silent
	return m
}

// TestCheckpointsGrow checks that the log goes on with larger files, however large its checkpoint is, and that recovery
// reads them. Old files keep their size. When checkpoints become small again, so do new files (B29, B43).
func TestCheckpointsGrow(t *testing.T) {
	for _, silent := range []bool{false, true} {
		t.Run(fmt.Sprintf("silent %v", silent), func(t *testing.T) {
			d := faultaio.New(faultaio.Options{})
			m := growing(silent)
			l := openOn(t, d, testArena(t, 4*aio.BlockBytes, 3), small(0), m)
			largest := int64(0)
			for range 400 {
				m.put(3)
				l.Release(m.release())
				step(t, l, 1)
				largest = max(largest, l.FileBytes())
			}
			if m.acked < 1000 {
				t.Fatalf("%d acknowledged: %+v", m.acked, l.Stats())
			}
			if state := int64(m.chunksAt(m.acked) * len(m.chunk)); largest < checkpointShare*state/2 != silent ||
				l.MaxLiveBytes() < liveFiles*l.current.sizeBytes/2 {
				t.Errorf("a state of %d bytes, files of at most %d, %d bytes may be live", state, largest, l.MaxLiveBytes())
			}
			for crash := range uint64(10) {
				r, _, err := recovered(d.Crash(crash), l.arena, m)
				if err == nil {
					err = r.check()
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			m.grows = 0
			for range 4000 {
				m.put(3)
				l.Release(m.release())
				step(t, l, 1)
			}
			if l.FileBytes() > 2*l.opts.FileBytes {
				t.Errorf("the checkpoints are small again, and files have %d bytes", l.FileBytes())
			}
		})
	}
}

// TestHalfACheckpointNeedsTheFileBefore releases everything as soon as the next file is the current one. All groups of
// that file's checkpoint except the last still say that recovery needs the file before.
func TestHalfACheckpointNeedsTheFileBefore(t *testing.T) {
	d := faultaio.New(faultaio.Options{})
	m := growing(false)
	l := openOn(t, d, testArena(t, 4*aio.BlockBytes, 3), small(0), m)
	m.emitting = func() { l.Release(l.Current()) }
	for range 100 {
		m.put(3)
		step(t, l, 1)
	}
	parts, released := 0, 0
	for name, p := range filesOf(t, d) {
		number, _ := parseName(name)
		var h groupHeader
		for at := 0; at < len(p) && h.decode(p[at:]) == headerValid && h.File == number; at += int(h.padded()) {
			whole := true
			_ = eachRecord(&h, p[at:], func(rec *recordHeader, _ []byte) error {
				whole = rec.Type != Checkpoint || rec.Flags&flagLast != 0
				return nil
			})
			switch {
			case h.Oldest == number && whole:
				released++
			case h.Oldest == number && number > 1:
				t.Errorf("group %d of file %d, a part of its checkpoint, says that no other file is needed", h.Seq, number)
			case !whole && number > 1:
				parts++
			}
		}
	}
	if parts == 0 || released == 0 {
		t.Errorf("%d groups are a part of a checkpoint, %d say that only their file is needed: nothing was tried", parts,
			released)
	}
}

// TestCrashWhileFilesGrow cuts the power in every operation of a run in which files grow, and of the recovery after it
// (B29, B36, B43).
func TestCrashWhileFilesGrow(t *testing.T) {
	arena := testArena(t, 4*aio.BlockBytes, 3)
	const turns = 40
	states, seeds := 0, uint64(4)
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		model := func() *model { return growing(seed%2 == 1) }
		whole := faultaio.New(faultaio.Options{Seed: seed})
		first := newLife(whole, arena, model(), seed)
		if err := first.run(turns, true); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if sizes := fileSizes(t, whole); slices.Max(sizes) <= first.opts.FileBytes {
			t.Fatalf("seed %d: no file grew: %d", seed, sizes)
		}
		for op := 0; op < whole.Ops(); op += underrace.Stride {
			d := faultaio.New(faultaio.Options{Seed: seed})
			d.CrashAt(op)
			m := model()
			if err := newLife(d, arena, m, seed).run(turns, true); !errors.Is(err, faultaio.ErrCrashed) {
				t.Fatalf("seed %d, op %d: %v", seed, op, err)
			}
			for crash := range uint64(2) {
				name := fmt.Sprintf("seed %d, op %d, crash %d", seed, op, crash)
				states += afterCrash(t, name, func() *faultaio.Disk { return d.Crash(crash) }, arena, m, seed*1000+crash, op%7 == 0)
			}
			states += afterCrash(t, fmt.Sprintf("seed %d, op %d, kill", seed, op), func() *faultaio.Disk { return d.Kill(seed) },
				arena, m, seed, false)
		}
	}
	t.Logf("%d crash states", states)
}

func fileSizes(t *testing.T, d aio.Disk) (sizes []int64) {
	t.Helper()
	infos, err := d.ReadDir(dirName)
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		sizes = append(sizes, info.Size())
	}
	return sizes
}

// TestPoisonedByCheckpoint: earlier versions stopped when a checkpoint took more than its share of a file. They left a
// log that ends with part of a checkpoint, once for every start that failed in the same way. Such a log opens with all
// its records and goes on.
func TestPoisonedByCheckpoint(t *testing.T) {
	for starts := 1; starts < 9; starts++ {
		f := newForge()
		f.checkpoint(1)
		f.records(1, 3)
		f.records(1, 40)
		for file := uint64(2); file < uint64(2+starts); file++ {
			f.group(file, func(g *Group) { clear(g.add(&Placement{Type: Checkpoint}, 0, 16)) })
			f.group(file, func(g *Group) { clear(g.add(&Placement{Type: Checkpoint, Partition: 1}, 0, 16)) })
		}
		d := f.disk(t)
		m := f.m
		m.added, m.chunks = f.next, 1
		arena := testArena(t, 4*aio.BlockBytes, 2)
		opts := small(0)
		opts.FileBytes, opts.MaxLiveBytes = 8*aio.BlockBytes, 16*aio.BlockBytes
		r := &replayed{m: m}
		l, report, err := Open(d, arena, opts, r)
		if err != nil || r.next != 43 {
			t.Fatalf("%d starts: %v: %d of 43 records, %+v", starts, err, r.next, report)
		}
		m.acked, m.chunks = 43, 1000 // now the state is as large as it was when that version stopped
		l.SetSource(m)
		if err := l.Start(); err != nil {
			t.Fatal(err)
		}
		m.put(5)
		step(t, l, 5)
		m.mu.Lock()
		m.stored = m.added
		m.mu.Unlock()
		l.Release(l.Current()) // the records are in segments, as the engine ensures when the log is full
		step(t, l, 20)
		if m.acked != 48 || l.Full() {
			t.Fatalf("%d starts: %d of 48 records acknowledged: %+v", starts, m.acked, l.Stats())
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		again, _, err := recovered(d.Crash(uint64(starts)), arena, m)
		if err == nil && again.start == 0 {
			m.chunks = 1 // the first file still exists: released files leave when the next file begins
		}
		if err == nil {
			err = again.check()
		}
		if err != nil || again.next != 48 {
			t.Errorf("%d starts, then a crash: %v, %d records", starts, err, again.next)
		}
	}
}

// TestLargeRecordInSmallFiles checks that a record too large for an ordinary file gets a larger one, and that the log
// does not get stuck afterwards.
func TestLargeRecordInSmallFiles(t *testing.T) {
	d := faultaio.New(faultaio.Options{})
	m := newModel()
	m.size = func(id uint64) int {
		if id%10 == 4 {
			return segment.MaxBatchBytes - int(id)
		}
		return 500
	}
	l := openOn(t, d, testArena(t, 4*aio.BlockBytes, 3), small(0), m)
	for range 25 {
		m.put(1)
		for range 10 {
			step(t, l, 1)
			l.Release(m.release())
		}
	}
	if m.acked != 25 {
		t.Fatalf("%d of 25 acknowledged: %+v", m.acked, l.Stats())
	}
	r, _, err := recovered(d.Crash(1), l.arena, m)
	if err == nil {
		err = r.check()
	}
	if err != nil {
		t.Error(err)
	}
	if l.FileBytes() > 16*l.opts.FileBytes {
		t.Errorf("files of %d bytes are made when nothing needs them", l.FileBytes())
	}
}

// TestGrowthOnFullDisk checks that lack of room for a larger file is not a failure. The log waits, may be cut off
// meanwhile, and goes on when there is room.
func TestGrowthOnFullDisk(t *testing.T) {
	opts := small(0)
	d := faultaio.New(faultaio.Options{CapacityBytes: 4 * opts.FileBytes})
	m := growing(false)
	l := openOn(t, d, testArena(t, 4*aio.BlockBytes, 3), opts, m)
	for range 400 {
		m.put(3)
		l.Release(m.release())
		step(t, l, 1)
	}
	acked := m.acked
	if s := l.Stats(); s.StallsSpare == 0 || m.failed != 0 || l.FileBytes() <= opts.FileBytes {
		t.Fatalf("the log does not wait for room: %d acknowledged, %+v", acked, s)
	}
	r, _, err := recovered(d.Crash(1), l.arena, m)
	if err == nil {
		err = r.check()
	}
	if err != nil {
		t.Fatal(err)
	}
	d.SetCapacity(faultaio.DefaultCapacityBytes)
	for range 100 {
		m.put(3)
		l.Release(m.release())
		step(t, l, 1)
	}
	if m.acked < acked+200 || m.failed != 0 {
		t.Errorf("%d acknowledged after %d: %+v", m.acked, acked, l.Stats())
	}
}

// TestFilesGrowInBackground is the same growth on a real disk, with the preparer's goroutine, while another goroutine
// releases files.
func TestFilesGrowInBackground(t *testing.T) {
	disk := openDisk(t, t.TempDir(), aio.ModeAuto)
	defer disk.Close()
	arena := testArena(t, 4*aio.BlockBytes, 3)
	m := growing(false)
	opts := small(0)
	opts.Inline = false
	l, _, err := Open(disk, arena, opts, &replayed{m: m})
	if err != nil {
		t.Fatal(err)
	}
	l.SetSource(m)
	m.retain = func(*aio.Buf) { // after each group
		l.Wake()
		if m.added < 3000 {
			m.waiting += 3
		}
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				l.Release(m.release())
				runtime.Gosched()
			}
		}
	}()
	m.put(3)
	ran := make(chan error, 1)
	go func() { ran <- l.Run() }()
	for end := time.Now().Add(30 * time.Second); ; runtime.Gosched() {
		m.mu.Lock()
		n := m.acked
		m.mu.Unlock()
		if n >= 3000 || time.Now().After(end) {
			break
		}
	}
	l.Stop()
	if err := <-ran; err != nil || m.acked < 3000 {
		t.Errorf("%v: %d of 3000 acknowledged: %+v", err, m.acked, l.Stats())
	}
	close(stop)
	<-done
	if state := int64(m.chunksAt(m.acked) * len(m.chunk)); l.FileBytes() < checkpointShare*state/2 {
		t.Errorf("a state of %d bytes, files of %d", state, l.FileBytes())
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	r, _, err := recovered(disk, arena, m)
	if err == nil {
		err = r.check()
	}
	if err != nil || r.next != m.acked {
		t.Errorf("%v: %d of %d records", err, r.next, m.acked)
	}
}
