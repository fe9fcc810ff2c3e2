package segment

import (
	"errors"
	"fmt"

	"penstock/batch"
	"penstock/segment/aio"
)

// View pins a run of whole, verified batches until Release or Keep. It is reusable (View, Release, View, ...) and then
// allocates nothing. It belongs to one goroutine at a time. The zero value is ready to use.
//
// Bytes from the tail are the commit log's buffers themselves. Bytes from a segment are a copy, made before it was
// verified, so that verified bytes stay good whatever becomes of the device.
type View struct {
	data []byte
	at   Offset
	buf  *aio.Buf // pinned, if the bytes are from the tail
	own  *copied  // the copy, if the bytes are from a segment
	seg  *segFile // the segment of that copy, pinned; nil after Keep

	run verifier

	// Where the last run from a segment ended. A view that continues there checks the chain across the two runs.
	log        *Log
	generation uint64 // generation of log at that time: a cut invalidates the fields below
	next       Offset
	last       link
}

// link is what the header of the next batch must match. It is a copy of two fields, because a whole header is slow to
// copy.
type link struct {
	pos Position
	crc uint32
}

func (k link) continuedBy(h *Header) bool { return h.Position == k.pos+1 && h.PrevCRC == k.crc }

// Bytes returns the run: whole batches, back to back. It is valid until Release and must not be written to.
func (v *View) Bytes() []byte { return v.data }

// Release gives up the bytes. Releasing an empty View does nothing.
func (v *View) Release() {
	buf, seg, own := v.buf, v.seg, v.own
	v.data, v.buf, v.seg, v.own = nil, nil, nil, nil
	if own != nil {
		own.free()
	}
	if buf != nil {
		buf.Release()
	}
	if seg != nil {
		seg.release()
	}
}

// Keep is Release for a reader that will soon go on within the run. A channel calls it after each run that it has read.
// If the bytes are a copy, v keeps them for Again, and pins nothing of the log. Keep returns the size of the memory
// that v keeps, 0 if it released everything: bytes of the tail belong to the commit log, which needs its buffers back.
func (v *View) Keep() int {
	if v.own == nil {
		v.Release()
		return 0
	}
	if v.seg != nil {
		v.seg.release()
		v.seg = nil
	}
	return len(v.own.bytes)
}

// Again makes v show the bytes that it kept, from at on, which must be a batch boundary. They were verified by View and
// are not verified again. Again returns false if v keeps nothing for at, or the log has been cut or no longer begins
// before at; then the caller must call Release and View.
func (l *Log) Again(v *View, at Offset) bool {
	if v.own == nil || v.seg != nil || v.log != l || at < v.at || at >= v.at+Offset(len(v.data)) {
		return false
	}
	l.mu.Lock()
	same := v.generation == l.generation && l.within(at) == nil
	l.mu.Unlock()
	if same {
		v.data, v.at = v.data[at-v.at:], at
	}
	return same
}

// Messages reduces the run to its batches of messages below the id until: it takes out control batches, and ends before
// the first batch that has a message at or above until. It returns the offset behind the last batch that it looked at,
// and the id of the message that follows there. What is left is back to back, no longer as it lies in the log; so the
// view is only good for Bytes and Release afterwards.
func (v *View) Messages(until MsgID) (next Offset, id MsgID, err error) {
	var h Header
	begin, end, read := 0, 0, 0 // the batches that stay are data[begin:end]; data[:read] was looked at
	for read < len(v.data) {
		if err = h.Decode(v.data[read:]); err != nil || h.NextID() > until {
			break
		}
		size := h.Size()
		switch {
		case h.Control():
		case begin == end:
			begin, end = read, read+size
		default:
			if end != read { // there was a control batch in between; v.data is a copy, since the tail gives single batches
				copy(v.data[end:], v.data[read:read+size])
			}
			end += size
		}
		read, id = read+size, h.NextID()
	}
	v.data = v.data[begin:end]
	return v.at + Offset(read), id, err
}

// verifier copies batches out of a mapping and checks them, from at until limit or the first batch that is bad.
type verifier struct {
	m         aio.Mapping
	at, limit int64 // file bytes; at moves over each good batch
	window    int64 // end of the wanted range: the run ends there once it has a batch
	from      int64 // where the run begins
	own       *copied
	ready     int64 // bytes up to here are copied
	must      bool  // the run has no batch yet, so the window does not limit it
	chained   bool  // prev is the batch that ends at at
	prev      link
	h         Header // of the batch at at
	sized     bool   // h is valid and in its place, so the size of a bad batch is known
}

// View pins the run that begins at at, which must be a batch boundary. From the tail the run is one batch; from a
// segment it is as many batches as fit in maxBytes, but always at least one, however large.
//
// View verifies bytes from a segment whole, header and body, before it returns. If the batch at at is damaged, the
// error is a CorruptError, and later calls return the same one: a reader must stop or step over the batch, not try
// again. Other errors: ErrBelowStart, ErrAtEnd, ErrPastEnd, ErrNotBoundary, ErrClosed, or one of the environment (no
// memory, no descriptors). On an error v holds nothing.
func (l *Log) View(v *View, at Offset, maxBytes int) error {
	if v.buf != nil || v.own != nil {
		panic("BUG: segment: View was not released")
	}
	l.mu.Lock()
	if err := l.within(at); err != nil {
		l.mu.Unlock()
		return err
	}
	if l.tail.n > 0 && at >= l.tail.offset(0) {
		err := l.viewTail(v, at)
		l.mu.Unlock()
		return err
	}
	f, end, err := l.pinAt(at)
	generation := l.generation
	l.mu.Unlock()
	if err != nil {
		return err
	}
	if v.log != l || v.generation != generation || v.next != at {
		v.log, v.generation, v.next = l, generation, -1
	}
	if err := l.viewMapped(v, f, at, end, maxBytes); err != nil {
		f.release()
		return err
	}
	return nil
}

// within returns the error for a place where nothing can be read, or nil. The caller holds l.mu.
func (l *Log) within(at Offset) error {
	switch {
	case l.closed:
		return ErrClosed
	case at > l.end.off:
		return ErrPastEnd
	case at == l.end.off:
		return ErrAtEnd
	case at < l.start.off:
		return ErrBelowStart
	}
	return nil
}

// viewTail fills v with the batch at at, which must be in the tail. The caller holds l.mu.
func (l *Log) viewTail(v *View, at Offset) error {
	i := l.tail.find(at)
	if i == l.tail.n || l.tail.offset(i) != at {
		return fmt.Errorf("%w: offset %d", ErrNotBoundary, at)
	}
	s := l.tail.at(i)
	s.Buf.Retain()
	v.data, v.at, v.buf = s.Data, at, s.Buf
	return nil
}

// mappedEnd is how far segment i may be read through its mapping: not into the next segment, and not where the tail
// holds the bytes, because those may be just being written to the file. The caller holds l.mu.
func (l *Log) mappedEnd(i int) Offset {
	end := l.segmentEnd(i)
	if l.tail.n > 0 {
		end = min(end, l.tail.offset(0))
	}
	return end
}

// segmentAt returns the index of the last segment for which begins holds, or -1. begins must hold for a prefix of the
// list. The caller holds l.mu.
func (l *Log) segmentAt(begins func(f *segFile) bool) int {
	lo, hi := 0, len(l.segs)
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); begins(l.segs[mid]) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo - 1
}

// pinAt pins the segment that holds at, for reading up to end. The caller holds l.mu and knows that at is within the
// log and below the tail.
func (l *Log) pinAt(at Offset) (f *segFile, end Offset, err error) {
	return l.pinUntil(at, l.mappedEnd)
}

// pinUntil pins the segment that holds offset at, like pinAt. The caller may read segment i up to endOf(i). The caller
// holds l.mu.
func (l *Log) pinUntil(at Offset, endOf func(i int) Offset) (f *segFile, end Offset, err error) {
	i := l.segmentAt(func(f *segFile) bool { return f.base <= at })
	if i < 0 {
		return nil, 0, ErrBelowStart
	}
	f = l.segs[i]
	if f.broken != nil {
		return nil, 0, f.broken
	}
	if _, bad := f.isolated(at); bad {
		return nil, 0, l.damageAt(f, at)
	}
	if end = f.goodUntil(at, endOf(i)); end <= at {
		return nil, 0, fmt.Errorf("%w: offset %d", ErrNotBoundary, at)
	}
	l.clock++
	f.used = l.clock
	f.pin()
	return f, end, nil
}

// viewMapped fills v from the mapping of f, which the caller pinned. On an error the pin stays with the caller.
func (l *Log) viewMapped(v *View, f *segFile, at, end Offset, maxBytes int) error {
	m, err := l.mapSegment(f)
	if err != nil {
		return err
	}
	from := f.at(at)
	r := &v.run
	r.m, r.from, r.at, r.ready, r.limit = m, from, from, from, min(f.at(end), m.Size())
	r.window = min(from+int64(max(maxBytes, HeaderBytes)), r.limit)
	r.must, r.sized = true, false
	if r.chained = v.next == at; r.chained {
		r.prev = v.last
	}
	r.own = copyBuffer(r.window - from)
	err = r.verify()
	own := r.own
	r.m, r.own = nil, nil
	size := 0
	if r.sized {
		size = r.h.Size()
	}
	if r.at == from {
		own.free()
		if err == nil {
			return f.corrupt(from, errGap)
		}
		return l.judge(f, at, end, size, err)
	}
	if err != nil && isDamage(err) {
		_ = l.readFailed(f, r.at, size, err) // isolates the batch: a view that continues there gets this damage
	}
	n := r.at - from
	v.data, v.at, v.own, v.seg = own.bytes[:n:n], at, own, f
	v.next, v.last = at+Offset(len(v.data)), r.prev
	return nil
}

// judge tells damage at at from a wrong offset of the caller: it walks to at from a known batch boundary.
func (l *Log) judge(f *segFile, at, end Offset, size int, cause error) error {
	if !isDamage(cause) {
		return cause // of the environment: it says nothing about the bytes
	}
	from, err := l.startingPoint(f, end, func(e *indexEntry) bool { return e.off <= at })
	if err != nil {
		return err
	}
	var off Offset
	err = l.scan(f, from, end, func(o Offset, _ *Header) bool { off = o; return o < at })
	switch {
	case off == at:
		return l.readFailed(f, f.at(at), size, cause)
	case err != nil: // the walk met damage, at at or before it
		return l.scanned(f, err)
	}
	return fmt.Errorf("%w: offset %d", ErrNotBoundary, at)
}

func isDamage(err error) bool {
	return errors.Is(err, ErrInvalid) || errors.Is(err, ErrUnwritten) || errors.Is(err, aio.ErrMedia)
}

var (
	errChain = fmt.Errorf("%w: it does not continue the batch before it", ErrInvalid)
	errGap   = fmt.Errorf("%w: the file ends here, and that of the next segment is missing", ErrInvalid)
	errCut   = fmt.Errorf("%w: it reaches beyond the end of its range", ErrInvalid)
)

// verify moves r.at over whole good batches. It returns nil when the window is full, and the reason at the first batch
// that is not good.
func (r *verifier) verify() error {
	for ; r.at < r.limit; r.must = false {
		if !r.must && r.at+HeaderBytes > r.window {
			return nil
		}
		r.sized = false
		need := r.at + HeaderBytes
		if r.must {
			need = max(need, min(r.window, r.at+fillBytes)) // one read for all of most batches
		}
		if err := r.fill(min(need, r.limit)); err != nil {
			return err
		}
		if err := r.h.Decode(r.copied(r.at, r.ready)); err != nil {
			return err
		}
		end := r.at + int64(r.h.Size())
		switch {
		case end > r.limit:
			return errCut
		case r.chained && !r.prev.continuedBy(&r.h):
			return errChain
		case end > r.window && !r.must:
			return nil
		}
		r.sized = true
		if end > r.ready {
			if err := r.fill(max(end, min(r.window, r.at+fillBytes))); err != nil {
				return err
			}
		}
		if err := batch.VerifyBody(&r.h, r.copied(r.at+HeaderBytes, end)); err != nil {
			return err
		}
		r.at, r.prev, r.chained = end, link{r.h.Position, r.h.CRC}, true
	}
	return nil
}

// fillBytes is how much verify copies at once, unless a batch is longer. A copy of the whole window would include the
// beginning of a batch that ends beyond it, in vain: nearly half of all bytes if batches are a little longer than half
// of the window.
const fillBytes = 256 << 10

// fill copies bytes up to file byte to.
func (r *verifier) fill(to int64) error {
	if to <= r.ready {
		return nil
	}
	r.own = r.own.grown(r.ready-r.from, to-r.from)
	if err := r.m.Copy(r.own.bytes[r.ready-r.from:to-r.from], r.ready); err != nil {
		return err
	}
	r.ready = to
	return nil
}

// copied returns the copy of the file's bytes [from, to).
func (r *verifier) copied(from, to int64) []byte { return r.own.bytes[from-r.from : to-r.from] }

// readFailed turns the error of reading the batch that begins at file byte at into the error that the caller gets. It
// isolates damage: size bytes if the batch's size is known, else up to the next indexed batch or the end of the
// segment. The caller holds a pin on f and no lock.
func (l *Log) readFailed(f *segFile, at int64, size int, err error) error {
	if !isDamage(err) {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.isolate(f, f.offset(at), size, err)
}

// mapSegment maps f, which the caller pinned. If too many segments are mapped then, it unmaps idle ones.
func (l *Log) mapSegment(f *segFile) (aio.Mapping, error) {
	if f.isMapped.Load() {
		return f.mapped()
	}
	m, err := f.mapped()
	l.shedMappings(l.opts.MaxMappedSegments)
	l.opts.Mappings.shed()
	return m, err
}

// shedMappings unmaps segments that nobody reads, least recently used first, until at most keep stay mapped. It also
// drops the indexes of the sealed ones.
func (l *Log) shedMappings(keep int) {
	for {
		l.mu.Lock()
		var oldest *segFile
		mapped := 0
		for _, f := range l.segs {
			if !f.isMapped.Load() {
				continue
			}
			mapped++
			if f.refs.Load() == 1 && (oldest == nil || f.used < oldest.used) {
				oldest = f
			}
		}
		if mapped <= keep || oldest == nil {
			l.mu.Unlock()
			return
		}
		m := oldest.takeMapping() // refs is 1, and pins are taken under l.mu: nobody maps it meanwhile
		if oldest.sealed {
			oldest.index, oldest.indexed = nil, false
		}
		l.mu.Unlock()
		_ = m.Unmap()
	}
}

// Unmap unmaps all segments that nobody reads, which frees address space: a process may have only 65,530 mappings.
// Reading maps a segment again.
func (l *Log) Unmap() { l.shedMappings(0) }
