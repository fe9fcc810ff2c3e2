package segment

import (
	"errors"
	"fmt"
	"io"

	"penstock/batch"
)

// FileStart is what the header block of a segment file says about the file's place in the log.
type FileStart struct {
	Number        uint32
	Starts        bool // files with lower numbers are not part of the log
	Base, First   Offset
	FirstID       MsgID
	CapacityBytes int64
}

// FileName returns the name of segment number in its directory.
func FileName(number uint32) string { return segmentName(number) }

// ReadStart reads the header block of the file of a segment.
func ReadStart(r io.ReaderAt, id Identity, number uint32) (FileStart, error) {
	var h segHeader
	p := make([]byte, SegmentHeaderBytes)
	if _, err := r.ReadAt(p, 0); err != nil {
		return FileStart{}, fmt.Errorf("%w: %w", errSegHeader, err)
	}
	if err := h.decode(p); err != nil {
		return FileStart{}, fmt.Errorf("%w: %w", errSegHeader, err)
	}
	if h.id != id || h.number != number {
		return FileStart{}, errForeign(&h)
	}
	return h.place(), nil
}

func (h *segHeader) place() FileStart {
	return FileStart{h.number, h.starts, h.base, h.first, h.firstID, h.capacity}
}

func errForeign(h *segHeader) error {
	return fmt.Errorf("%w: it is that of segment %d of %v", errSegHeader, h.number, h.id)
}

// Extent says what a segment file must hold: the batches from First to End, whose messages have ids from FirstID to
// NextID. FileVerifier takes First and FirstID from the file's header, if that is right. If Open is true, nothing says
// where the batches end, because the next file is missing; they end at or below End.
type Extent struct {
	ID      Identity
	Number  uint32
	First   Offset
	FirstID MsgID
	End     Offset
	NextID  MsgID
	Open    bool
}

// Lost is a range of a log whose batches do not read back. The messages [FirstID, NextID) were in it.
type Lost struct {
	Range
	FirstID, NextID MsgID
	Err             error // why
}

// FileVerifier verifies the batches of a segment file of which no log is open, or whose bytes pass by for another
// reason. It judges as View and Check do: both checksums of each batch, and that each continues the one before. What
// does not verify is lost: the one batch if its header is right, and otherwise all from there on, because nothing says
// where the next batch begins. Write gets all bytes of the file from the first one on. One goroutine uses it.
type FileVerifier struct {
	want   Extent
	head   segHeader
	headed bool // head is the file's

	buf  []byte
	from int64 // file byte of buf[0]
	at   int64 // file byte of the next batch
	prev link
	next MsgID // id of the next message
	any  bool  // prev is the batch that ends at at
	over bool  // nothing more is looked at
	lost []Lost
}

// NewFileVerifier returns a verifier for a file that must hold e.
func NewFileVerifier(e Extent) *FileVerifier {
	return &FileVerifier{want: e, next: e.FirstID, over: e.First >= e.End}
}

// Write takes the next bytes of the file. It implements io.Writer, and returns no error.
func (v *FileVerifier) Write(p []byte) (int, error) {
	end := v.from + int64(len(v.buf)+len(p))
	if v.over || v.headed && v.at >= end {
		v.buf, v.from = v.buf[:0], end
		return len(p), nil
	}
	v.buf = append(v.buf, p...)
	for !v.over && v.step(end) {
	}
	if used := min(v.at, end) - v.from; v.headed && used > 0 {
		v.buf = v.buf[:copy(v.buf, v.buf[used:])]
		v.from += used
	}
	return len(p), nil
}

// step judges the header or the next batch, if its bytes, which end at file byte end, are there.
func (v *FileVerifier) step(end int64) bool {
	if !v.headed {
		return v.header()
	}
	if v.head.offset(v.at) >= v.want.End {
		v.over = true
		return false
	}
	if v.at+HeaderBytes > end {
		return false
	}
	rest := v.buf[v.at-v.from:]
	var h Header
	if err := v.fits(&h, rest); err != nil {
		v.loseRest(err)
		return false
	}
	size := h.Size()
	if len(rest) < size {
		return false
	}
	if err := batch.VerifyBody(&h, rest[HeaderBytes:size]); err != nil {
		at := v.head.offset(v.at)
		v.lose(Lost{Range{at, at + Offset(size)}, h.FirstID, h.NextID(), err})
	}
	v.at += int64(size)
	v.prev, v.any, v.next = link{h.Position, h.CRC}, true, h.NextID()
	return true
}

// header judges the file's header block, if it is there.
func (v *FileVerifier) header() bool {
	if len(v.buf) < SegmentHeaderBytes {
		return false
	}
	err := v.head.decode(v.buf)
	switch {
	case err != nil:
	case v.head.id != v.want.ID || v.head.number != v.want.Number:
		err = errForeign(&v.head)
	case v.head.first > v.want.End:
		err = fmt.Errorf("it begins at offset %d, beyond the %d where it should end", v.head.first, v.want.End)
	}
	if err != nil {
		v.loseRest(fmt.Errorf("%w: %w", errSegHeader, err))
		return false
	}
	v.headed, v.at, v.next = true, v.head.at(v.head.first), v.head.firstID
	return true
}

// fits decodes the header of the next batch, and returns why it is not that of the next batch, or nil.
func (v *FileVerifier) fits(h *Header, p []byte) error {
	if err := h.Decode(p); err != nil {
		return err
	}
	switch {
	case v.any && !v.prev.continuedBy(h), !v.any && h.Position != v.head.firstPos, h.FirstID != v.next:
		return errChain
	case v.head.offset(v.at)+Offset(h.Size()) > v.want.End:
		return errCut
	}
	return nil
}

// loseRest notes that everything from the next batch on is lost, unless the file may end there.
func (v *FileVerifier) loseRest(err error) {
	v.over = true
	if v.want.Open {
		return
	}
	from, next := v.Behind()
	v.lose(Lost{Range{from, v.want.End}, next, max(next, v.want.NextID), err})
}

// Behind returns where the next batch begins, and the id of its first message.
func (v *FileVerifier) Behind() (Offset, MsgID) {
	if !v.headed {
		return v.want.First, v.next
	}
	return v.head.offset(v.at), v.next
}

// lose notes a range. It joins ranges that touch each other, and loses the rest of a file that has too many, as a log
// does (MaxIsolatedCount).
func (v *FileVerifier) lose(r Lost) {
	n := len(v.lost)
	switch {
	case n > 0 && v.lost[n-1].To == r.From:
		v.lost[n-1].To, v.lost[n-1].NextID = r.To, r.NextID
	case n == MaxIsolatedCount:
		r.To, r.NextID, v.over = v.want.End, max(r.NextID, v.want.NextID), true
		fallthrough
	default:
		v.lost = append(v.lost, r)
	}
}

var errShort = errors.New("the file is too short")

// Lost ends the file, and returns what does not verify of it.
func (v *FileVerifier) Lost() []Lost {
	if !v.over && (!v.headed || v.head.offset(v.at) < v.want.End) {
		v.loseRest(fmt.Errorf("%w: %w", ErrInvalid, errShort))
	}
	v.over = true
	return v.lost
}
