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
	// MaxIsolatedCount bounds the isolated ranges that one segment keeps. Beyond that number, a newly damaged batch
	// isolates the rest of its segment.
	MaxIsolatedCount = 64
)

// Options are the choices for one log; the zero value selects the defaults.
type Options struct {
	IndexEveryBytes   int // distance between index entries; 0: DefaultIndexEveryBytes
	MaxMappedSegments int // segments that stay mapped while nobody reads them; 0: DefaultMaxMappedSegments
	// Mappings bounds the mapped segments of all logs that share it. If it is nil, there is no such bound.
	Mappings *Mappings
	// OldIndexes says that a version may have run on the directory which removed the index of a segment after the file,
	// so that a crash left indexes of files that are not missing. Open removes those below the first segment.
	OldIndexes bool
	// Noted says that each log of the directory from which retention has removed something has a note of where it begins
	// (note.go): then Open misses what is not there and was not removed by retention.
	Noted bool
}

func (o *Options) setDefaults() {
	if o.IndexEveryBytes <= 0 {
		o.IndexEveryBytes = DefaultIndexEveryBytes
	}
	if o.MaxMappedSegments <= 0 {
		o.MaxMappedSegments = DefaultMaxMappedSegments
	}
}

// Log holds the batches of one partition: segment files, and behind them the tail in memory.
//
//	start          synced        flushed                      end
//	  |   segments    |  segments   |                           |
//	  |               |     |<------+---- tail: slices in memory >|
//	  |<-- mapped reads --->|
//
// Invariant: start <= synced <= flushed <= end, and tail start <= flushed. Durable batches above synced are in the
// commit log; the caller keeps each commit log file until OldestUnsyncedFileSeq passes it.
//
// There are two locks. mu guards everything in memory and is never held across I/O. io serialises the methods that
// write files (Flush, MakeFile, Sync, Repair, OpenAgain, ReadAgain, Truncate, Reset, Trim, Close, and the checks when
// they mend) and is taken before mu. Append, View and Seek take only mu.
type Log struct {
	disk aio.Disk
	dir  string
	id   Identity
	opts Options

	// io guards the fields from here to poison.
	io       lock.Mutex[lock.SegmentIO]
	dirReady bool           // the directory exists durably
	named    bool           // files were created since the last Sync: their names are not durable
	dirty    []*segFile     // files written since the last Sync, each with its file open
	full     []*segFile     // sealed segments whose .idx is not written yet
	partial  []byte         // the bytes below partEnd in the block of partEnd: the next write begins with them
	partEnd  Offset         // valid while partial != nil
	poison   error          // sticky, see ErrPoisoned
	cut      *unfinishedCut // nil: none

	mapped atomic.Int64 // mapped segments, including removed ones that are still read

	// The fields that Append needs are adjacent: with many partitions, every batch finds its log out of the processor's
	// cache.
	//
	// mu guards the fields from here on.
	mu     lock.Mutex[lock.SegmentLog]
	closed bool
	end    place
	placed State // where the last batch was placed: Segment, SegmentBase, SegmentCapacity
	marks  marks
	tail   tail

	poisoned error // copy of poison, for readers that do not hold io
	segs     []*segFile
	start    place
	flushed  Offset
	synced   Offset
	clock    uint64 // counts reads of segments; segFile.used is its value at the segment's last read
	// generation counts the cuts and resets of the log. After one, what a reader remembers about offsets is invalid.
	generation uint64
	damage     []damage
}

// place is one place of the log in its three coordinates.
type place struct {
	off Offset
	pos Position
	id  MsgID
}

// Open opens the log in dir (relative to the disk) in the state st of the last checkpoint: everything below st.End is
// in segment files and synced. Open reads the header block of each segment and no data. Files and bytes beyond st.End
// were written after the last checkpoint; Open ignores them, and they are replaced when the log grows over them.
//
// Damage does not make Open fail: Health reports missing, short or foreign files, and reading what they held returns a
// CorruptError. An error of Open is one of the environment, and nothing was changed.
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

// setEnd makes st the end of the log. The caller holds l.mu, or is Open.
func (l *Log) setEnd(st State) {
	l.end = place{st.End, st.Next, st.NextID}
	l.placed = State{Segment: st.Segment, SegmentBase: st.SegmentBase, SegmentCapacity: st.SegmentCapacity}
	if st.SegmentCapacity == 0 {
		l.placed.SegmentBase = st.End // the segment is not begun: it will begin here
	}
}

// ignoreLeftovers returns numbers without the files that hold nothing below st.End: those above the current segment,
// and the current one if it holds nothing yet.
func ignoreLeftovers(numbers []uint32, st State) []uint32 {
	for n := len(numbers); n > 0; n-- {
		if last := numbers[n-1]; last < st.Segment || last == st.Segment && st.SegmentBase < st.End {
			return numbers[:n]
		}
	}
	return nil
}

// TrimmedToEnd recognises a checkpoint that ends exactly at the end of a segment which retention removed after the
// checkpoint, as versions of feature level 2 did. The file of that segment is missing, and the next file begins at
// st.End. numbers are those of the segment files, ascending; indexed says that the index of the missing one is there,
// so that retention has not removed it; base says where the file of a number begins, if its header is right. A log of
// which TrimmedToEnd says true is empty at the checkpoint, and lacks nothing.
func TrimmedToEnd(st State, numbers []uint32, indexed bool, base func(number uint32) (Offset, bool)) bool {
	i, there := slices.BinarySearch(numbers, st.Segment)
	if there || indexed || i > 0 || len(numbers) == 0 || numbers[0] != st.Segment+1 {
		return false
	}
	at, ok := base(numbers[0])
	return ok && at == st.End
}

// baseOf returns where a segment file begins, if its header is right.
func (l *Log) baseOf(number uint32) (Offset, bool) {
	h, _, err := readSegmentHeader(l.disk, path.Join(l.dir, segmentName(number)))
	return h.base, err == nil && h.id == l.id && h.number == number
}

// openSegments opens the files from the one that holds st.End downwards, to the first file of the log or of what
// retention left.
func (l *Log) openSegments(st State) error {
	if st.Segment == 0 && l.placed.SegmentBase < st.End {
		// Most logs of a node with many topics have one segment, which says that none comes before it: there is no need
		// to list the directory. If anything is wrong, the code below finds it again.
		if f, err := l.openOne(0, true, st.End, st); err == nil && f.broken == nil && f.starts {
			l.link([]*segFile{f})
			return nil
		}
	}
	have, err := listFiles(l.disk, l.dir)
	if err != nil {
		return err
	}
	indexed := l.opts.Noted || !l.opts.OldIndexes && slices.Contains(have.indexes, st.Segment)
	if TrimmedToEnd(st, have.segments, indexed, l.baseOf) {
		return nil
	}
	numbers := ignoreLeftovers(have.segments, st)
	want := int64(st.Segment) // number of the next file downwards
	last := func() int64 {
		if n := len(numbers); n > 0 {
			return int64(numbers[n-1])
		}
		return -1
	}
	if l.placed.SegmentBase == st.End {
		want-- // the current segment holds nothing yet
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
	if files, err = l.missBelow(files, have, st); err != nil {
		return err
	}
	l.link(files)
	return nil
}

// missBelow adds a stand-in to files, which begin with the newest one, if files are missing in front of the log's first
// one. That is so if an index is there, which retention removes before the file (moveToTrash), or if the note says that
// the log begins earlier.
func (l *Log) missBelow(files []*segFile, have names, st State) ([]*segFile, error) {
	first := files[len(files)-1]
	if first.starts {
		return files, nil
	}
	indexed := len(have.indexes) > 0 && have.indexes[0] < first.number
	if indexed && l.opts.OldIndexes {
		return files, l.removeIndexesBelow(first.number)
	}
	if !LacksBelow(first.number, indexed, have.notes, l.opts.Noted && first.broken == nil) {
		return files, nil
	}
	f, err := l.openOne(first.number-1, false, first.first, st)
	return append(files, f), err
}

// names are the files of a log's directory, by number, in ascending order.
type names struct{ segments, indexes, notes []uint32 }

// listFiles lists the files in dir.
func listFiles(disk aio.Disk, dir string) (have names, err error) {
	infos, err := disk.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return have, nil
	}
	if err != nil {
		return have, fmt.Errorf("segment: listing %s: %w", dir, err)
	}
	for _, info := range infos {
		if n, ok := parseSegmentName(info.Name()); ok {
			have.segments = append(have.segments, n)
		} else if n, ok := parseIndexName(info.Name()); ok {
			have.indexes = append(have.indexes, n)
		} else if n, ok := ParseNoteName(info.Name()); ok {
			have.notes = append(have.notes, n)
		}
	}
	slices.Sort(have.segments)
	slices.Sort(have.indexes)
	slices.Sort(have.notes)
	return have, nil
}

// openOne opens segment number, which must end at or below limit. If something is wrong with the file, openOne returns
// a stand-in whose broken says what. An error is one of the environment.
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

// noteShort isolates the part of the segment that its file, of size bytes, is too short to hold. The segment's batches
// end at or below limit. If the file holds all of them, nothing is damaged: a power cut took only space that was never
// used.
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

// fits returns the reason why a valid header is not the header of segment number of this log, or nil.
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
		// its capacity may be smaller than the checkpoint says, see enlarge
		return fmt.Errorf("it has room for %d bytes, the checkpoint says that %d are used", h.capacity, st.End-st.SegmentBase)
	case h.first > limit || !current && h.first == limit && !h.starts: // an anchor may be empty
		return fmt.Errorf("it begins at offset %d, beyond the %d where it should end", h.first, limit)
	}
	return nil
}

// link makes the opened files, newest first, the log's list.
func (l *Log) link(files []*segFile) {
	slices.Reverse(files)
	l.standIn(files)
	l.segs = files
	f := files[0]
	l.start = place{f.first, f.firstPos, f.firstID}
}

// standIn gives each stand-in, whose file does not say what it holds, the range that its neighbours leave. The range
// begins where the segment below ends at the latest. The caller holds l.mu, or is Open.
func (l *Log) standIn(files []*segFile) {
	for i, f := range files {
		if f.broken == nil {
			continue
		}
		switch {
		case !f.sealed:
			if f.base == 0 { // as Open found it; later, l.placed may speak of another segment
				f.base = l.placed.SegmentBase
			}
		case i > 0:
			below := files[i-1]
			f.base = min(below.base+Offset(below.capacity), l.baseAbove(files[i+1:]))
		default:
			f.base = 0 // unknown; better too low than too high: what was there must not read as removed by retention
		}
		f.first = f.base
		l.noteDamage(f.base, f.broken)
	}
}

// baseAbove returns where the first readable segment of files begins, or the end of the log.
func (l *Log) baseAbove(files []*segFile) Offset {
	for _, f := range files {
		if f.broken == nil {
			return f.base
		}
	}
	return l.end.off
}

// Append adds one batch at the end of the log and takes its own reference to s.Buf. View finds the batch at once. The
// batch need not be durable yet: the callers bound what their readers see. Append waits for no I/O and allocates only
// when the tail grows. One goroutine at a time calls it, in log order: a batch that does not continue the log is a bug
// and panics. After Close, Append does nothing.
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

// mustContinue panics unless s is the next batch of the log and lies within its segment. The caller holds l.mu.
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

// Start returns where the log begins. The start moves when segments are trimmed.
func (l *Log) Start() (Offset, Position, MsgID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.start.off, l.start.pos, l.start.id
}

// Trimmed says whether batches came before the log's start: retention removed them, or somebody removed their files.
// Where a batch at the start would go, if it were another one, is then not known: perhaps into the segment before.
func (l *Log) Trimmed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.start.off > 0 && len(l.segs) > 0 && !l.segs[0].starts
}

// TrimmableTo returns the lowest offset for which Trim can remove a segment. ok is false if there is no such segment.
func (l *Log) TrimmableTo() (to Offset, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.segs) < 2 {
		return 0, false
	}
	return l.segs[1].base, true
}

// End returns where the next batch will begin.
func (l *Log) End() (Offset, Position, MsgID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end.off, l.end.pos, l.end.id
}

// Close frees what the log holds. It flushes nothing, because the commit log has it. Views that are still pinned stay
// valid until they are released.
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
	l.dropCut()
	err := l.closeFiles()
	for _, f := range segs {
		f.release()
	}
	return err
}

// closeFiles closes the files that were written since the last sync, and empties the lists of them. The caller holds
// l.io.
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
