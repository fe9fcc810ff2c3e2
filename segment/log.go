package segment

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"sync/atomic"

	"penstock/internal/lock"
	"penstock/segment/aio"
)

// Limits and defaults of a log.
const (
	DefaultIndexEveryBytes   = 64 << 10
	DefaultMaxMappedSegments = 4
	// MaxIsolatedCount bounds the isolated ranges that one segment remembers; beyond it the rest of the segment is
	// isolated.
	MaxIsolatedCount = 64
)

// Options are the choices for one log; the zero value is the default.
type Options struct {
	IndexEveryBytes   int // distance of index entries; 0: DefaultIndexEveryBytes
	MaxMappedSegments int // segments that stay mapped while nobody reads them; 0: DefaultMaxMappedSegments
}

func (o *Options) setDefaults() {
	if o.IndexEveryBytes <= 0 {
		o.IndexEveryBytes = DefaultIndexEveryBytes
	}
	if o.MaxMappedSegments <= 0 {
		o.MaxMappedSegments = DefaultMaxMappedSegments
	}
}

// Log is the batches of one partition: segment files, and before them the tail in memory.
//
//	start          synced        flushed                      end
//	  |   segments    |  segments   |                           |
//	  |               |     |<------+---- tail: slices in memory >|
//	  |<-- mapped reads --->|
//
// Invariant: start <= synced <= flushed <= end, and tail start <= flushed. Durable batches
// above synced are in the commit log; the caller keeps its files until OldestUnsyncedFileSeq passes them.
//
// Two locks: mu guards everything in memory and is never held across I/O; io serialises those who write
// files (Flush, Sync, Truncate, Reset, Trim, Close) and is taken before mu. Append, View and Seek take only mu.
type Log struct {
	disk aio.Disk
	dir  string
	id   Identity
	opts Options

	io       lock.Mutex[lock.SegmentIO]
	dirReady bool       // the directory exists durably
	named    bool       // files were made since the last Sync: their names are not durable
	dirty    []*segFile // written since the last Sync, each with its file open
	full     []*segFile // sealed, their .idx not written yet
	partial  []byte     // what the block at partEnd holds below it: the start of the next write
	partEnd  Offset     // valid while partial != nil
	poison   error      // sticky, see ErrPoisoned

	mapped atomic.Int64 // segments that are mapped, removed ones that are still read included

	// What Append needs stands together: with many partitions every batch finds its log out of the processor's cache.
	mu     lock.Mutex[lock.SegmentLog]
	closed bool
	end    place
	placed State // Segment, SegmentBase, SegmentCapacity of the last batch
	marks  marks
	tail   tail

	poisoned error // poison, for readers of Health
	segs     []*segFile
	start    place
	flushed  Offset
	synced   Offset
	clock    uint64 // counts reads of segments; segFile.used is its value at the last one
	// generation counts the times that the log went back: a reader's memory of what stood where is void after one.
	generation uint64
	damage     []damage
}

// place is one spot of the log in its three coordinates.
type place struct {
	off Offset
	pos Position
	id  MsgID
}

// Open opens the log that lies in dir (relative to the disk) in the state st of the last
// checkpoint: everything below st.End is in segment files and synced. It reads the
// header block of each segment and no data. Files and bytes beyond st.End are leftovers of a life that did not
// reach a checkpoint; they are ignored, and replaced when the log grows over them.
//
// Damage does not make Open fail: missing, short or foreign files are told by Health, and what
// they held reads as CorruptError. An error is one of the environment: nothing was changed.
func Open(disk aio.Disk, dir string, id Identity, st State, opts Options) (*Log, error) {
	opts.setDefaults()
	l := &Log{disk: disk, dir: dir, id: id, opts: opts}
	l.setEnd(st)
	l.start = l.end
	l.flushed, l.synced = st.End, st.End
	if st.End == 0 {
		return l, nil
	}
	st.SegmentBase = l.placed.SegmentBase
	if err := l.openSegments(st); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *Log) setEnd(st State) {
	l.end = place{st.End, st.Next, st.NextID}
	l.placed = State{Segment: st.Segment, SegmentBase: st.SegmentBase, SegmentCapacity: st.SegmentCapacity}
	if st.SegmentCapacity == 0 {
		l.placed.SegmentBase = st.End // not begun: it will begin here
	}
}

// ignoreLeftovers drops the numbers of files that hold nothing below st.End: those above the current segment, and
// its own if nothing is in it yet.
func ignoreLeftovers(numbers []uint32, st State) []uint32 {
	for n := len(numbers); n > 0; n-- {
		if last := numbers[n-1]; last < st.Segment || last == st.Segment && st.SegmentBase < st.End {
			return numbers[:n]
		}
	}
	return nil
}

// trimmedToEnd recognises a checkpoint that ends exactly with a segment that retention removed
// after it: that file is missing, and the next one begins where it ended.
func (l *Log) trimmedToEnd(numbers []uint32, st State) bool {
	i, there := slices.BinarySearch(numbers, st.Segment)
	if there || i > 0 || len(numbers) == 0 || numbers[0] != st.Segment+1 {
		return false
	}
	h, _, err := readSegmentHeader(l.disk, path.Join(l.dir, segmentName(numbers[0])))
	return err == nil && h.id == l.id && h.number == numbers[0] && h.base == st.End
}

// openSegments lists the files from the one that holds st.End downwards, until the first of
// the log or of what retention left.
func (l *Log) openSegments(st State) error {
	numbers, err := listSegments(l.disk, l.dir)
	if err != nil {
		return err
	}
	if l.trimmedToEnd(numbers, st) {
		return nil
	}
	numbers = ignoreLeftovers(numbers, st)
	want := int64(st.Segment) // number of the next file downwards
	last := func() int64 {
		if n := len(numbers); n > 0 {
			return int64(numbers[n-1])
		}
		return -1
	}
	if l.placed.SegmentBase == st.End {
		want-- // nothing is in the current segment yet
	}
	if len(numbers) == 0 && want < int64(st.Segment) {
		return nil
	}
	var files []*segFile // from the newest
	for limit := st.End; ; want-- {
		f, err := l.openOne(uint32(want), last() == want, limit, st)
		if err != nil {
			return err
		}
		files = append(files, f)
		if f.broken == nil {
			limit = f.base
		}
		if last() == want {
			numbers = numbers[:len(numbers)-1]
		} else {
			want = last() + 1 // one stand-in for the whole gap
		}
		if f.starts || len(numbers) == 0 {
			break
		}
	}
	l.link(files)
	return nil
}

func listSegments(disk aio.Disk, dir string) (numbers []uint32, err error) {
	infos, err := disk.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("segment: listing %s: %w", dir, err)
	}
	for _, info := range infos {
		if n, ok := parseSegmentName(info.Name()); ok {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// openOne opens segment number, which must end at limit at the latest, or a stand-in that
// says what is wrong with it. An error is the environment's.
func (l *Log) openOne(number uint32, present bool, limit Offset, st State) (*segFile, error) {
	f := newSegFile(l, segHeader{id: l.id, number: number})
	f.sealed = number != st.Segment
	if !present {
		f.broken = f.corrupt(0, errors.New("the file is missing"))
		return f, nil
	}
	h, size, err := readSegmentHeader(l.disk, f.path)
	if err != nil && !errors.Is(err, errSegHeader) {
		return nil, err
	}
	if err == nil {
		err = l.fits(&h, number, limit, st)
	}
	if err != nil {
		f.broken = f.corrupt(0, err)
		return f, nil
	}
	f.segHeader = h
	l.noteShort(f, size, limit)
	return f, nil
}

// noteShort isolates what a file of size bytes does not have of its segment, whose batches end at limit at the latest.
// If it has all of them nothing is damaged: a power cut took room that was never used.
func (l *Log) noteShort(f *segFile, size int64, limit Offset) {
	room := size - SegmentHeaderBytes
	if room >= f.capacity {
		return
	}
	from := f.base + Offset(room)
	if f.short = from >= limit; f.short {
		return
	}
	f.bad = append(f.bad, span{from, f.base + Offset(f.capacity)})
	l.noteDamage(from, f.corrupt(size, errors.New("the file is too short")))
}

// fits says what keeps a valid header from being that of segment number of this log.
func (l *Log) fits(h *segHeader, number uint32, limit Offset, st State) error {
	current := number == st.Segment
	switch {
	case h.id != l.id:
		return fmt.Errorf("it belongs to topic %s, partition %d", h.id.Topic, h.id.Partition)
	case h.number != number:
		return fmt.Errorf("it is segment %d", h.number)
	case current && h.base != st.SegmentBase:
		return fmt.Errorf("it begins at offset %d, the checkpoint says %d", h.base, st.SegmentBase)
	case current && h.capacity < int64(st.End-st.SegmentBase):
		// it may have less than the checkpoint gives it, see enlarge
		return fmt.Errorf("it has room for %d bytes, the checkpoint says that %d are used", h.capacity, st.End-st.SegmentBase)
	case h.first > limit || !current && h.first == limit && !h.starts: // an anchor may stay empty
		return fmt.Errorf("it begins at offset %d, beyond the %d where it should end", h.first, limit)
	}
	return nil
}

// link takes the opened files, newest first, as the log's list.
func (l *Log) link(files []*segFile) {
	slices.Reverse(files)
	l.standIn(files)
	l.segs = files
	f := files[0]
	l.start = place{f.first, f.firstPos, f.firstID}
}

// standIn gives the files that do not say what they hold the range that their neighbours leave: from where the file
// below can end at most.
func (l *Log) standIn(files []*segFile) {
	for i, f := range files {
		if f.broken == nil {
			continue
		}
		switch {
		case !f.sealed:
			if f.base == 0 { // the current segment of Open; later what is placed may be in another
				f.base = l.placed.SegmentBase
			}
		case i > 0:
			below := files[i-1]
			f.base = min(below.base+Offset(below.capacity), l.baseAbove(files[i+1:]))
		default:
			f.base = 0 // unknown; low rather than high: what was there must not read as removed by retention
		}
		f.first = f.base
		l.noteDamage(f.base, f.broken)
	}
}

func (l *Log) baseAbove(files []*segFile) Offset {
	for _, f := range files {
		if f.broken == nil {
			return f.base
		}
	}
	return l.end.off
}

// Append adds one batch at the end, where View finds it at once, and takes its own reference to s.Buf.
// The batch need not be durable yet: the callers bound what their readers see.
// It blocks on no I/O and allocates only when the tail grows. One goroutine calls it, in order:
// a batch that does not continue the log is a bug and panics. After Close it does nothing.
func (l *Log) Append(s *Slice) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.mustContinue(s)
	l.tail.push(s)
	l.marks.add(s.FileSeq, s.Offset)
	l.end = place{s.End(), s.Position + 1, s.FirstID + MsgID(s.Count)}
	l.placed.Segment, l.placed.SegmentBase, l.placed.SegmentCapacity = s.Segment, s.SegmentBase, s.SegmentCapacity
}

func (l *Log) mustContinue(s *Slice) {
	switch {
	case s.Offset != l.end.off || s.Position != l.end.pos || s.FirstID != l.end.id:
		panic(fmt.Sprintf("BUG: segment: batch at offset %d, position %d, id %d appended to a log that ends at %d, %d, %d",
			s.Offset, s.Position, s.FirstID, l.end.off, l.end.pos, l.end.id))
	case len(s.Data) < HeaderBytes || s.Offset < s.SegmentBase || int64(s.End()-s.SegmentBase) > s.SegmentCapacity:
		panic(fmt.Sprintf("BUG: segment: batch [%d, %d) does not lie in its segment %d, [%d, %d)",
			s.Offset, s.End(), s.Segment, s.SegmentBase, s.SegmentBase+Offset(s.SegmentCapacity)))
	case s.Segment == l.placed.Segment && s.SegmentBase == l.placed.SegmentBase:
	case s.SegmentBase != s.Offset || s.Segment < l.placed.Segment || s.Segment > l.placed.Segment+1:
		panic(fmt.Sprintf("BUG: segment: segment %d begins at %d with the batch at %d, after segment %d",
			s.Segment, s.SegmentBase, s.Offset, l.placed.Segment))
	}
}

// Start returns where the log begins; it moves when segments are trimmed.
func (l *Log) Start() (Offset, Position, MsgID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.start.off, l.start.pos, l.start.id
}

// TrimmableTo is the lowest offset for which Trim can remove a segment. ok is false while there is none to remove.
func (l *Log) TrimmableTo() (to Offset, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.segs) < 2 {
		return 0, false
	}
	return l.segs[1].base, true
}

// End returns where the next batch will stand.
func (l *Log) End() (Offset, Position, MsgID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end.off, l.end.pos, l.end.id
}

// Close frees what the log holds; nothing is flushed, the commit log has it. Views that are
// still pinned stay valid until their release.
func (l *Log) Close() error {
	l.io.Lock()
	defer l.io.Unlock()
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	segs := l.segs
	l.segs = nil
	l.mu.Unlock()
	l.dropTail(func(*Slice) bool { return true })
	err := l.closeFiles()
	for _, f := range segs {
		f.release()
	}
	return err
}

func (l *Log) closeFiles() (err error) {
	for _, f := range l.dirty {
		if f.file != nil {
			err = errors.Join(err, f.file.Close())
			f.file = nil
		}
	}
	l.dirty, l.full, l.partial = nil, nil, nil
	return err
}
