package segment

import (
	"errors"
	"fmt"

	"penstock/batch"
	"penstock/segment/aio"
)

// Repair writes the good bytes of an isolated range, fetched from a peer, over the damaged ones and serves the range
// again. r is one of Isolated, or the beginning of one, and data is exactly its bytes: whole batches that verify and
// continue each other. Repair returns when they are durable. If r covers only the beginning, the rest of the isolated
// range stays isolated. A file that has another name, as a backup gives it, is not written: the repair goes to a copy,
// which takes the file's place.
//
// A segment file that is missing or not ours cannot be repaired in place: truncate the log below it and catch up. After
// an error the range stays isolated.
func (l *Log) Repair(w *Writer, r Range, data []byte) error {
	l.io.Lock()
	defer l.io.Unlock()
	if err := l.writable(); err != nil {
		return err
	}
	f, err := l.damagedIn(r)
	if err != nil {
		return err
	}
	defer func(pinned *segFile) { pinned.release() }(f)
	if int64(len(data)) != int64(r.To-r.From) {
		return fmt.Errorf("%w: %d bytes to repair a range of %d; nothing was changed", ErrInvalid, len(data), r.To-r.From)
	}
	if err := verifyRun(data); err != nil {
		return err
	}
	if f, err = l.own(f, 1); err != nil {
		return err
	}
	l.partial = nil // it may hold bytes of the damaged range
	if err := l.overwrite(f, w, f.at(r.From), data); err != nil {
		return l.writeFailed(f, err)
	}
	if err := f.file.Sync(); err != nil {
		return l.poisonWith(fmt.Errorf("syncing %s: %w", f.path, err))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.serveAgain(f, r, errUnrepaired)
	return nil
}

var errUnrepaired = errors.New("a damaged range was repaired up to here")

// damagedIn finds and pins the segment in which r is an isolated range, or the beginning of one.
func (l *Log) damagedIn(r Range) (*segFile, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := l.segmentAt(func(f *segFile) bool { return f.base <= r.From }); i >= 0 {
		f := l.segs[i]
		if f.broken != nil {
			return nil, f.broken
		}
		if s, ok := f.isolated(r.From); ok && s.from == r.From && r.From < r.To && r.To <= min(s.to, l.segmentEnd(i)) {
			f.pin()
			return f, nil
		}
	}
	return nil, fmt.Errorf("segment: [%d, %d) is not an isolated range; nothing was changed", r.From, r.To)
}

// verifyRun checks that data is whole batches that verify and continue each other.
func verifyRun(data []byte) error {
	var it BatchIter
	var prev link
	n := 0
	for it.Reset(data); ; n++ {
		h, body, ok := it.Next()
		if !ok {
			return it.Err()
		}
		if n > 0 && !prev.continuedBy(h) {
			return errChain
		}
		if err := batch.VerifyBody(h, body); err != nil {
			return err
		}
		prev = link{h.Position, h.CRC}
	}
}

// overwrite writes data at file byte at and preserves the neighbouring bytes in the first and last block.
func (l *Log) overwrite(f *segFile, w *Writer, at int64, data []byte) error {
	block := int64(l.blockBytes())
	st := aio.Stage{File: f.file, Buf: w.buf, Off: at &^ (block - 1)}
	if st.N = int(at - st.Off); st.N > 0 {
		if err := f.file.ReadAt(st.Buf[:st.N], st.Off); err != nil {
			return err
		}
	}
	if err := st.Add(data); err != nil {
		return err
	}
	end := at + int64(len(data))
	if rest := aio.RoundUp(end, block) - end; rest > 0 {
		last, free := aio.AlignedBytes(int(block))
		defer free()
		if err := f.file.ReadAt(last, end&^(block-1)); err != nil {
			return err
		}
		if err := st.Add(last[block-rest:]); err != nil {
			return err
		}
	}
	return st.Finish(block)
}
