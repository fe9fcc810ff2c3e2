package clog

import (
	"errors"
	"sync"
	"testing"

	"penstock/segment"
	"penstock/segment/aio"
	"penstock/segment/aio/faultaio"
)

// checkLog reads everything once.
func checkLog(t testing.TB, l *Log) (bytes int64, bad []*segment.CorruptError) {
	t.Helper()
	c := l.NewChecker()
	defer c.Close()
	for {
		n, _, done, err := c.Next()
		bytes += n
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

// A log that is at work is read: every byte that recovery would read is verified, and none behind the last durable group.
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

// Files that are given back, renamed and written again while they are read are never taken for damage.
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

// A damaged current file is followed by another one at once, and released: recovery does not meet it.
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
	step(t, l, 100) // so many that the next file begins: with Inline nobody else looks after files that are given back
	if _, _, err := recovered(d.Kill(1), arena, m); err != nil {
		t.Errorf("the file was given back: %v", err)
	}
	if _, bad := checkLog(t, l); len(bad) > 0 {
		t.Error(bad)
	}
	// A full log cannot begin a file: it goes on in the one that it has.
	m.put(1 << 20)
	step(t, l, 300)
	if !l.Full() {
		t.Fatal("the log is not full")
	}
	file = l.Current()
	l.Renew(file)
	step(t, l, 10)
	if l.Current() != file {
		t.Errorf("a full log began file %d", l.Current())
	}
}
