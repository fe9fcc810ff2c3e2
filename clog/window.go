package clog

import (
	"errors"

	"penstock/segment/aio"
)

// windowBytes is the size of the reads of recovery and of Scan.
const windowBytes = 4 << 20

// window reads a file front to back in large aligned pieces and shows any range of it. A range that at returned stays
// valid until the next call of at; to keep it longer, retain its Buf. Recovery and a scanner own one each, without a
// lock.
type window struct {
	arena *aio.Arena // nil: memory of the Go heap, for tools
	block int64

	file aio.File
	size int64 // bytes of the file to look at, whole blocks

	buf *aio.Buf
	mem []byte
	off int64 // in the file, of mem[0]
	n   int   // bytes of mem that hold data of the file
}

// open switches to another file and will read its first size bytes.
func (w *window) open(f aio.File, size int64) {
	w.file, w.size, w.n = f, size&^(w.block-1), 0
}

// at returns n bytes from off on, which must lie within the file. Both are multiples of the block.
func (w *window) at(off, n int64) ([]byte, error) {
	if off < w.off || off+n > w.off+int64(w.n) || w.n == 0 {
		want := max(n, min(windowBytes, w.size-off))
		if err := w.grab(int(want)); err != nil {
			return nil, err
		}
		w.off, w.n = off, 0
		if err := w.file.ReadAt(w.mem[:want], off); err != nil {
			return nil, err
		}
		w.n = int(want)
	}
	from := off - w.off
	return w.mem[from : from+n], nil
}

// grab finds memory for n bytes. It reuses its buffer if nobody else retained that buffer.
func (w *window) grab(n int) error {
	if w.arena == nil {
		if len(w.mem) < n {
			w.mem = make([]byte, n)
		}
		return nil
	}
	if w.buf != nil && w.buf.Refs() == 1 && len(w.mem) >= n {
		return nil
	}
	w.release()
	b, err := w.arena.GetLarge(n)
	if errors.Is(err, aio.ErrNoMemory) {
		// The size of the files bounds what recovery reads, and without recovery there is no log. So the limit for
		// large buffers is raised when the replayer keeps more than it allows.
		w.arena.AllowLarge(n)
		b, err = w.arena.GetLarge(n)
	}
	if err != nil {
		return err
	}
	w.buf, w.mem = b, b.Bytes()
	return nil
}

func (w *window) release() {
	if w.buf != nil {
		w.buf.Release()
	}
	w.buf, w.mem, w.n = nil, nil, 0
}
