package offline

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"syscall"

	"penstock/segment"
	"penstock/segment/aio"
)

// maxIndexBytes bounds the index file that is read whole.
const maxIndexBytes = 64 << 20

// walk is the state of reading one partition's segment files in order.
type walk struct {
	c     *checker
	p     *partition
	chain expected
	lost  bool // the file before is damaged: the next one begins anew
	files []openSegment
}

// openSegment is a file whose header is right.
type openSegment struct {
	number uint32
	name   string
	head   segmentHeader
}

// segments verifies what the segment files of a partition must hold: everything below the checkpoint. What lies above
// is in the commit log too, and a restart writes it again.
func (c *checker) segments(p *partition) error {
	if p.base.End == 0 {
		return nil
	}
	w := &walk{c: c, p: p}
	if err := w.open(); err != nil {
		return err
	}
	for i := range w.files {
		if err := w.file(i); err != nil {
			return err
		}
	}
	return nil
}

func (w *walk) find(name string, at int64, format string, args ...any) {
	w.c.report.find(finding{Path: name, Offset: at, Topic: w.c.topic(w.p.id), Detail: fmt.Sprintf(format, args...)})
}

// open reads the headers of the live files: from the last one that starts a log, up to the one that the
// checkpoint names. A missing or damaged file is a finding; the others are still read.
func (w *walk) open() error {
	dir := partitionDir(w.p.id)
	numbers, err := w.c.dir.Segments(w.p.id)
	if err != nil {
		return err
	}
	st := &w.p.base
	base := func(n uint32) (segment.Offset, bool) {
		h, err := w.header(path.Join(dir, segmentName(n)), n)
		return h.Base, err == nil
	}
	indexed, err := w.c.dir.HasIndex(w.p.id, st.Segment)
	if err != nil {
		return err
	}
	if segment.TrimmedToEnd(*st, numbers, indexed || w.c.noted, base) {
		return nil
	}
	last := st.Segment
	if st.SegmentBase == st.End && last > 0 {
		last-- // the newest one is placed but not begun
	}
	var gaps []string
	for i, n := range numbers {
		if n > last {
			numbers = numbers[:i]
			break
		}
		if i > 0 && numbers[i-1]+1 != n {
			gaps = append(gaps, fmt.Sprintf("the segments between %d and %d are missing; their messages are not served",
				numbers[i-1], n))
		}
		name := path.Join(dir, segmentName(n))
		h, err := w.header(name, n)
		if err != nil {
			if !damage(err) {
				return err
			}
			w.find(name, 0, "%v; its messages are not served", err)
			continue
		}
		if h.Starts {
			w.files, gaps = w.files[:0], nil
		}
		w.files = append(w.files, openSegment{n, name, h})
	}
	for _, gap := range gaps {
		w.find(dir, -1, "%s", gap)
	}
	if err := w.below(dir, numbers); err != nil {
		return err
	}
	if k := len(numbers); st.SegmentBase < st.End && (k == 0 || numbers[k-1] != last) {
		w.find(path.Join(dir, segmentName(last)), -1, "the newest segment is missing; its messages are not served")
	}
	return nil
}

// below looks for what tells that files are missing in front of the first one. Where the header of the first one is
// damaged, it might say that the log begins there, and the damage is a finding already.
func (w *walk) below(dir string, numbers []uint32) error {
	if len(w.files) == 0 || w.files[0].number != numbers[0] || w.files[0].head.Starts || !w.c.dir.MarkRequired() {
		return nil
	}
	first := w.files[0].number
	index, notes, err := w.c.dir.Below(w.p.id)
	if err != nil {
		return err
	}
	if segment.LacksBelow(first, index >= 0 && index < int64(first), notes, w.c.noted) {
		w.find(dir, -1, "the segments before %d are missing, and retention has not removed them; their messages are not "+
			"served", first)
	}
	return nil
}

// damage says whether err is about the data, such as a wrong checksum or a page that the device cannot read. Otherwise
// something else keeps fsck from reading, such as a missing permission.
func damage(err error) bool {
	var errno syscall.Errno
	return !errors.As(err, &errno) || errno == syscall.EIO || errors.Is(err, aio.ErrMedia)
}

func (w *walk) header(name string, n uint32) (h segmentHeader, err error) {
	f, err := w.c.dir.Disk.Open(name)
	if err != nil {
		return h, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return h, err
	}
	p, err := newBatchReader(f, size).Bytes(0, segment.SegmentHeaderBytes)
	if err != nil {
		return h, err
	}
	if h, err = decodeSegmentHeader(p); err != nil {
		return h, err
	}
	if h.Topic != w.p.id.Topic || h.Partition != w.p.id.Partition || h.Number != n {
		return h, fmt.Errorf("the file belongs to topic %s, partition %d, segment %d", h.Topic, h.Partition, h.Number)
	}
	return h, nil
}

// file verifies the batches of one segment, up to the next one or to the checkpoint.
func (w *walk) file(i int) error {
	s := &w.files[i]
	end, newest := w.p.base.End, true
	if i+1 < len(w.files) && w.files[i+1].number == s.number+1 {
		end, newest = w.files[i+1].head.Base, false
	} else if i+1 < len(w.files) || s.number != w.lastNumber() {
		end, newest = -1, false // what followed is missing: read as far as it goes
	}
	if i == 0 || w.lost || w.files[i-1].number+1 != s.number {
		w.lost = false
		w.chain = expected{Position: s.head.FirstPosition, ID: s.head.FirstID}
	} else if s.head.FirstPosition != w.chain.Position || s.head.FirstID != w.chain.ID {
		w.find(s.name, 0, "its header begins at position %d and id %d, the segment before ends before %d and %d",
			s.head.FirstPosition, s.head.FirstID, w.chain.Position, w.chain.ID)
		w.chain = expected{Position: s.head.FirstPosition, ID: s.head.FirstID}
	}
	f, err := w.c.dir.Disk.Open(s.name)
	if err != nil {
		return err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return err
	}
	w.c.report.Segments++
	index := w.index(s)
	whole := w.batches(s, f, size, end, newest, index)
	if whole && newest {
		w.compareEnd(s)
	}
	return nil
}

func (w *walk) lastNumber() uint32 {
	st := &w.p.base
	if st.SegmentBase == st.End && st.Segment > 0 {
		return st.Segment - 1
	}
	return st.Segment
}

// batches reads one file and says whether all of it is right. After a damaged batch the rest of the file is not
// looked at: where the next one begins is not known.
func (w *walk) batches(
	s *openSegment, f source, size int64, end segment.Offset, newest bool, x *indexCheck,
) bool {
	r := newBatchReader(f, size)
	var h segment.Header
	at := s.head.First
	for end < 0 || at < end {
		place := s.head.FileByte(at)
		body, err := r.Batch(place, &h)
		if err == nil {
			err = w.chain.Next(&h)
		}
		if err == nil {
			err = w.c.body(&h, body)
		}
		if err != nil {
			if end < 0 {
				return false // the end is not known; this may be it
			}
			w.find(s.name, place, "%v; messages from there to the end of the segment are not served", err)
			w.lost = true
			return false
		}
		x.batch(at, &h)
		w.c.report.Batches++
		w.c.report.Messages += int64(h.Count)
		w.c.report.SegmentBytes += int64(h.Size())
		at += segment.Offset(h.Size())
	}
	if at != end {
		w.find(s.name, s.head.FileByte(end), "the last batch ends at offset %d, the next segment begins at %d", at, end)
		return false
	}
	x.finish(w, s, end, newest, &h)
	return true
}

// compareEnd checks the newest segment against the checkpoint.
func (w *walk) compareEnd(s *openSegment) {
	st := &w.p.base
	if w.chain.Position != st.Next || w.chain.ID != st.NextID || w.chain.CRC != st.LastCRC {
		w.find(s.name, s.head.FileByte(st.End),
			"the segments end before position %d, id %d with checksum %08x; the commit log says %d, %d and %08x",
			w.chain.Position, w.chain.ID, w.chain.CRC, st.Next, st.NextID, st.LastCRC)
	}
}

// indexCheck compares an index with the batches as they are read. A wrong index costs no message: it is made again from
// its segment; but something wrote or kept it wrongly.
type indexCheck struct {
	name  string
	index *indexFile // nil: there is none
	next  int
	wrong string
}

func (w *walk) index(s *openSegment) *indexCheck {
	name := path.Join(path.Dir(s.name), indexName(s.number))
	x := &indexCheck{name: name}
	data, err := w.c.dir.Disk.ReadFile(name, maxIndexBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return x
	}
	if err == nil {
		x.index, err = decodeIndex(data)
	}
	if err != nil {
		w.find(name, -1, "%v; it is made again from its segment", err)
		x.index = nil
		return x
	}
	if x.index.Topic != s.head.Topic || x.index.Partition != s.head.Partition || x.index.Number != s.number ||
		x.index.First != s.head.First {
		x.wrong = "it belongs to another segment"
	}
	return x
}

func (x *indexCheck) batch(at segment.Offset, h *segment.Header) {
	if x.index == nil || x.wrong != "" || x.next == len(x.index.Entries) {
		return
	}
	switch e := &x.index.Entries[x.next]; {
	case e.Offset > at:
	case e.Offset < at:
		x.wrong = fmt.Sprintf("entry %d names offset %d, where no batch begins", x.next, e.Offset)
	case e.Position != h.Position || e.FirstID != h.FirstID || e.Appended != h.Appended:
		x.wrong = fmt.Sprintf("entry %d says position %d, id %d; the batch there has %d and %d",
			x.next, e.Position, e.FirstID, h.Position, h.FirstID)
	default:
		x.next++
	}
}

// finish looks at what is left of the index at the end of its segment. The newest segment's may go on above the
// checkpoint, where the commit log is the authority.
func (x *indexCheck) finish(w *walk, s *openSegment, end segment.Offset, newest bool, last *segment.Header) {
	if x.index == nil {
		return
	}
	above := newest && x.index.End > end && (x.next == len(x.index.Entries) || x.index.Entries[x.next].Offset >= end)
	switch {
	case x.wrong != "":
	case above:
		return
	case x.index.End != end:
		x.wrong = fmt.Sprintf("it ends at offset %d, its segment at %d", x.index.End, end)
	case x.next != len(x.index.Entries):
		x.wrong = fmt.Sprintf("entry %d names no batch", x.next)
	case x.index.LastCRC != last.CRC:
		x.wrong = "it was made for other content"
	default:
		return
	}
	w.find(x.name, -1, "%s; it is made again from segment %d", x.wrong, s.number)
}
