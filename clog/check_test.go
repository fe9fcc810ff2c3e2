package clog

import (
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"penstock/segment"
	"penstock/segment/aio"
	"penstock/tests/support/faultaio"
	"penstock/tests/support/patience"
)

// checkLog lets a Checker read the whole log once.
func checkLog(t testing.TB, l *Log) (bytes int64, bad []*segment.CorruptError) {
	t.Helper()
	c := l.NewChecker()
	defer c.Close()
	for turns := 0; ; turns++ {
		n, _, done, err := c.Next()
		bytes += n
		if turns > 10_000 {
			t.Fatal("it does not come to an end")
		}
		var one *segment.CorruptError
		switch {
		case done:
			return bytes, bad
		case errors.As(err, &one):
			bad = append(bad, one)
		case err != nil:
			t.Fatal(err)
		}
	}
}

func flipByte(t testing.TB, d *faultaio.Disk, name string, at int64) {
	t.Helper()
	p, err := d.ReadFile(name, 1<<30)
	if err != nil || !d.Corrupt(name, []byte{p[at] ^ 0x10}, at) {
		t.Fatal(name, at, err)
	}
}

// A Checker reads a log that is at work: it verifies every byte that recovery would read, and none behind the last
// durable group.
func TestCheckFindsEveryFlip(t *testing.T) {
	d := faultaio.New(faultaio.Options{})
	m := newModel()
	l := openOn(t, d, testArena(t, 4*aio.BlockBytes, 3), small(0), m)
	m.put(100)
	step(t, l, 200)
	if l.Oldest() == l.Current() {
		t.Fatal("one file only")
	}
	whole, bad := checkLog(t, l)
	if whole != l.LiveBytes() || len(bad) > 0 {
		t.Fatalf("%d bytes of %d were read, damage %v", whole, l.LiveBytes(), bad)
	}
	for _, f := range l.live {
		name := fileName(f.number)
		for at := int64(0); at < f.sizeBytes; at += 509 {
			flipByte(t, d, name, at)
			_, bad := checkLog(t, l)
			flipByte(t, d, name, at)
			switch durable := at < f.usedBytes; {
			case durable && (len(bad) != 1 || bad[0].Path != name || bad[0].Offset > at):
				t.Errorf("%s, byte %d of %d: %v", name, at, f.usedBytes, bad)
			case !durable && len(bad) > 0:
				t.Errorf("%s, byte %d behind the end at %d: %v", name, at, f.usedBytes, bad)
			}
		}
	}
	if !d.Corrupt(fileName(l.Oldest()), make([]byte, aio.BlockBytes), 0) {
		t.Fatal("no such file")
	}
	if _, bad := checkLog(t, l); len(bad) != 1 {
		t.Errorf("a first block of zeros: %v", bad)
	}
}

// A place where a group was written may hold another group that verifies: a write went elsewhere, or was lost in a file
// that held other groups before.
func TestCheckKnowsItsGroups(t *testing.T) {
	d := faultaio.New(faultaio.Options{})
	m := newModel()
	l := openOn(t, d, testArena(t, 4*aio.BlockBytes, 3), small(0), m)
	for range 3 {
		m.put(1)
		step(t, l, 3)
	}
	name, at := fileName(l.current.number), l.current.pos-aio.BlockBytes
	p, err := d.ReadFile(name, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	var was groupHeader
	if was.decode(p[at:]) != headerValid || was.padded() != aio.BlockBytes || at < 2*aio.BlockBytes {
		t.Fatalf("the last group is %+v at %d", was, at)
	}
	was.Records, was.Bytes = 0, GroupHeaderBytes // a mark, which verifies
	for why, change := range map[string]func(h *groupHeader){
		"":                                 func(*groupHeader) {},
		"another store's":                  func(h *groupHeader) { h.Store[3]++ },
		"of the file's earlier life":       func(h *groupHeader) { h.File--; h.Oldest = min(h.Oldest, h.File) },
		"of another place":                 func(h *groupHeader) { h.Seq++ },
		"behind another group":             func(h *groupHeader) { h.PrevCRC++ },
		"larger than what was written":     func(h *groupHeader) { h.BlockShift++ },
		"where the group before was again": func(h *groupHeader) { _ = h.decode(p[at-aio.BlockBytes:]) },
	} {
		h, block := was, make([]byte, aio.BlockBytes)
		if change(&h); h.Records > 0 {
			copy(block, p[at-aio.BlockBytes:at])
		} else {
			h.encode(block)
		}
		if !d.Corrupt(name, block, at) {
			t.Fatal("no such file")
		}
		_, bad := checkLog(t, l)
		if wrong := why != ""; wrong != (len(bad) == 1) || wrong && bad[0].Offset != at {
			t.Errorf("a group %s: %v", why, bad)
		}
	}
}

// A missing file is damage, and so is a file that the device cannot read: the log can still be written anew. Any other
// failure is tried again.
func TestCheckCannotRead(t *testing.T) {
	d := faultaio.New(faultaio.Options{})
	m := newModel()
	l := openOn(t, d, testArena(t, 4*aio.BlockBytes, 3), small(0), m)
	m.put(100)
	step(t, l, 200)
	name := fileName(l.Oldest())
	d.Inject(faultaio.Rule{Kind: faultaio.KindRead, Name: name, Count: 1, Err: syscall.EIO})
	if _, bad := checkLog(t, l); len(bad) != 1 || bad[0].Path != name {
		t.Errorf("not given back: %v", bad)
	}
	d.Inject(faultaio.Rule{Kind: faultaio.KindRead, Name: name, Count: 1, Err: syscall.ENOMEM})
	c := l.NewChecker()
	defer c.Close()
	if _, file, done, err := c.Next(); err == nil || done || file != l.Oldest() ||
		errors.As(err, new(*segment.CorruptError)) {
		t.Errorf("no memory: file %d, done %v, %v", file, done, err)
	}
	if n, file, done, err := c.Next(); n == 0 || file != l.Oldest() || done || err != nil {
		t.Errorf("it goes on with %d bytes of file %d, done %v, %v", n, file, done, err)
	}
	if err := d.Remove(name); err != nil {
		t.Fatal(err)
	}
	if _, bad := checkLog(t, l); len(bad) != 1 || bad[0].Path != name {
		t.Errorf("gone: %v", bad)
	}
}

// A group may be larger than what a Checker reads at once.
func TestCheckLargeGroup(t *testing.T) {
	d := faultaio.New(faultaio.Options{})
	m := newModel()
	m.size = func(uint64) int { return segment.HeaderBytes + checkBytes*3/4 }
	l := openOn(t, d, testArena(t, 4*checkBytes, 3), Options{
		FileBytes: 8 * checkBytes, MaxLiveBytes: 32 * checkBytes, Store: testStore, Inline: true,
	}, m)
	m.put(3)
	step(t, l, 10)
	for at := range l.current.pos {
		if at%(checkBytes*3/4) != 1 {
			continue
		}
		if bytes, bad := checkLog(t, l); bytes != l.LiveBytes() || len(bad) > 0 || bytes < 2*checkBytes {
			t.Fatalf("%d bytes of %d, %v", bytes, l.LiveBytes(), bad)
		}
		flipByte(t, d, fileName(l.current.number), at)
		if _, bad := checkLog(t, l); len(bad) != 1 {
			t.Errorf("byte %d: %v", at, bad)
		}
		flipByte(t, d, fileName(l.current.number), at)
	}
}

// A file that the log gave back between two reads, and that has another name by now, is not damage.
func TestCheckOfAFileThatWasGivenBack(t *testing.T) {
	d := faultaio.New(faultaio.Options{})
	m := newModel()
	l := openOn(t, d, testArena(t, 4*aio.BlockBytes, 3), small(0), m)
	m.put(100)
	step(t, l, 200)
	c := l.NewChecker()
	defer c.Close()
	if !c.nextFile() {
		t.Fatal("no file")
	}
	l.Release(m.release())
	m.put(150)
	step(t, l, 100)
	if l.isStored(c.file) {
		t.Fatal("the file was not given back")
	}
	for {
		_, _, done, err := c.Next()
		if err != nil {
			t.Fatal(err)
		}
		if done {
			return
		}
	}
}

// Files that are given back, renamed and written again while a Checker reads them are never taken for damage.
func TestCheckWhileFilesGoRound(t *testing.T) {
	d := faultaio.New(faultaio.Options{})
	m := newModel()
	opts := small(0)
	opts.Inline = false
	l, _, err := Open(d, testArena(t, 4*aio.BlockBytes, 3), opts, &replayed{m: m})
	if err != nil {
		t.Fatal(err)
	}
	l.SetSource(m)
	ran := make(chan error, 1)
	go func() { ran <- l.Run() }()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, bad := checkLog(t, l); len(bad) > 0 {
					t.Error(bad)
					return
				}
			}
		})
	}
	for l.Stats().Recycled < 40 && !t.Failed() {
		m.put(10)
		l.Release(m.release())
		l.Wake()
	}
	close(stop)
	wg.Wait()
	l.Stop()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// The log leaves a damaged current file at once for a new one and releases it, so that recovery does not meet the
// damage.
func TestRenew(t *testing.T) {
	d := faultaio.New(faultaio.Options{})
	m := newModel()
	arena := testArena(t, 4*aio.BlockBytes, 3)
	l := openOn(t, d, arena, small(0), m)
	m.put(3)
	step(t, l, 5)
	file := l.Current()
	flipByte(t, d, fileName(file), l.current.pos-aio.BlockBytes+70)
	l.Renew(file)
	step(t, l, 3)
	if l.Current() != file+1 {
		t.Fatalf("the log is in file %d, and was in %d", l.Current(), file)
	}
	step(t, l, 3)
	if l.Current() != file+1 {
		t.Errorf("it went on to file %d", l.Current())
	}
	if _, _, err := recovered(d.Kill(1), arena, m); err == nil {
		t.Error("the damage is not met while the file is there")
	}
	m.release()
	l.Release(file + 1)
	m.put(150)
	step(t, l, 100) // enough for the next file to begin: with Inline nobody else handles files that were given back
	if _, _, err := recovered(d.Kill(1), arena, m); err != nil {
		t.Errorf("the file was given back: %v", err)
	}
	if _, bad := checkLog(t, l); len(bad) > 0 {
		t.Error(bad)
	}
	// A full log cannot begin a file: it goes on in the current one.
	m.put(1 << 20)
	step(t, l, 300)
	if !l.Full() {
		t.Fatal("the log is not full")
	}
	file = l.Current()
	l.Renew(file)
	step(t, l, 10)
	if l.Current() != file || l.renews() {
		t.Errorf("a full log began file %d, or wants to", l.Current())
	}
	if l.Renew(file - 1); l.renewed.Load() != file {
		t.Error("what was asked for last counts, and not the newest file")
	}
}

// An idle log is woken to begin another file, and does not wait for a file that is not ready.
func TestRenewAtRest(t *testing.T) {
	opts := small(0)
	opts.Inline, opts.MarkAfter = false, time.Hour
	m := newModel()
	l, _, err := Open(faultaio.New(faultaio.Options{}), testArena(t, 4*aio.BlockBytes, 3), opts, &replayed{m: m})
	if err != nil {
		t.Fatal(err)
	}
	l.SetSource(m)
	ran := make(chan error, 1)
	go func() { ran <- l.Run() }()
	m.put(3)
	l.Wake()
	wait := patience.Or(time.Minute)
	asleep := func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.acked == 3 && l.asleep && l.prep.usable()
	}
	for end := time.Now().Add(wait); !asleep() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	file := l.Current()
	l.Renew(file)
	for end := time.Now().Add(wait); l.Current() == file && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if l.Current() != file+1 {
		t.Errorf("the log is in file %d, and was in %d", l.Current(), file)
	}
	l.Stop()
	if err := errors.Join(<-ran, l.Close()); err != nil {
		t.Error(err)
	}
	not := &preparer{ready: &openFile{}, least: 1}
	not.ready.sizeBytes = 0
	if not.usable() || (&preparer{}).usable() || !(&preparer{ready: &openFile{}}).usable() {
		t.Error("a file that is not ready, or too small, is of use")
	}
}
