package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/google/uuid"

	"penstock/batch"
	"penstock/internal/lock"
	"penstock/segment/aio"
)

// Layout of a segment file's header block; FORMAT.md holds the table.
const (
	// SegmentHeaderBytes is the size of the block before the batches of a segment file.
	SegmentHeaderBytes = 4096
	// SegmentVersion is the only version of the file layout so far.
	SegmentVersion = 1

	segMagic = 'P' | 'S'<<8 | 'E'<<16 | 'G'<<24

	offSegMagic         = 0
	offSegVersion       = 4
	offSegFlags         = 5
	offSegHeaderBytes   = 6
	offSegTopic         = 8
	offSegPartition     = 24
	offSegNumber        = 28
	offSegBaseOffset    = 32
	offSegFirstOffset   = 40
	offSegFirstPosition = 48
	offSegFirstID       = 56
	offSegCapacity      = 64
	offSegFirstAppended = 72
	offSegReserved      = 80
	offSegCRC           = 84
	segFieldsBytes      = 88

	segFlagStarts = 1 << 0
)

// segHeader is the decoded header block of a segment file.
type segHeader struct {
	id            Identity
	number        uint32
	starts        bool   // files with lower numbers are not part of the log
	base          Offset // log offset of file byte SegmentHeaderBytes
	first         Offset // offset of the first batch; base <= first
	firstPos      Position
	firstID       MsgID
	firstAppended int64
	capacity      int64
}

func (h *segHeader) encode(p []byte) {
	p = p[:SegmentHeaderBytes]
	clear(p)
	le := binary.LittleEndian
	le.PutUint32(p[offSegMagic:], segMagic)
	p[offSegVersion] = SegmentVersion
	if h.starts {
		p[offSegFlags] = segFlagStarts
	}
	le.PutUint16(p[offSegHeaderBytes:], SegmentHeaderBytes)
	copy(p[offSegTopic:], h.id.Topic[:])
	le.PutUint32(p[offSegPartition:], h.id.Partition)
	le.PutUint32(p[offSegNumber:], h.number)
	le.PutUint64(p[offSegBaseOffset:], uint64(h.base))
	le.PutUint64(p[offSegFirstOffset:], uint64(h.first))
	le.PutUint64(p[offSegFirstPosition:], uint64(h.firstPos))
	le.PutUint64(p[offSegFirstID:], uint64(h.firstID))
	le.PutUint64(p[offSegCapacity:], uint64(h.capacity))
	le.PutUint64(p[offSegFirstAppended:], uint64(h.firstAppended))
	le.PutUint32(p[offSegCRC:], batch.Checksum(p[:offSegCRC]))
}

// decode reads a header block. The error is a plain sentence for CorruptError.Detail.
func (h *segHeader) decode(p []byte) error {
	if len(p) < SegmentHeaderBytes {
		return errors.New("the file is shorter than its header block")
	}
	p = p[:SegmentHeaderBytes]
	le := binary.LittleEndian
	switch {
	case le.Uint32(p[offSegMagic:]) != segMagic:
		return errors.New("no segment header")
	case p[offSegVersion] != SegmentVersion:
		return fmt.Errorf("segment version %d is unknown to this program", p[offSegVersion])
	case le.Uint32(p[offSegCRC:]) != batch.Checksum(p[:offSegCRC]):
		return errors.New("header checksum")
	case p[offSegFlags]&^segFlagStarts != 0, le.Uint32(p[offSegReserved:]) != 0,
		le.Uint16(p[offSegHeaderBytes:]) != SegmentHeaderBytes:
		return errors.New("header fields of another program")
	}
	for _, b := range p[segFieldsBytes:] {
		if b != 0 {
			return errors.New("header padding is not zero")
		}
	}
	h.id = Identity{uuid.UUID(p[offSegTopic : offSegTopic+16]), le.Uint32(p[offSegPartition:])}
	h.starts = p[offSegFlags]&segFlagStarts != 0
	h.number = le.Uint32(p[offSegNumber:])
	h.base = Offset(le.Uint64(p[offSegBaseOffset:]))
	h.first = Offset(le.Uint64(p[offSegFirstOffset:]))
	h.firstPos = Position(le.Uint64(p[offSegFirstPosition:]))
	h.firstID = MsgID(le.Uint64(p[offSegFirstID:]))
	h.capacity = int64(le.Uint64(p[offSegCapacity:]))
	h.firstAppended = int64(le.Uint64(p[offSegFirstAppended:]))
	if h.base < 0 || h.capacity <= 0 || h.first < h.base || int64(h.first-h.base) > h.capacity || h.firstID > MaxMsgID+1 {
		return errors.New("header fields contradict each other")
	}
	return nil
}

// FirstReservedBytes is the space that the first segment file of a log, number 0, gets when it is made, header block
// included. The rest of it is a hole. Its space doubles as the log grows, because most logs of a node with many topics
// never need more. Later files get all their space at once: a log that fills one segment fills the next one, too.
const FirstReservedBytes = 64 << 10

// reserved returns how many bytes of a segment file of size bytes get space when used of them are written.
func (h *segHeader) reserved(size, used int64) int64 {
	if h.number != 0 {
		return size
	}
	n := int64(FirstReservedBytes)
	for n < used {
		n *= 2
	}
	return min(size, n)
}

// reserve gives the file space for its first used bytes, and for as many as reserved says if there is room. The caller
// holds l.io and has opened the file for writing. A crash leaves a file with more space or with less: after a restart
// held is 0, and the first write asks again.
func (f *segFile) reserve(used, block int64) error {
	if f.number != 0 || used <= f.held {
		return nil
	}
	size := aio.RoundUp(SegmentHeaderBytes+f.capacity, block)
	want := f.reserved(size, used)
	err := f.file.Reserve(want)
	if aio.NoRoom(err) {
		want = min(size, aio.RoundUp(used, block))
		err = f.file.Reserve(want)
	}
	if err == nil {
		f.held = want
	}
	return err
}

// errSegHeader says that the bytes of a header block are wrong, or that the device cannot read them. Other errors of
// reading a header block are errors of the environment.
var errSegHeader = errors.New("damaged header block")

func readSegmentHeader(disk aio.Disk, name string) (h segHeader, size int64, err error) {
	file, err := disk.Open(name)
	if err != nil {
		return h, 0, fmt.Errorf("segment: %w", err)
	}
	defer func() { _ = file.Close() }()
	if size, err = file.Size(); err != nil {
		return h, 0, fmt.Errorf("segment: %w", err)
	}
	if size < SegmentHeaderBytes {
		return h, size, fmt.Errorf("%w: the file has %d bytes", errSegHeader, size)
	}
	block := make([]byte, SegmentHeaderBytes)
	if err := file.ReadAt(block, 0); err != nil {
		if errors.Is(err, syscall.EIO) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("%w: %w", errSegHeader, err)
		}
		return h, size, err
	}
	if err := h.decode(block); err != nil {
		return h, size, fmt.Errorf("%w: %w", errSegHeader, err)
	}
	return h, size, nil
}

// span is a half-open range of the log.
type span struct{ from, to Offset }

// segFile is one segment file of a log.
//
// refs counts the log that lists the file (1) and every pin. Pins are taken only from the list and under the log's mu,
// so no new pin can come once the log gave up its reference. The last release unmaps the file, and unlinks it if it was
// moved to the trash.
type segFile struct {
	segHeader
	log  *Log
	path string // relative to the data directory

	// Guarded by the log's mu.
	broken  *CorruptError // if not nil, no byte of it can be read (missing, foreign, damaged header)
	bad     []span        // isolated ranges, ordered
	index   []indexEntry
	indexed bool   // index covers the file from first on, perhaps without the newest batches
	used    uint64 // the log's clock at the last pin
	lastCRC uint32 // header CRC of the last batch that this process wrote
	sealed  bool   // full: another segment follows

	// The file is shorter than its capacity, but holds every batch. A file of full size replaces it before more is
	// written. Set by Open and OpenAgain.
	short bool

	// Owned by the holder of the log's io mutex.
	file aio.File // open from the first write until the sync that covers it
	held int64    // the first bytes of the file that have space, as far as this process knows

	ground atomic.Pointer[aio.FileID] // what path led to; nil: nobody has looked. See CheckGround

	refs     atomic.Int32
	holds    atomic.Int32                    // HeldFiles, each of which may have given the file a name
	mapMu    lock.Mutex[lock.SegmentMapping] // guards the fields below; never held during a call of the disk
	mapping  aio.Mapping
	isMapped atomic.Bool // mapping != nil, readable without mapMu
	trashing string      // the name in the trash that the file is being given
	trashed  string      // name in the trash, set before the log releases its reference; the last release removes it
}

func newSegFile(l *Log, h segHeader) *segFile {
	f := &segFile{segHeader: h, log: l, path: path.Join(l.dir, segmentName(h.number))}
	f.refs.Store(1)
	return f
}

func segmentName(number uint32) string { return fmt.Sprintf("%010d.seg", number) }

func indexPath(segPath string) string { return strings.TrimSuffix(segPath, ".seg") + ".idx" }

// parseSegmentName accepts exactly what segmentName makes.
func parseSegmentName(name string) (number uint32, ok bool) {
	digits, ok := strings.CutSuffix(name, ".seg")
	if !ok || len(digits) != 10 {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	return uint32(n), err == nil && segmentName(uint32(n)) == name
}

func parseIndexName(name string) (number uint32, ok bool) {
	base, ok := strings.CutSuffix(name, ".idx")
	if !ok {
		return 0, false
	}
	return parseSegmentName(base + ".seg")
}

// at is the place in the file of a log offset.
func (h *segHeader) at(off Offset) int64 { return SegmentHeaderBytes + int64(off-h.base) }

func (h *segHeader) offset(at int64) Offset { return h.base + Offset(at-SegmentHeaderBytes) }

func (f *segFile) corrupt(at int64, err error) *CorruptError {
	return &CorruptError{Path: f.path, Offset: at, Detail: err.Error(), Err: err}
}

// isolated returns the isolated range that contains off.
func (f *segFile) isolated(off Offset) (span, bool) {
	for _, s := range f.bad {
		if off >= s.from && off < s.to {
			return s, true
		}
	}
	return span{}, false
}

// goodUntil returns where a run that begins at off, outside any isolated range, must end.
func (f *segFile) goodUntil(off, end Offset) Offset {
	for _, s := range f.bad {
		if s.from > off {
			return min(end, s.from)
		}
	}
	return end
}

// mapped maps the file on first use. The caller holds a pin and no lock. mapped calls the disk without a lock, so that
// a disk that hangs delays nobody who does not need it. Two readers that come at once may both map the file; the first
// mapping is kept.
func (f *segFile) mapped() (aio.Mapping, error) {
	f.mapMu.Lock()
	m := f.mapping
	f.mapMu.Unlock()
	if m != nil {
		return m, nil
	}
	m, err := f.mapFile()
	f.mapMu.Lock()
	if f.mapping == nil && err == nil {
		f.mapping = m
		f.isMapped.Store(true)
		f.log.mapped.Add(1)
		f.log.opts.Mappings.add(f.log, 1)
		m = nil
	}
	kept := f.mapping
	f.mapMu.Unlock()
	if m != nil {
		_ = m.Unmap()
	}
	if kept != nil {
		return kept, nil
	}
	return nil, err
}

// mapFile maps the file where it is now: in the log's directory, or in the trash.
func (f *segFile) mapFile() (aio.Mapping, error) {
	file, err := f.log.disk.Open(f.path)
	trash := f.trashName()
	if trash != "" && errors.Is(err, fs.ErrNotExist) {
		file, err = f.log.disk.Open(trash) // moved to the trash after the pin was taken
	}
	if err != nil {
		switch {
		case errors.Is(err, fs.ErrNotExist) && trash != "":
			return nil, ErrBelowStart // the engine emptied the old trash, with what came since
		case errors.Is(err, fs.ErrNotExist):
			return nil, f.corrupt(0, errors.New("the file is gone"))
		}
		return nil, fmt.Errorf("segment: %w", err)
	}
	m, err := file.Map()
	if cerr := file.Close(); err == nil && cerr != nil {
		_ = m.Unmap()
		return nil, fmt.Errorf("segment: mapping %s: %w", f.path, cerr)
	}
	if err != nil {
		return nil, fmt.Errorf("segment: mapping %s: %w", f.path, err)
	}
	return m, nil
}

// trashName returns the file's name in the trash, also while the file is being moved there; "" if it is not in the
// trash.
func (f *segFile) trashName() string {
	f.mapMu.Lock()
	defer f.mapMu.Unlock()
	if f.trashed != "" {
		return f.trashed
	}
	return f.trashing
}

// takeMapping detaches the mapping, if any, for the caller to unmap. The caller made sure that nobody has a pin or can
// get one.
func (f *segFile) takeMapping() aio.Mapping {
	f.mapMu.Lock()
	defer f.mapMu.Unlock()
	m := f.mapping
	if m != nil {
		f.mapping = nil
		f.isMapped.Store(false)
		f.log.mapped.Add(-1)
		f.log.opts.Mappings.add(f.log, -1)
	}
	return m
}

func (f *segFile) pin() { f.refs.Add(1) }

// release gives up a reference. The last release frees the file. Nobody could act on an error there: the mapping ends
// with the process, and the trash is emptied at the next start. The caller does not hold l.mu.
func (f *segFile) release() {
	n := f.refs.Add(-1)
	if n > 0 {
		if n == 1 && f.log.mapped.Load() > int64(f.log.opts.MaxMappedSegments) {
			f.log.shedMappings(f.log.opts.MaxMappedSegments)
		}
		return
	}
	if n < 0 {
		panic("BUG: segment: " + f.path + " released more often than pinned")
	}
	if m := f.takeMapping(); m != nil {
		_ = m.Unmap()
	}
	if f.trashed != "" {
		_ = f.log.disk.Remove(f.trashed)
	}
}
