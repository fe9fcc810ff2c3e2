package segment

import (
	"errors"
	"io/fs"
	"slices"
	"syscall"
)

// FileFault is a header block or an index that is not what was written.
type FileFault struct {
	Path   string
	Err    error
	Mended bool // it was written again from what the log knows
}

// CheckFiles reads what no batch covers from the device: the header block of each segment and the index of each full
// one. What is damaged is written again, from memory or from the segment; an index that is missing is made without a
// word. pause is called for each segment, without a lock, with the bytes that were read; false ends the check. The
// scrub calls it.
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

// pinBehind pins the first readable segment whose number is greater.
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

// checkHeader compares f's header block with what the log read when it opened the file or wrote when it made it. The
// caller pinned f.
func (l *Log) checkHeader(c *Checker, f *segFile) *FileFault {
	if _, _, err := readSegmentHeader(l.disk, f.path); !errors.Is(err, errSegHeader) {
		return nil // whole; or the file was trimmed meanwhile, or cannot be read just now
	}
	l.io.Lock()
	defer l.io.Unlock()
	_, _, err := readSegmentHeader(l.disk, f.path)
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

func (l *Log) has(f *segFile) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.segs, f)
}

// checkIndex reads f's index, if f is full and has had one, and makes it anew where it is not whole. The caller pinned
// f.
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
		return nil, 0 // it was trimmed or cut, or its index comes with the next sync
	}
	_, err = l.readIndex(f, end)
	missing := errors.Is(err, fs.ErrNotExist)
	if err == nil || !missing && !errors.Is(err, errIndex) && !errors.Is(err, syscall.EIO) {
		return nil, 0
	}
	l.mu.Lock()
	f.index, f.indexed = nil, false // from the batches: what is in memory may be of that file
	l.mu.Unlock()
	l.writeIndex(f, end)
	_, again := l.readIndex(f, end)
	if missing {
		return nil, 0
	}
	if again != nil {
		_ = l.disk.Remove(indexPath(f.path)) // nobody misses it, and it is told once
	}
	return &FileFault{Path: indexPath(f.path), Err: err, Mended: again == nil}, int64(end - f.first)
}
