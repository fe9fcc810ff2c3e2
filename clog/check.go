package clog

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync/atomic"
	"syscall"

	"penstock/segment"
	"penstock/segment/aio"
)

// checkBytes is how much a Checker reads at once, unless a single group is larger.
const checkBytes = 1 << 20

// storedFile is a live file as a Checker sees it. A file leaves the list before anybody may overwrite it. So if a
// Checker meets damage and still finds the file in the list afterwards, it has read what recovery would read.
type storedFile struct {
	number uint64
	id     aio.FileID   // see CheckFiles
	end    atomic.Int64 // where its last durable group ends; written by the holder of Log.mu
}

func newStored(number uint64, id aio.FileID, end int64) *storedFile {
	f := &storedFile{number: number, id: id}
	f.end.Store(end)
	return f
}

// showStored publishes the files of live to Checkers. It is called whenever live changes, with Log.mu held or by Open.
func (l *Log) showStored() {
	list := make([]*storedFile, 0, len(l.live))
	for i := range l.live {
		list = append(list, l.live[i].stored)
	}
	l.stored.Store(&list)
}

// isStored says whether recovery would still read f.
func (l *Log) isStored(f *storedFile) bool {
	list := l.stored.Load()
	return list != nil && slices.Contains(*list, f)
}

// Renew asks the log to continue in a new file soon if the current file's number is file or less: only a file that is
// not current can be released. The request takes effect when the next file is ready and Options.MaxLiveBytes leaves
// room for it. Any goroutine may call Renew.
func (l *Log) Renew(file uint64) {
	for {
		old := l.renewed.Load()
		if file <= old {
			break
		}
		if l.renewed.CompareAndSwap(old, file) {
			break
		}
	}
	l.Wake()
}

// renews says whether to leave the current file now because of Renew. The caller holds Log.mu.
func (l *Log) renews() bool {
	return l.renewed.Load() >= l.current.number && l.prep.usable() && l.heldBytes()+l.sizes.nextBytes <= l.maxLive()
}

// usable says whether take would return a file.
func (p *preparer) usable() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inline || p.ready != nil && p.ready.sizeBytes >= p.least
}

// Checker reads the log's files from the device while the log runs, and verifies every durable group that recovery
// would need. One goroutine uses it, and not after the log is closed.
type Checker struct {
	l    *Log
	buf  []byte
	free func()

	file  *storedFile // the file being read; nil: the next one has not been chosen
	after uint64      // number of the last file that was begun
	at    int64       // position in file; everything below it was verified
	begun bool        // last is the group that ends at at
	last  groupHeader
}

// NewChecker makes a checker that begins with the oldest file; Close frees it.
func (l *Log) NewChecker() *Checker {
	buf, free := aio.AlignedBytes(checkBytes)
	return &Checker{l: l, buf: buf, free: free}
}

// Close frees the buffer.
func (c *Checker) Close() {
	c.free()
	c.buf = nil
}

// Next reads and verifies about a mebibyte more. done says that everything durable was read. Bytes that do not read
// back as they were written are a *segment.CorruptError with the number of their file; the rest of that file is
// skipped. Any other error is one of the environment.
func (c *Checker) Next() (bytes int64, file uint64, done bool, err error) {
	if c.file == nil && !c.nextFile() {
		return 0, 0, true, nil
	}
	f := c.file
	end := f.end.Load()
	if c.at >= end {
		c.file = nil
		return 0, f.number, false, nil
	}
	bytes, err = c.piece(f, end)
	switch {
	case err == nil:
		return bytes, f.number, false, nil
	case !c.l.isStored(f): // the file was retired meanwhile, and may have another name or other groups by now
		c.file = nil
		return bytes, f.number, false, nil
	}
	if errors.As(err, new(*segment.CorruptError)) {
		c.file = nil
	}
	return bytes, f.number, false, err
}

func (c *Checker) nextFile() bool {
	list := c.l.stored.Load()
	if list == nil {
		return false
	}
	for _, f := range *list {
		if f.number > c.after {
			c.file, c.after, c.at, c.begun = f, f.number, 0, false
			return true
		}
	}
	return false
}

// piece verifies groups of f from c.at on and moves c.at behind them. The first end bytes of f are durable.
func (c *Checker) piece(f *storedFile, end int64) (int64, error) {
	file, err := c.l.disk.Open(fileName(f.number))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = c.damaged(f, 0, "the file is gone")
		}
		return 0, err
	}
	defer file.Close()
	for want := min(checkBytes, end-c.at); ; {
		data := c.room(want)
		if err := file.ReadAt(data, c.at); err != nil {
			if errors.Is(err, syscall.EIO) {
				err = c.damaged(f, c.at, err.Error())
			}
			return 0, err
		}
		n, size, why := c.groups(f, data)
		switch {
		case why != "":
			return n, c.damaged(f, c.at, why)
		case n > 0:
			return n, nil
		case c.at+size > end:
			return 0, c.damaged(f, c.at, "a group reaches beyond what was written")
		}
		want = size // a single group that is larger than the planned read
	}
}

// groups verifies the whole groups at the start of data, which was read at c.at. If the last group is cut off, groups
// returns its size.
func (c *Checker) groups(f *storedFile, data []byte) (n, size int64, why string) {
	for int64(len(data)) > n {
		p := data[n:]
		var h groupHeader
		switch {
		case h.decode(p) != headerValid || h.Store != c.l.opts.Store || h.File != f.number || h.padded()%c.l.block != 0:
			return n, 0, "no group, or one with a damaged header, stands where one was written"
		case c.begun && (h.Seq != c.last.Seq+1 || h.PrevCRC != c.last.CRC):
			return n, 0, fmt.Sprintf("group %d stands where group %d was written", h.Seq, c.last.Seq+1)
		}
		if size = h.padded(); size > int64(len(p)) {
			return n, size, ""
		}
		if _, err := verifyGroup(&h, p[:size]); err != nil {
			return n, 0, fmt.Sprintf("group %d: %v", h.Seq, err)
		}
		c.last, c.begun = h, true
		c.at += size
		n += size
	}
	return n, 0, ""
}

func (c *Checker) damaged(f *storedFile, at int64, why string) error {
	return &segment.CorruptError{Path: fileName(f.number), Offset: at, Detail: why}
}

// room makes the buffer hold n bytes.
func (c *Checker) room(n int64) []byte {
	if int64(len(c.buf)) < n {
		c.free()
		c.buf, c.free = aio.AlignedBytes(int(aio.RoundUp(n, aio.BlockBytes)))
	}
	return c.buf[:n]
}
