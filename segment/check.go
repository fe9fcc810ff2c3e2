package segment

import (
	"fmt"
	"hash/crc32"
	"slices"

	"penstock/batch"
	"penstock/segment/aio"
)

// CheckBytes is how much Check reads at once, unless a single batch is larger.
const CheckBytes = 1 << 20

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checker holds the buffer of a goroutine that checks logs. One goroutine uses it, for any number of logs.
type Checker struct {
	buf  []byte
	free func()
	sum  uint32
}

// NewChecker makes a checker; Close frees it.
func NewChecker() *Checker {
	buf, free := aio.AlignedBytes(CheckBytes)
	return &Checker{buf: buf, free: free}
}

// Sum is the CRC-32C of all bytes that Check found good since NewChecker, in the order of the calls.
func (c *Checker) Sum() uint32 { return c.sum }

// Close frees the buffer.
func (c *Checker) Close() {
	if c.free != nil {
		c.free()
		c.buf, c.free = nil, nil
	}
}

// room makes the buffer hold n bytes.
func (c *Checker) room(n int64) []byte {
	if int64(len(c.buf)) < n {
		c.free()
		c.buf, c.free = aio.AlignedBytes(int(aio.RoundUp(n, aio.BlockBytes)))
	}
	return c.buf[:n]
}

// Checked is a run of whole batches that verify.
type Checked struct {
	Next     Offset // end of the run
	Bytes    int64
	First    Header // its first batch
	InMemory bool   // no segment holds the batch yet
	Mended   bool   // the device had lost the batch but memory had it: it was written again and is durable
}

// Check reads and verifies a run of about maxBytes that begins at at, a batch boundary. It reads from the device, and
// not from memory that shows what the device once had. The run has at least one batch and never continues into another
// segment. It ends at or before to (0: no bound), unless its first batch alone reaches beyond to. Damage to a batch
// that is still in memory is mended: the batch is written again. Other damage is isolated, and Check returns it as a
// CorruptError, as View does. Check has View's other errors, too. A batch that no segment holds yet is read from the
// tail.
func (l *Log) Check(c *Checker, at Offset, maxBytes int, to Offset) (Checked, error) {
	l.mu.Lock()
	if err := l.within(at); err != nil {
		l.mu.Unlock()
		return Checked{}, err
	}
	if at >= l.flushed {
		l.mu.Unlock()
		return l.checkTail(c, at)
	}
	f, end, err := l.pinUntil(at, l.segmentEnd)
	generation := l.generation
	l.mu.Unlock()
	if err != nil {
		return Checked{}, err
	}
	defer f.release()
	if to <= at {
		to = end
	}
	run, _, err := l.checkFile(c, f, at, end, min(int64(maxBytes), int64(to-at)))
	if err == nil {
		return run, nil
	}
	// Try once more, while nobody writes to the file: a repair may have come in between.
	l.io.Lock()
	run, size, err := l.checkFile(c, f, at, end, min(int64(maxBytes), int64(to-at)))
	l.io.Unlock()
	if err == nil {
		return run, nil
	}
	var v View
	if verr := l.View(&v, at, HeaderBytes); verr != nil {
		return Checked{}, verr // View isolated the damage
	}
	defer v.Release()
	switch {
	case !isDamage(err):
		return Checked{}, err
	case v.buf != nil:
		return l.mend(c, f, &v, generation)
	}
	return Checked{}, l.readFailed(f, f.at(at), size, err) // memory still shows what the device has lost
}

// mend overwrites a batch that the device lost with the copy in memory that v shows. generation is the log's generation
// when f was pinned.
func (l *Log) mend(c *Checker, f *segFile, v *View, generation uint64) (Checked, error) {
	l.io.Lock()
	defer l.io.Unlock()
	if err := l.writable(); err != nil {
		return Checked{}, err
	}
	l.mu.Lock()
	same := l.generation == generation && slices.Contains(l.segs, f)
	l.mu.Unlock()
	if !same {
		return Checked{}, ErrBelowStart // cut, trimmed or copied meanwhile: nobody asks for the old bytes any more
	}
	if err := l.rewrite(c, f, f.at(v.at), v.data); err != nil {
		return Checked{}, err
	}
	run := Checked{Next: v.at + Offset(len(v.data)), Bytes: int64(len(v.data)), Mended: true}
	if err := run.First.Decode(v.data); err != nil {
		return Checked{}, err
	}
	c.sum = crc32.Update(c.sum, castagnoli, v.data)
	return run, nil
}

// rewrite makes data durable at file byte at of f. It uses the checker's buffer. The caller holds l.io.
func (l *Log) rewrite(c *Checker, f *segFile, at int64, data []byte) error {
	f, err := l.own(f, 1)
	if err != nil {
		return err
	}
	l.partial = nil // it may hold damaged bytes
	w := &Writer{buf: c.buf[:len(c.buf)&^(l.blockBytes()-1)]}
	if err := l.overwrite(f, w, at, data); err != nil {
		return l.writeFailed(f, err)
	}
	if err := f.file.Sync(); err != nil {
		return l.poisonWith(fmt.Errorf("syncing %s: %w", f.path, err))
	}
	return nil
}

// checkTail does the work of Check for a batch that is in no segment yet, and so only in memory.
func (l *Log) checkTail(c *Checker, at Offset) (Checked, error) {
	var v View
	if err := l.View(&v, at, HeaderBytes); err != nil {
		return Checked{}, err
	}
	defer v.Release()
	b := v.Bytes()
	run := Checked{Next: at + Offset(len(b)), Bytes: int64(len(b)), InMemory: true}
	if err := run.First.Decode(b); err != nil {
		return Checked{}, err
	}
	c.sum = crc32.Update(c.sum, castagnoli, b)
	return run, nil
}

// checkFile reads and verifies a run of f, which the caller pinned. If the first batch is not good, size is its size,
// or 0 if that is unknown.
func (l *Log) checkFile(c *Checker, f *segFile, at, end Offset, maxBytes int64) (run Checked, size int, err error) {
	file, err := l.disk.Open(f.path)
	if err != nil {
		return run, 0, fmt.Errorf("segment: %w", err)
	}
	defer file.Close()
	want := min(max(maxBytes, HeaderBytes), int64(end-at))
	for {
		data := c.room(want)
		if err := file.ReadAt(data, f.at(at)); err != nil {
			return run, 0, fmt.Errorf("segment: reading %s: %w", f.path, err)
		}
		n, size, err := verifyWhole(data, &run.First)
		switch {
		case n > 0:
			run.Next, run.Bytes = at+Offset(n), int64(n)
			c.sum = crc32.Update(c.sum, castagnoli, data[:n])
			return run, 0, nil
		case err != nil:
			return run, size, err
		case at+Offset(size) > end:
			return run, 0, errCut
		}
		want = int64(size) // a single batch that is larger than the planned read
	}
}

// verifyWhole returns how many bytes of data are whole good batches that continue each other. If there are none, err
// says why; if err is nil, too, the first batch does not fit into data, and size is the batch's size.
func verifyWhole(data []byte, first *Header) (n, size int, err error) {
	var h Header
	var prev link
	for n < len(data) {
		if len(data)-n < HeaderBytes {
			return n, HeaderBytes, nil
		}
		err := h.Decode(data[n:])
		if err == nil && n > 0 && !prev.continuedBy(&h) {
			err = errChain
		}
		if err != nil {
			return n, 0, err
		}
		size = h.Size()
		if n+size > len(data) {
			return n, size, nil
		}
		if err := batch.VerifyBody(&h, data[n+HeaderBytes:n+size]); err != nil {
			return n, size, err
		}
		if n == 0 {
			*first = h
		}
		prev = link{h.Position, h.CRC}
		n += size
	}
	return n, size, nil
}
