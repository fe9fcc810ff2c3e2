// Package lines keeps the newest lines of text in two files of a bounded size: what a node remembers besides messages,
// such as its audit. Losing some of it is no reason to refuse anything, so nobody waits for the disk here, and an
// error of the disk stops nobody: it is said once, and the lines that were not written are counted.
//
// NAME.jsonl has the newest lines. When it is half of what is allowed, it replaces NAME.old.jsonl, and a new file
// begins. A crash may leave a last line that is torn: what reads a line has to pass over one that makes no sense. The
// next line after it begins on a line of its own.
package lines

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxPendingBytes bounds what waits for a disk that does not answer.
	maxPendingBytes = 4 << 20
	// headBytes is room for the head of a file.
	headBytes = 256
	// syncInterval is the longest time that a written line is not on stable storage, if the disk answers.
	syncInterval = time.Second
)

// Options say where lines are kept.
type Options struct {
	Dir      string // it is made with its first file: at once if there is a Head, else with the first line
	Name     string
	MaxBytes int64 // of both files together; a line that is longer than half of it is kept all the same, alone
	// Head returns the first line of a new file, of less than headBytes; nil: there is none. The goroutine that writes
	// calls it.
	Head func() []byte
	// Unsynced: a power cut may take the newest lines, so that nothing is flushed.
	Unsynced bool
	Log      *slog.Logger
	What     string // for the log: what is kept, such as "the audit"
}

func (o *Options) newest() string { return filepath.Join(o.Dir, o.Name+".jsonl") }
func (o *Options) older() string  { return filepath.Join(o.Dir, o.Name+".old.jsonl") }

// Read returns the lines of both files, the oldest first. Files that are not there have none, and none is read beyond
// what it may have.
func Read(o *Options) (all [][]byte, err error) {
	for _, name := range []string{o.older(), o.newest()} {
		f, fault := os.Open(name)
		if errors.Is(fault, fs.ErrNotExist) {
			continue
		}
		if fault != nil {
			err = errors.Join(err, fault)
			continue
		}
		text, fault := io.ReadAll(io.LimitReader(f, o.MaxBytes))
		err = errors.Join(err, fault, f.Close())
		for line := range bytes.Lines(text) {
			all = append(all, bytes.TrimSuffix(line, []byte("\n")))
		}
	}
	return all, err
}

// Writer appends lines on a goroutine of its own. Any goroutine may call its methods, with other locks held.
type Writer struct {
	o    Options
	most atomic.Int64 // see Limit
	wake chan struct{}
	quit chan struct{}
	done chan struct{}

	mu      sync.Mutex // guards the fields below; nothing is called while it is held
	pending bytes.Buffer
	lost    uint64

	failing bool   // of the goroutine: the log has been told
	before  uint64 // of the goroutine: lost when the disk last took lines
}

// Start returns a Writer. Close ends it.
func Start(o Options) *Writer {
	w := &Writer{o: o, wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
	w.Limit(o.MaxBytes)
	go w.run()
	return w
}

// Limit changes Options.MaxBytes. What is stored beyond it goes when the next files begin.
func (w *Writer) Limit(bytes int64) { w.most.Store(bytes) }

// Append keeps a line, which has no newline in it. It does not wait.
func (w *Writer) Append(line []byte) {
	w.mu.Lock()
	if w.pending.Len()+len(line) < maxPendingBytes {
		w.pending.Write(line)
		w.pending.WriteByte('\n')
	} else {
		w.lost++
	}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Lost returns how many lines could not be written since Start.
func (w *Writer) Lost() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

// Close writes what waits, and returns when it is on stable storage, or ctx ends. It is called once.
func (w *Writer) Close(ctx context.Context) {
	close(w.quit)
	select {
	case <-w.done:
	case <-ctx.Done(): // the disk hangs, and what waits for it is lost
	}
}

func (w *Writer) run() {
	defer close(w.done)
	var due <-chan time.Time // nil: all that was written is on stable storage
	if w.o.Head != nil {     // the first file begins now, not with its first line
		if _, err := w.append(nil); w.told(err) {
			due = time.After(syncInterval)
		}
	}
	for {
		select {
		case <-w.wake:
			if w.told(w.write()) && due == nil {
				due = time.After(syncInterval)
			}
		case <-due:
			due = nil
			if err := w.sync(); err != nil { // that it succeeds does not say that there is room
				w.told(err)
			}
		case <-w.quit:
			if w.told(w.write()) {
				w.told(w.sync())
			}
			return
		}
	}
}

// told says once that lines cannot be written, and once that they can again. It returns whether they can.
func (w *Writer) told(err error) bool {
	switch {
	case err != nil && !w.failing:
		w.failing = true
		w.o.Log.Warn("keeping "+w.o.What+" on disk failed: it goes on in memory, messages are not "+
			"concerned, and what is not written is counted; see that the disk has room", "dir", w.o.Dir, "error", err)
	case err == nil && w.failing:
		w.failing = false
		w.o.Log.Info(w.o.What+" is kept on disk again", "dir", w.o.Dir, "not_written", w.Lost()-w.before)
	}
	if err == nil {
		w.before = w.Lost()
	}
	return err == nil
}

// write writes what waits. After an error it counts what is not in the file as a whole as lost.
func (w *Writer) write() error {
	w.mu.Lock()
	text := bytes.Clone(w.pending.Bytes())
	w.pending.Reset()
	w.mu.Unlock()
	for len(text) > 0 {
		part := text[:w.fits(text)]
		written, err := w.append(part)
		if err != nil {
			w.mu.Lock()
			w.lost += uint64(bytes.Count(text[written:], newline))
			w.mu.Unlock()
			return err
		}
		text = text[len(part):]
	}
	return nil
}

var newline = []byte("\n")

// fits returns how much of text fits into a new file: whole lines, and at least one.
func (w *Writer) fits(text []byte) int {
	if room := int(w.most.Load()/2) - headBytes; len(text) > room {
		if n := bytes.LastIndexByte(text[:max(0, room)], '\n'); n >= 0 {
			return n + 1
		}
		return bytes.IndexByte(text, '\n') + 1
	}
	return len(text)
}

// append opens the file by its name each time, so that no descriptor is held, and a file that was removed begins anew.
func (w *Writer) append(text []byte) (written int, err error) {
	f, size, err := w.open()
	if err != nil {
		return 0, err
	}
	if size > 0 && size+int64(len(text)) > w.most.Load()/2 {
		if err = errors.Join(f.Close(), os.Rename(w.o.newest(), w.o.older())); err != nil {
			return 0, err
		}
		if f, size, err = w.open(); err != nil {
			return 0, err
		}
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	last := []byte{'\n'}
	if size > 0 {
		if _, err := f.ReadAt(last, size-1); err != nil {
			return 0, err
		}
	}
	var head []byte
	switch {
	case last[0] != newline[0]: // a write ended in the middle of a line
		head = []byte("\n")
	case size == 0 && w.o.Head != nil:
		head = append(w.o.Head(), '\n')
	}
	n, err := f.Write(append(head, text...))
	return max(0, n-len(head)), err
}

func (w *Writer) open() (*os.File, int64, error) {
	const flags, mode = os.O_RDWR | os.O_APPEND | os.O_CREATE, 0o600
	f, err := os.OpenFile(w.o.newest(), flags, mode)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(w.o.Dir, 0o700); err == nil {
			f, err = os.OpenFile(w.o.newest(), flags, mode)
		}
	}
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

// sync puts the newest file on stable storage, and its name.
func (w *Writer) sync() error {
	if w.o.Unsynced {
		return nil
	}
	for _, name := range []string{w.o.newest(), w.o.Dir} {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // nothing could be written, as was said
		}
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return nil
}
