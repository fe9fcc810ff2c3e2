package segment

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"
)

// FileFault says that a header block or an index is not what was written.
type FileFault struct {
	Path   string
	Err    error
	Mended bool // it was written again from what the log knows
}

// CheckFiles reads from the device what no batch covers: the header block of each segment and the index of each full
// segment. It writes damaged ones again, from memory or from the segment. A missing index is made again but not
// reported. CheckFiles calls pause after each segment, without a lock, with the number of bytes read; if pause returns
// false, the check ends. The scrub calls CheckFiles.
func (l *Log) CheckFiles(c *Checker, pause func(bytes int64) bool) (faults []FileFault) {
	for after := int64(-1); ; {
		f := l.pinBehind(after)
		if f == nil {
			return faults
		}
		after = int64(f.number)
		if fault := l.checkHeader(c, f); fault != nil {
			faults = append(faults, *fault)
		}
		bytes := int64(SegmentHeaderBytes)
		fault, n := l.checkIndex(f)
		if fault != nil {
			faults = append(faults, *fault)
		}
		f.release()
		if !pause(bytes + n) {
			return faults
		}
	}
}

// pinBehind pins the first readable segment with a number above the given one, or returns nil.
func (l *Log) pinBehind(number int64) *segFile {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.segs {
		if int64(f.number) > number && f.broken == nil {
			f.pin()
			return f
		}
	}
	return nil
}

// checkHeader checks f's header block on the device. If the block is damaged, or is that of another file, checkHeader
// writes it again from the header in memory. The caller pinned f.
func (l *Log) checkHeader(c *Checker, f *segFile) *FileFault {
	if !errors.Is(l.headerFault(f), errSegHeader) {
		return nil // whole; or trimmed meanwhile, or not readable just now
	}
	l.io.Lock()
	defer l.io.Unlock()
	err := l.headerFault(f)
	if !errors.Is(err, errSegHeader) || !l.has(f) {
		return nil
	}
	fault := &FileFault{Path: f.path, Err: err}
	if l.writable() == nil {
		head := make([]byte, SegmentHeaderBytes)
		f.encode(head)
		fault.Mended = l.rewrite(c, f, 0, head) == nil
	}
	return fault
}

// headerFault reads f's header block from the device and says what is wrong with it. It wraps errSegHeader if the block
// is damaged, or if it is whole and belongs to another file: the device wrote it to the wrong place, and a restart
// would refuse it.
func (l *Log) headerFault(f *segFile) error {
	h, _, err := readSegmentHeader(l.disk, f.path)
	if err == nil && (h.id != f.id || h.number != f.number || h.base != f.base) {
		return fmt.Errorf("%w: it is that of segment %d of %v, which begins at %d", errSegHeader, h.number, h.id, h.base)
	}
	return err
}

// has says whether f is still a segment of the log.
func (l *Log) has(f *segFile) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.segs, f)
}

// checkIndex checks the .idx file of f, if f is full and its index was written. It writes the index again if it is
// damaged or missing. The caller pinned f.
func (l *Log) checkIndex(f *segFile) (fault *FileFault, bytes int64) {
	end, sealed := l.endOf(f)
	if !sealed || end > l.Synced() {
		return nil, 0
	}
	entries, err := l.readIndex(f, end)
	if err == nil {
		return nil, idxHeaderBytes + int64(len(entries))*idxEntryBytes
	}
	l.io.Lock()
	defer l.io.Unlock()
	if end, sealed = l.endOf(f); !sealed || slices.Contains(l.full, f) || l.writable() != nil {
		return nil, 0 // trimmed or cut, or its index comes with the next sync
	}
	_, err = l.readIndex(f, end)
	missing := errors.Is(err, fs.ErrNotExist)
	if err == nil || !missing && !errors.Is(err, errIndex) && !errors.Is(err, syscall.EIO) {
		return nil, 0
	}
	l.mu.Lock()
	f.index, f.indexed = nil, false // rebuild from the batches: the index in memory may come from the damaged file
	l.mu.Unlock()
	l.writeIndex(f, end)
	_, again := l.readIndex(f, end)
	if missing {
		return nil, 0
	}
	if again != nil {
		_ = l.disk.Remove(indexPath(f.path)) // nobody needs it, and without it the fault is reported only once
	}
	return &FileFault{Path: indexPath(f.path), Err: err, Mended: again == nil}, int64(end - f.first)
}
