package clog

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
)

// refusesAll steps l, which has records waiting and whose ground is gone, until it fails. Nothing may be reported.
func refusesAll(t *testing.T, l *Log, m *model) error {
	t.Helper()
	before := m.acked
	m.put(3)
	var err error
	const most = 1000 // a queue has the completion long before that
	for range most {
		if _, err = l.Step(false); err != nil {
			break
		}
	}
	if m.put(1); err == nil || m.acked != before {
		t.Fatalf("%d records were reported after the ground was gone (%v)", m.acked-before, err)
	}
	if _, again := l.Step(true); again != err {
		t.Errorf("%v, then %v", err, again)
	}
	if !errors.Is(err, ErrFailed) || Lost(err) == nil || m.failed != 1 || !l.Stats().Failed {
		t.Errorf("%v, which says that %v is lost; the source was told %d times", err, Lost(err), m.failed)
	}
	if text := err.Error(); !strings.Contains(text, "nothing more is answered OK") || strings.Contains(text, "safe") {
		t.Errorf("it says %q", text)
	}
	return err
}

func (m *model) ackedNow() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.acked
}

// The current file is removed: the next group, whose write succeeds, is not reported any more. A file that was only
// renamed, or has a second name, is still there.
func TestCurrentFileIsRemoved(t *testing.T) {
	d := faultaio.New(faultaio.Options{})
	m := newModel()
	l := openOn(t, d, testArena(t, 4*aio.BlockBytes, 3), small(0), m)
	m.put(3)
	step(t, l, 10)
	if err := l.CheckFiles(); err != nil || m.acked != 3 {
		t.Fatalf("%d acknowledged, and %v", m.acked, err)
	}
	if err := d.Remove(fileName(l.Current())); err != nil {
		t.Fatal(err)
	}
	if err := l.CheckFiles(); err == nil || !strings.Contains(err.Error(), fileName(l.Current())) {
		t.Errorf("the file is gone, and CheckFiles says %v", err)
	}
	if err := refusesAll(t, l, m); !strings.Contains(err.Error(), fileName(l.Current())+" was removed") {
		t.Errorf("it does not say what is gone: %v", err)
	}
}

// Somebody else found that the ground is gone: a group that is in flight then, and written well, is not reported.
func TestLostWithGroupsInFlight(t *testing.T) {
	d := faultaio.New(faultaio.Options{})
	m := newModel()
	l := openOn(t, d, testArena(t, 4*aio.BlockBytes, 3), small(0), m)
	m.put(3)
	step(t, l, 10)
	d.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Name: "clog/*", Waits: 5})
	m.put(1)
	step(t, l, 1)
	l.Lose(&aio.GroundError{Name: "node.json", Seen: "was removed or renamed"})
	l.Lose(&aio.GroundError{Name: "LOCK", Seen: "was removed or renamed"}) // later ones change nothing
	if err := refusesAll(t, l, m); !strings.Contains(err.Error(), "node.json was removed") {
		t.Errorf("it does not say what is gone: %v", err)
	}
}

// The same, found while the group is gathered and written on the spot.
func TestLostDuringAStep(t *testing.T) {
	m := newModel()
	opts := small(0)
	opts.DirectBytes = 0
	l := openOn(t, faultaio.New(faultaio.Options{}), testArena(t, 4*aio.BlockBytes, 3), opts, m)
	m.put(3)
	step(t, l, 10)
	m.retain = func(*aio.Buf) { l.Lose(&aio.GroundError{Name: "LOCK", Seen: "was removed"}) }
	_ = refusesAll(t, l, m)
}

// Files that recovery needs are looked at, and no others: those that were given back may be gone.
func TestOldFilesAreWatched(t *testing.T) {
	d := faultaio.New(faultaio.Options{})
	m := newModel()
	l := openOn(t, d, testArena(t, 4*aio.BlockBytes, 3), small(0), m)
	first := l.Current()
	for range 1000 {
		m.put(1)
		step(t, l, 1)
		if err := l.CheckFiles(); err != nil {
			t.Fatalf("a false alarm: %v", err)
		}
		if l.Current() > first+2 {
			break
		}
	}
	if l.Current() <= first+2 {
		t.Fatal("too few files")
	}
	l.Release(first + 2)
	for range 1000 {
		m.put(1)
		step(t, l, 1)
		if err := l.CheckFiles(); err != nil {
			t.Fatalf("a false alarm: %v", err)
		}
		if l.Stats().Recycled > 0 {
			break
		}
	}
	oldest := l.Stats().Oldest
	if oldest == l.Current() || oldest == first {
		t.Fatalf("the oldest file is %d of %d to %d", oldest, first, l.Current())
	}
	if err := d.WriteFile(fileName(oldest), []byte("another")); err != nil {
		t.Fatal(err)
	}
	err := l.CheckFiles()
	if lost := (*aio.GroundError)(nil); !errors.As(err, &lost) || lost.Name != fileName(oldest) {
		t.Errorf("an old file was replaced, and CheckFiles says %v", err)
	}
}

// The same with real files and the log's own goroutines: recovery's files, those that were made, and those that were
// recycled are the same by their names and by their descriptors.
func TestGroundOfARealDisk(t *testing.T) {
	for _, mode := range []aio.Mode{aio.ModeUring, aio.ModePwrite} {
		t.Run(string(mode), func(t *testing.T) {
			dir := t.TempDir()
			arena := testArena(t, 256<<10, 8)
			m := newModel()
			m.size = func(uint64) int { return 3000 }
			runLife(t, dir, mode, arena, m, 0)
			disk := openDisk(t, dir, mode)
			defer disk.Close()
			l, _, err := Open(disk, arena, Options{FileBytes: 1 << 20, MaxLiveBytes: 4 << 20, Store: testStore}, &replayed{m: m})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if err := l.CheckFiles(); err != nil {
				t.Errorf("after recovery: %v", err)
			}
			l.SetSource(m)
			ended := make(chan error, 1)
			go func() { ended <- l.Run() }()
			before := m.ackedNow()
			m.put(1)
			for m.ackedNow() == before {
				l.Wake()
				runtime.Gosched()
			}
			if err := l.CheckFiles(); err != nil {
				t.Errorf("in a new file: %v", err)
			}
			if err := os.RemoveAll(filepath.Join(dir, "clog")); err != nil {
				t.Fatal(err)
			}
			acked := m.ackedNow()
			m.put(1)
			l.Wake()
			if err := <-ended; !errors.Is(err, ErrFailed) || Lost(err) == nil || m.acked != acked {
				t.Errorf("%v; %d more were acknowledged", err, m.acked-acked)
			}
		})
	}
}

// A folder that is missing when the log makes its next file was taken away, too: that is no failure of the device.
func TestFolderIsTakenAway(t *testing.T) {
	d := faultaio.New(faultaio.Options{})
	m := newModel()
	l := openOn(t, d, testArena(t, 4*aio.BlockBytes, 3), small(0), m)
	m.put(3)
	step(t, l, 10)
	if err := d.Rename(dirName, "elsewhere"); err != nil {
		t.Fatal(err)
	}
	var err error
	const most = 1000
	for n := 0; n < most && err == nil; n++ {
		m.put(1)
		_, err = l.Step(false)
	}
	if err == nil || Lost(err) == nil || !errors.Is(err, ErrFailed) || strings.Contains(err.Error(), "safe") {
		t.Errorf("it says %v", err)
	}
}

// The file that a checkpoint begins is removed while the checkpoint is written: it releases no older file, because
// recovery would need those.
func TestCheckpointInARemovedFile(t *testing.T) {
	d := faultaio.New(faultaio.Options{})
	m := newModel()
	l := openOn(t, d, testArena(t, 4*aio.BlockBytes, 3), small(0), m)
	m.put(1)
	step(t, l, 10)
	first := l.Current()
	removed := false
	m.emitting = func() {
		if removed = true; d.Remove(fileName(l.Current())) != nil {
			t.Error("there is no file")
		}
		l.released.Store(l.Current())
	}
	var err error
	for n := 0; n < 1000 && err == nil; n++ {
		m.put(1)
		l.Release(l.Current())
		_, err = l.Step(false)
	}
	if !removed || Lost(err) == nil || m.failed != 1 {
		t.Fatalf("removed: %v; %v", removed, err)
	}
	if stored := *l.stored.Load(); stored[0].number != first {
		t.Errorf("the oldest file is %d, want %d: the log gave away what recovery needs", stored[0].number, first)
	}
}
