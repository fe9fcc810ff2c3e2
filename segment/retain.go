package segment

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"sync/atomic"
	"syscall"

	"penstock/segment/aio"
)

// trashDir is where removed files wait for their last reader. The engine empties it when it starts.
const trashDir = "trash"

// trashCount makes trash names of one process unique.
var trashCount atomic.Uint64

func (l *Log) trashName(number uint32) string {
	return fmt.Sprintf("%s/%s-%d-%010d-%d.seg", trashDir, l.id.Topic, l.id.Partition, number, trashCount.Add(1))
}

// SegmentInfo describes one segment file.
type SegmentInfo struct {
	Path          string // relative to the data directory
	Number        uint32
	Start, End    Offset // of its flushed batches
	FirstPosition Position
	FirstID       MsgID
	FirstAppended int64 // ns since 1970; a segment is as old as the first batch of the next one
	FileBytes     int64
	Mapped        bool
	Pins          int   // views of it that are not released yet
	Err           error // if not nil, nothing in it can be read
}

// Segments lists the segment files in log order.
func (l *Log) Segments() []SegmentInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]SegmentInfo, len(l.segs))
	for i, f := range l.segs {
		out[i] = SegmentInfo{
			Path: f.path, Number: f.number, Start: f.first, End: l.segmentEnd(i), FirstPosition: f.firstPos, FirstID: f.firstID,
			FirstAppended: f.firstAppended, FileBytes: f.fileBytes(), Mapped: f.isMapped.Load(), Pins: int(f.refs.Load()) - 1,
		}
		if f.broken != nil {
			out[i].Err = f.broken
		}
	}
	return out
}

func (f *segFile) fileBytes() int64 {
	if f.broken != nil {
		return 0
	}
	return SegmentHeaderBytes + f.capacity
}

// Bytes is the size of the log, from its start to its end.
func (l *Log) Bytes() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int64(l.end.off - l.start.off)
}

// Trim removes whole segments below to, oldest first, and returns the bytes of the removed files. It never removes the
// last segment. The log then starts with the first segment that stays. Views of removed segments stay valid; a removed
// file is unlinked when its last view is released. After an error the log is as if to had been smaller.
//
// to must be below the End of the last durable checkpoint: an Open with that checkpoint needs the file in which its
// last byte is. Each removal is durable before the next begins, so that a crash cannot leave a gap, and so is the note
// that says where the log begins then.
func (l *Log) Trim(to Offset) (removedBytes int64, err error) {
	l.io.Lock()
	defer l.io.Unlock()
	for {
		l.mu.Lock()
		if l.closed {
			l.mu.Unlock()
			return removedBytes, ErrClosed
		}
		if len(l.segs) < 2 || l.segs[1].base > to || l.segs[1].base >= l.synced {
			// a batch of the next segment must be durable, and not only the segment's name
			l.mu.Unlock()
			return removedBytes, nil
		}
		f, next := l.segs[0], l.segs[1]
		l.mu.Unlock()
		if f.broken != nil { // it may stand in for missing files
			if err := l.removeIndexesBelow(f.number); err != nil {
				return removedBytes, err
			}
		}
		noted, err := l.noteStart(f.number + 1)
		if err == nil {
			err = l.moveToTrash(f, noted)
		}
		if err != nil {
			return removedBytes, err
		}
		l.mu.Lock()
		l.segs = slices.Delete(l.segs, 0, 1)
		l.start = place{next.first, next.firstPos, next.firstID}
		l.dropDamage(func(at Offset) bool { return at < next.first })
		l.mu.Unlock()
		l.dropTail(func(s *Slice) bool { return s.Offset < next.first })
		l.forget(f)
		removedBytes += f.fileBytes()
		f.release()
	}
}

// moveToTrash durably removes the file's name from the log's directory, and the name of its index before that: where an
// index is left without its file, Open knows that the file is missing. noted says that there is a new note (noteStart),
// which has to be durable first, too. The caller holds l.io.
func (l *Log) moveToTrash(f *segFile, noted bool) error {
	if err := l.disk.MkdirAll(trashDir); err != nil {
		return fmt.Errorf("segment: %w", err)
	}
	switch err := l.disk.Remove(indexPath(f.path)); {
	case err == nil, errors.Is(err, fs.ErrNotExist) && noted:
		if err := l.syncDir(); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("segment: removing the index of %s: %w", f.path, err)
	}
	if err := f.rename(l.trashName(f.number)); err != nil {
		return fmt.Errorf("segment: removing %s: %w", f.path, err)
	}
	return l.syncDir()
}

// removeIndexesBelow removes the indexes of segments with lower numbers. The caller holds l.io, or the log is not open.
func (l *Log) removeIndexesBelow(number uint32) error {
	have, err := listFiles(l.disk, l.dir)
	for _, n := range have.indexes {
		if err == nil && n < number {
			err = l.disk.Remove(indexPath(path.Join(l.dir, segmentName(n))))
		}
	}
	if err != nil {
		return fmt.Errorf("segment: removing the indexes below number %d in %s: %w", number, l.dir, err)
	}
	return nil
}

func (l *Log) syncDir() error {
	if err := l.disk.SyncDir(l.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("segment: syncing %s: %w", l.dir, err)
	}
	return nil
}

// rename moves the file into the trash. A reader that has pinned the file and not mapped it yet finds it there. The
// caller holds l.io.
func (f *segFile) rename(trash string) error {
	f.mapMu.Lock()
	if f.trashed != "" { // moved by an earlier attempt that failed later
		f.mapMu.Unlock()
		return nil
	}
	f.trashing = trash
	f.mapMu.Unlock()
	err := f.log.disk.Rename(f.path, trash)
	f.mapMu.Lock()
	defer f.mapMu.Unlock()
	switch {
	case errors.Is(err, fs.ErrNotExist) && f.broken != nil:
		err = nil // a file that is missing need not be removed
	case err == nil && f.broken == nil:
		f.trashed = trash
	}
	// A file that is not ours, or was damaged, stays in the trash until the next start.
	f.trashing = ""
	return err
}

// forget removes a segment that left the log from the writer's lists. The caller holds l.io.
func (l *Log) forget(f *segFile) {
	if f.file != nil {
		_ = f.file.Close()
		f.file = nil
	}
	l.dirty = without(l.dirty, f)
	l.full = without(l.full, f)
}

func without(list []*segFile, f *segFile) []*segFile {
	return slices.DeleteFunc(list, func(g *segFile) bool { return g == f })
}

// dropDamage forgets the damage at the offsets for which gone holds. The caller holds l.mu.
func (l *Log) dropDamage(gone func(at Offset) bool) {
	l.damage = slices.DeleteFunc(l.damage, func(d damage) bool { return gone(d.at) })
}

// Truncate cuts the log back to st, whose End is a batch boundary within the log. st must be the state that the
// partition had when its log ended at st.End. Append continues from there. Readers of the removed bytes keep them until
// they release them: no mapped file is shortened or overwritten.
//
// In memory the cut takes effect at once; the segments above it leave the directory before Truncate returns. The cut is
// not recorded in the log's files: the caller records it in the commit log, whose replay cuts again after a crash.
// Errors: ErrBelowStart, ErrPastEnd (nothing was cut), one that Waiting knows, after which the caller calls again with
// the same st, or one of the environment, after which the files are poisoned.
func (l *Log) Truncate(st State) error {
	l.io.Lock()
	defer l.io.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	if l.cut != nil && l.cut.st == st {
		return l.finishCut()
	}
	l.mu.Lock()
	if st.End > l.end.off || st.End < l.start.off {
		defer l.mu.Unlock()
		if st.End > l.end.off {
			return fmt.Errorf("%w: cut at %d, end %d", ErrPastEnd, st.End, l.end.off)
		}
		return fmt.Errorf("%w: cut at %d, start %d", ErrBelowStart, st.End, l.start.off)
	}
	c := &unfinishedCut{st: st, wasFlushed: l.flushed}
	c.gone = l.cutMemory(st)
	l.mu.Unlock()
	l.dropTailBack(st.End)
	if l.partEnd != l.Flushed() {
		l.partial = nil
	}
	l.beginCut(c)
	return l.finishCut()
}

// cutMemory moves the end, flushed, synced and the marks back to st and takes the segments above it out of the list.
// The caller holds l.mu.
func (l *Log) cutMemory(st State) (gone []*segFile) {
	keep := len(l.segs)
	for keep > 0 && l.segs[keep-1].base >= st.End {
		keep--
	}
	gone = append(gone, l.segs[keep:]...)
	clear(l.segs[keep:])
	l.segs = l.segs[:keep]
	l.setEnd(st)
	l.generation++
	l.flushed = min(l.flushed, st.End)
	l.synced = min(l.synced, st.End)
	l.marks.cut(st.End)
	l.dropDamage(func(at Offset) bool { return at >= st.End })
	if keep == 0 { // then all of it was in memory, or st.End is the start
		return gone
	}
	f := l.segs[keep-1]
	f.sealed, f.lastCRC = false, st.LastCRC
	for n := len(f.index); n > 0 && f.index[n-1].off >= st.End; n-- {
		f.index = f.index[:n-1]
	}
	for n := len(f.bad); n > 0 && f.bad[n-1].from >= st.End; n-- {
		f.bad = f.bad[:n-1]
	}
	return gone
}

// dropTailBack drops the slices at or above end from the back of the tail.
func (l *Log) dropTailBack(end Offset) {
	for {
		l.mu.Lock()
		if l.tail.n == 0 || l.tail.offset(l.tail.n-1) < end {
			l.mu.Unlock()
			return
		}
		buf := l.tail.popBack()
		l.mu.Unlock()
		if buf != nil {
			buf.Release()
		}
	}
}

// reopenCut prepares the segment that contains the cut for being written again, or a file for an empty log. If the
// segment's file holds bytes above the cut and somebody reads it, the log continues in a copy, and the reader keeps the
// old file. The caller holds l.io.
func (l *Log) reopenCut(c *unfinishedCut) error {
	l.mu.Lock()
	var f *segFile
	read, empty := false, l.start.off == c.st.End
	if n := len(l.segs); n > 0 {
		f = l.segs[n-1]
		read = f.refs.Load() > 1 && c.wasFlushed > c.st.End
	}
	l.mu.Unlock()
	if c.anchors = c.anchors || f == nil && empty; c.anchors {
		return l.anchor(c.st)
	}
	if f == nil || f.broken != nil || c.wasFlushed <= c.st.End {
		return nil
	}
	l.full = without(l.full, f)
	if err := l.disk.Remove(indexPath(f.path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the index of %s: %w", f.path, err)
	}
	if read {
		_, err := l.replaceByCopy(f, c.st.End, f.capacity)
		return err
	}
	return nil
}

// enlarge gives f, the newest segment, room for capacity bytes. A leader that knows that a large batch is coming gives
// the segment room for it already with the segment's first batch. A copy that restarts between the two batches cannot
// learn this from its commit log, and creates the file with the usual capacity. enlarge copies the file: the old file
// stays whole until the new one takes its place.
func (l *Log) enlarge(f *segFile, capacity int64) (*segFile, error) {
	l.mu.Lock()
	end := l.flushed
	l.mu.Unlock()
	g, err := l.replaceByCopy(f, end, capacity)
	return g, l.copyFailed(err)
}

// copyFailed tells a refusal, which is temporary, from a failed device. The caller holds l.io.
func (l *Log) copyFailed(err error) error {
	switch {
	case err == nil:
		return nil
	case aio.Shortage(err):
		return err
	}
	return l.poisonWith(err)
}

// own opens f for writing in place. If its file has more than names names, somebody else, like a backup, holds it under
// another one, and must not see the write: then f is replaced by a copy, which own returns. The caller holds l.io.
func (l *Log) own(f *segFile, names int) (*segFile, error) {
	if err := l.openForWrite(f); err != nil {
		return nil, err
	}
	links, err := f.file.Links()
	if err != nil {
		return nil, fmt.Errorf("segment: %w", err)
	}
	if links <= names {
		return f, nil
	}
	l.mu.Lock()
	end := l.flushed
	if i := slices.Index(l.segs, f); i+1 < len(l.segs) {
		end = min(end, l.segs[i+1].base)
	}
	l.mu.Unlock()
	if f, err = l.replaceByCopy(f, end, f.capacity); err != nil {
		return nil, l.copyFailed(err)
	}
	return f, l.openForWrite(f)
}

// replaceByCopy replaces f by a copy that is cut at end and has room for capacity bytes, and returns the copy. The
// contents of the copy are on stable storage. The caller holds l.io.
func (l *Log) replaceByCopy(f *segFile, end Offset, capacity int64) (*segFile, error) {
	f.pin()
	defer f.release()
	if _, err := l.mapSegment(f); err != nil { // map f now: a reader with a pin must not map the copy later
		return nil, err
	}
	if err := l.openForWrite(f); err != nil {
		return nil, err
	}
	h := f.segHeader
	h.capacity = capacity
	if err := l.copySegment(f, &h, end); err != nil {
		return nil, fmt.Errorf("copying %s: %w", f.path, err)
	}
	g := newSegFile(l, h)
	if slices.Contains(l.full, f) {
		l.full = append(l.full, g)
	}
	l.forget(f)
	l.mu.Lock()
	g.bad, g.index, g.indexed, g.lastCRC, g.sealed = slices.Clone(f.bad), f.index, f.indexed, f.lastCRC, f.sealed
	l.segs[slices.Index(l.segs, f)] = g
	l.mu.Unlock()
	f.release()
	return g, nil
}

// copySegment writes the header h and f's bytes below end to a new file, which then takes f's name.
func (l *Log) copySegment(f *segFile, h *segHeader, end Offset) (err error) {
	w := NewWriter()
	defer w.Close()
	tmp := f.path + ".cut"
	if err := l.disk.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	block := int64(l.blockBytes())
	size := aio.RoundUp(SegmentHeaderBytes+h.capacity, block)
	file, err := l.disk.CreateSparse(tmp, size, h.reserved(size, f.at(end)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	used := f.at(end)
	for at := int64(0); at < used && err == nil; at += WriterBytes {
		n := min(used-at, WriterBytes)
		padded := aio.RoundUp(n, block)
		clear(w.buf[n:padded])
		if err = f.readForCopy(w.buf[:n], at, block); err != nil {
			break
		}
		if at == 0 {
			clear(w.buf[:SegmentHeaderBytes])
			h.encode(w.buf[:SegmentHeaderBytes])
		}
		err = file.WriteAt(w.buf[:padded], at)
	}
	if err == nil {
		err = file.Sync()
	}
	if err == nil {
		err = l.disk.Rename(tmp, f.path)
	}
	if err == nil {
		err = l.disk.SyncDir(path.Dir(f.path))
	}
	return err
}

// readForCopy reads the bytes at file byte at for a copy. A block that the device cannot read becomes zeros: it is
// damaged in the copy as it was before.
func (f *segFile) readForCopy(p []byte, at, block int64) error {
	if err := f.file.ReadAt(p, at); !errors.Is(err, syscall.EIO) {
		return err
	}
	for len(p) > 0 {
		n := min(int64(len(p)), block)
		if err := f.file.ReadAt(p[:n], at); errors.Is(err, syscall.EIO) {
			clear(p[:n])
		} else if err != nil {
			return err
		}
		p, at = p[n:], at+n
	}
	return nil
}
