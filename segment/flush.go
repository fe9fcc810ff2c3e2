package segment

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"penstock/internal/failpoint"
	"penstock/segment/aio"
)

// WriterBytes is the size of the staging buffer, and so of the largest single segment write.
const WriterBytes = 1 << 20

// maxRunCount bounds the batches that Flush takes out of the tail in one pass.
const maxRunCount = 1024

// Writer holds the staging buffer of a flusher. Batches are gathered in it so that segments are written in large
// aligned pieces. One goroutine at a time uses a Writer, for any number of logs.
type Writer struct {
	buf  []byte
	free func()
	run  []Slice
}

// NewWriter makes a writer; Close frees it.
func NewWriter() *Writer {
	buf, free := aio.AlignedBytes(WriterBytes)
	return &Writer{buf: buf, free: free, run: make([]Slice, 0, maxRunCount)}
}

// Close frees the staging buffer.
func (w *Writer) Close() {
	if w.free != nil {
		w.free()
		w.buf, w.free = nil, nil
	}
}

// Unflushed is the number of bytes that no segment file holds yet.
func (l *Log) Unflushed() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int64(l.end.off - l.flushed)
}

// Flushed is the offset below which segment files hold everything, though perhaps not durably.
func (l *Log) Flushed() Offset {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.flushed
}

// Synced is the offset below which segment files hold everything durably.
func (l *Log) Synced() Offset {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.synced
}

// OldestUnsyncedFileSeq returns the commit log file of the oldest batch at or above Synced: that file and all later
// ones are still needed. ok is false if there is no such batch.
func (l *Log) OldestUnsyncedFileSeq() (seq uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.marks.list) == 0 {
		return 0, false
	}
	return l.marks.list[0].seq, true
}

// OldestUnflushedFileSeq returns the commit log file of the oldest batch at or above Flushed. ok is false if there is
// no such batch.
func (l *Log) OldestUnflushedFileSeq() (seq uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if above := l.marks.above(l.flushed, l.end.off); len(above) > 0 {
		return above[0].seq, true
	}
	return 0, false
}

// Flush writes about maxBytes of the tail, in whole batches, to segment files, and returns how many bytes it wrote. The
// bytes are durable after the next Sync. If a batch begins a new segment, Flush first creates the file.
//
// Lack of space (syscall.ENOSPC) and other refusals before a write (EMFILE) lose nothing: call again later. A write
// that fails for another reason poisons the log's files, see ErrPoisoned.
func (l *Log) Flush(w *Writer, maxBytes int64) (n int64, err error) {
	l.io.Lock()
	defer l.io.Unlock()
	if err := l.writable(); err != nil {
		return 0, err
	}
	for n < maxBytes {
		run := l.nextRun(w, maxBytes-n)
		if len(run) == 0 {
			break
		}
		k, err := l.writeRun(w, run)
		clear(run) // the writer must keep no reference to a buffer
		n += k
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// NeedsFile says whether the next Flush has to create a segment file, which takes a file system many times longer than
// a write.
func (l *Log) NeedsFile() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := l.tail.find(l.flushed)
	if i == l.tail.n {
		return false
	}
	n := len(l.segs)
	return n == 0 || l.segs[n-1].number != l.tail.stretchOf(i).segment
}

// MakeFile creates the segment file that the next Flush would create, if any. Its errors may be ignored, because Flush
// meets the same ones. When the files of several logs are created at the same time, they share the file system's
// journal commits.
func (l *Log) MakeFile() error {
	l.io.Lock()
	defer l.io.Unlock()
	if err := l.writable(); err != nil || !l.NeedsFile() {
		return err
	}
	l.mu.Lock()
	s := l.tail.at(l.tail.find(l.flushed)) // it stays in the tail: l.io is held
	l.mu.Unlock()
	head, free := aio.AlignedBytes(l.blockBytes())
	defer free()
	_, err := l.segmentFor(head, &s)
	return err
}

// writable returns the error, if any, because of which the files must not be written. The caller holds l.io.
func (l *Log) writable() error {
	if err := l.usable(); err != nil || l.cut == nil {
		return err
	}
	return l.cut.why
}

// usable returns the error that keeps a cut from being done, as writable does for writes. The caller holds l.io.
func (l *Log) usable() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	return l.poison
}

// poisonWith makes err sticky. The caller holds l.io.
func (l *Log) poisonWith(err error) error {
	l.poison = fmt.Errorf("%w: %w", ErrPoisoned, err)
	l.mu.Lock()
	l.poisoned = l.poison
	l.mu.Unlock()
	return l.poison
}

// nextRun returns the descriptions of the next unflushed batches that go to one segment. The buffers stay valid: Evict
// drops only flushed batches, and everything else that takes batches out of the tail holds l.io.
func (l *Log) nextRun(w *Writer, maxBytes int64) []Slice {
	l.mu.Lock()
	defer l.mu.Unlock()
	run := w.run[:0]
	var size int64
	for i := l.tail.find(l.flushed); i < l.tail.n && len(run) < maxRunCount && size < maxBytes; i++ {
		s := l.tail.at(i)
		if len(run) > 0 && s.Segment != run[0].Segment {
			break
		}
		run = append(run, s)
		size += int64(len(s.Data))
	}
	return run
}

// writeRun writes batches that go to one segment and then counts them as flushed. Until then nobody reads the file's
// bytes from the flushed offset on, so a failure needs no undoing. The caller holds l.io.
func (l *Log) writeRun(w *Writer, run []Slice) (int64, error) {
	f, err := l.segmentFor(w.buf, &run[0])
	if err != nil {
		return 0, err
	}
	if last := &run[len(run)-1]; f.short || int64(last.End()-f.base) > f.capacity {
		if f, err = l.enlarge(f, max(f.capacity, last.SegmentCapacity)); err != nil {
			return 0, err
		}
	}
	l.mu.Lock()
	if _, bad := f.isolated(run[0].Offset); bad { // the file is too short
		defer l.mu.Unlock()
		return 0, l.damageAt(f, run[0].Offset)
	}
	l.mu.Unlock()
	if f, err = l.own(f, 1+int(f.holds.Load())); err != nil {
		return 0, err
	}
	block := int64(l.blockBytes())
	if err := f.reserve(f.at(run[len(run)-1].End()), block); err != nil {
		return 0, l.writeFailed(f, err)
	}
	at := f.at(run[0].Offset)
	st := aio.Stage{File: f.file, Buf: w.buf, Off: at &^ (block - 1)}
	if st.N, err = l.startOfBlock(f, st.Buf, at, block); err != nil {
		return 0, err
	}
	for i := range run {
		if err := st.Add(run[i].Data); err != nil {
			return 0, l.writeFailed(f, err)
		}
	}
	end := st.Off + int64(st.N)
	if err := failpoint.Hit("segment/before-write"); err != nil {
		return 0, l.writeFailed(f, err)
	}
	if err := st.Finish(block); err != nil {
		return 0, l.writeFailed(f, err)
	}
	failpoint.Pass("segment/after-write")
	last := &run[len(run)-1]
	lastBlock := st.Buf[max(end&^(block-1)-st.Off, 0):max(end-st.Off, 0)] // the bytes of it below end
	l.partial, l.partEnd = append(l.partial[:0], lastBlock...), last.End()
	l.mu.Lock()
	for i := range run {
		l.noteIndex(f, &run[i])
	}
	var h Header
	if h.Decode(last.Data) == nil {
		f.lastCRC = h.CRC
	}
	n := int64(last.End() - l.flushed)
	l.flushed = last.End()
	l.mu.Unlock()
	return n, nil
}

// writeFailed tells a full disk, which is temporary, from a failed device, which is not. The caller holds l.io.
func (l *Log) writeFailed(f *segFile, err error) error {
	if aio.NoRoom(err) {
		return fmt.Errorf("segment: no space to write %s; the commit log keeps its bytes until there is: %w", f.path, err)
	}
	return l.poisonWith(fmt.Errorf("writing %s: %w", f.path, err))
}

func (l *Log) blockBytes() int { return max(l.disk.Info().BlockBytes, aio.BlockBytes) }

// startOfBlock copies the bytes that precede file byte at in its block to buf: from memory if the last write left them
// there, else from the file.
func (l *Log) startOfBlock(f *segFile, buf []byte, at, block int64) (int, error) {
	n := int(at & (block - 1))
	if n == 0 {
		return 0, nil
	}
	if l.partial != nil && l.partEnd == f.offset(at) && len(l.partial) == n {
		return copy(buf, l.partial), nil
	}
	if err := f.file.ReadAt(buf[:n], at-int64(n)); err != nil {
		return 0, fmt.Errorf("segment: reading the last block of %s before writing it again: %w", f.path, err)
	}
	return n, nil
}

// openForWrite opens the file and adds it to the dirty ones. The caller holds l.io.
func (l *Log) openForWrite(f *segFile) error {
	if f.file != nil {
		return nil
	}
	file, err := l.disk.Open(f.path)
	if err != nil {
		return fmt.Errorf("segment: %w", err)
	}
	f.file = file
	l.dirty = append(l.dirty, f)
	return nil
}

// segmentFor returns the file that s belongs to. If s is its first batch, segmentFor creates the file, and uses buf (at
// least one block) for the header. The caller holds l.io.
func (l *Log) segmentFor(buf []byte, s *Slice) (*segFile, error) {
	l.mu.Lock()
	var last *segFile
	if n := len(l.segs); n > 0 {
		last = l.segs[n-1]
	}
	l.mu.Unlock()
	if last != nil && last.number == s.Segment {
		if last.broken != nil {
			return nil, last.broken
		}
		if last.base == s.SegmentBase { // its capacity may be less than s says; writeRun checks that
			return last, nil
		}
	}
	if last != nil && last.number >= s.Segment {
		panic(fmt.Sprintf("BUG: segment: batch for segment %d at %d, but %s begins at %d",
			s.Segment, s.SegmentBase, last.path, last.base))
	}
	h := segHeader{
		id: l.id, number: s.Segment, starts: last == nil, base: s.SegmentBase, first: s.Offset,
		firstPos: s.Position, firstID: s.FirstID, firstAppended: s.Appended, capacity: s.SegmentCapacity,
	}
	f, err := l.createSegment(buf, h)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	if last != nil {
		last.sealed = true
	}
	l.segs = append(l.segs, f)
	l.mu.Unlock()
	if last != nil && last.broken == nil {
		l.full = append(l.full, last)
	}
	return f, nil
}

// createSegment creates the file and writes its header block. The name and the header become durable with the next
// Sync: no checkpoint refers to the file before that. A sync of its own would cost the file system a journal commit per
// file.
func (l *Log) createSegment(buf []byte, h segHeader) (*segFile, error) {
	f := newSegFile(l, h)
	f.indexed = true
	if !l.dirReady {
		if err := l.disk.MkdirAll(l.dir); err != nil {
			return nil, fmt.Errorf("segment: %w", err)
		}
		l.dirReady = true
	}
	block := int64(l.blockBytes())
	size := aio.RoundUp(SegmentHeaderBytes+h.capacity, block)
	f.held = h.reserved(size, 0)
	file, err := l.disk.CreateSparse(f.path, size, f.held)
	if errors.Is(err, fs.ErrExist) { // left over from a process that wrote no checkpoint after it
		if err = l.disk.Remove(f.path); err == nil {
			file, err = l.disk.CreateSparse(f.path, size, f.held)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("segment: %w", err)
	}
	head := buf[:block]
	clear(head)
	h.encode(head)
	if err := file.WriteAt(head, 0); err != nil {
		return nil, errors.Join(l.writeFailed(f, err), file.Close(), l.disk.Remove(f.path))
	}
	l.named = true
	f.file = file
	l.dirty = append(l.dirty, f)
	if block > SegmentHeaderBytes {
		l.partial, l.partEnd = append(l.partial[:0], head[:SegmentHeaderBytes]...), h.base
	}
	return f, nil
}

// Sync makes durable what was flushed before the call: afterwards Synced is at least what Flushed was then. Then it
// writes the .idx of segments that became full. If Sync fails, the files are poisoned: bytes that the kernel still
// shows may never reach the device, so the files are neither synced nor written again. Only where the directory could
// not be opened (aio.Refused), nothing was lost, and Sync can be called again.
func (l *Log) Sync() error {
	l.io.Lock()
	defer l.io.Unlock()
	if err := l.writable(); err != nil {
		return err
	}
	return l.sync()
}

// sync syncs the files that were written. Unlike Sync it does not check that they are writable. The caller holds l.io.
func (l *Log) sync() error {
	target := l.Flushed() // cannot move: l.io is held
	for _, f := range l.dirty {
		if err := failpoint.Hit("segment/before-sync"); err != nil {
			return l.poisonWith(err)
		}
		if err := f.file.Sync(); err != nil {
			return l.poisonWith(fmt.Errorf("syncing %s: %w", f.path, err))
		}
		// A file that somebody has removed is synced like any other, and gone with the process. Then the commit log must
		// keep what it holds: without its name and its index, the next Open takes it for one that retention removed.
		if _, err := l.disk.Identify(f.path); err != nil {
			return fmt.Errorf("segment: after the sync of %s: %w", f.path, err)
		}
	}
	failpoint.Pass("segment/after-sync")
	full := l.full
	if err := l.closeFiles(); err != nil { // first: the directory needs a descriptor, too
		return l.poisonWith(err)
	}
	if l.named {
		if err := l.disk.SyncDir(l.dir); err != nil {
			err = fmt.Errorf("syncing %s: %w", l.dir, err)
			if aio.Refused(err) {
				l.full = full
				return fmt.Errorf("segment: %w", err)
			}
			return l.poisonWith(err)
		}
		l.named = false
	}
	l.mu.Lock()
	l.synced = max(l.synced, target)
	l.marks.synced(l.synced, l.end.off)
	l.mu.Unlock()
	for _, f := range full {
		if end, ok := l.endOf(f); ok {
			l.writeIndex(f, end)
		}
	}
	return nil
}

// endOf returns where a full segment ends, which is where the next segment begins.
func (l *Log) endOf(f *segFile) (Offset, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.segs, f); i >= 0 && i+1 < len(l.segs) {
		return l.segs[i+1].base, true
	}
	return 0, false
}

// sealedEnd returns where a pinned segment ends. If retention has taken the segment off the list meanwhile, it returns
// end.
func (l *Log) sealedEnd(f *segFile, end Offset) Offset {
	if e, ok := l.endOf(f); ok {
		return e
	}
	return end
}

// Evict drops flushed slices below upTo from memory, and with them the references to their buffers. From then on their
// bytes are read from the mapping. Any goroutine may call it.
func (l *Log) Evict(upTo Offset) {
	l.dropFront(func() bool { return l.tail.endOf(0) <= min(upTo, l.flushed) })
}

// dropTail drops slices from the front while drop holds.
func (l *Log) dropTail(drop func(s *Slice) bool) {
	l.dropFront(func() bool {
		s := l.tail.at(0)
		return drop(&s)
	})
}

// dropFront drops slices from the front while drop holds. drop is called with l.mu held. Buffers are released without
// the lock, because a release may wake the committer.
func (l *Log) dropFront(drop func() bool) {
	var bufs [64]*aio.Buf
	for more := true; more; {
		n := 0
		l.mu.Lock()
		for range maxRunCount {
			if more = l.tail.n > 0 && n < len(bufs) && drop(); !more {
				break
			}
			if b := l.tail.popFront(); b != nil {
				bufs[n] = b
				n++
			}
		}
		more = more || n == len(bufs)
		l.mu.Unlock()
		for _, b := range bufs[:n] {
			b.Release()
		}
	}
}
