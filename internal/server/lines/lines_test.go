package lines

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const patience = 30 * time.Second

// text is a log that a test reads while it is written.
type text struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (x *text) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.all.Write(p)
}

func (x *text) count(what string) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return strings.Count(x.all.String(), what)
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func options(t *testing.T) (Options, *text) {
	log := &text{}
	return Options{
		Dir: filepath.Join(t.TempDir(), "kept"), Name: "x", MaxBytes: 2000, Log: slog.New(slog.NewTextHandler(log, nil)),
		What: "the audit", Head: func() []byte { return []byte("head") },
	}, log
}

func kept(t *testing.T, o *Options) string {
	t.Helper()
	all, err := Read(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(bytes.Join(all, []byte(" ")))
}

func (w *Writer) end(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	w.Close(ctx)
	if ctx.Err() != nil {
		t.Fatal("Close waits")
	}
}

// The files never have more than they may, the newest lines stay, and each file begins with a head.
func TestLinesAreBounded(t *testing.T) {
	o, _ := options(t)
	w := Start(o)
	for i := range 500 {
		if i%50 == 0 { // many at once
			for range 100 {
				w.Append([]byte("a line of many"))
			}
		}
		w.Append(fmt.Appendf(nil, "line %d", i))
		eventually(t, "a line is written", func() bool {
			data, err := os.ReadFile(o.newest())
			return err == nil && bytes.HasSuffix(data, fmt.Appendf(nil, "line %d\n", i))
		})
		var size int64
		for _, name := range []string{o.newest(), o.older()} {
			if info, err := os.Stat(name); err == nil {
				size += info.Size()
			}
		}
		if size > o.MaxBytes {
			t.Fatalf("%d bytes after line %d", size, i)
		}
	}
	w.end(t)
	text := kept(t, &o)
	if n := strings.Count(text, "line"); n < 10 || !strings.HasPrefix(text, "head ") ||
		!strings.HasSuffix(text, " line 498 line 499") || strings.Count(text, "head") != 2 {
		t.Errorf("%d lines: %.200s", n, text)
	}
}

// A line that a crash tore spoils no other, and lines go on behind those of an earlier process.
func TestTornLine(t *testing.T) {
	o, _ := options(t)
	w := Start(o)
	w.Append([]byte("one"))
	w.end(t)
	f, err := os.OpenFile(o.newest(), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("to"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	w = Start(o)
	w.Append([]byte("three"))
	w.end(t)
	if got := kept(t, &o); got != "head one to three" {
		t.Errorf("%q", got)
	}
}

// A full disk is said once, its lines are counted, and nobody waits. With room, lines are written again.
func TestFullDisk(t *testing.T) {
	o, log := options(t)
	if err := os.Mkdir(o.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/full", o.newest()); err != nil {
		t.Fatal(err)
	}
	w := Start(o)
	for i := range 5 {
		w.Append([]byte("lost"))
		eventually(t, "a lost line is counted", func() bool { return w.Lost() == uint64(i+1) })
	}
	if err := os.Remove(o.newest()); err != nil {
		t.Fatal(err)
	}
	w.Append([]byte("kept"))
	w.end(t)
	if got := kept(t, &o); got != "head kept" || w.Lost() != 5 {
		t.Errorf("%q, %d lost", got, w.Lost())
	}
	if log.count("no space left on device") != 1 || log.count("not_written=5") != 1 {
		t.Errorf("%s", &log.all)
	}
}

// A disk that hangs holds up nobody but the goroutine that writes, and what waits for it is bounded.
func TestHungDisk(t *testing.T) {
	o, _ := options(t)
	hang := make(chan struct{})
	o.Head = func() []byte {
		<-hang
		return []byte("head")
	}
	w := Start(o)
	w.Append([]byte("first")) // it waits, too: the head of the file does not come to the disk
	long := bytes.Repeat([]byte("x"), 1<<20)
	for range 10 {
		w.Append(long)
	}
	if w.Lost() != 7 {
		t.Errorf("%d lines of 10 are lost", w.Lost())
	}
	close(hang)
	w.end(t)
}
