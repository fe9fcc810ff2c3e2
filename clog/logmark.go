package clog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"

	"github.com/google/uuid"

	"penstock/segment"
	"penstock/segment/aio"
)

// MarkName is the file beside the log's folder that says how far the log went at least. Without it, a log whose newest
// file was removed would end cleanly at an earlier group, and nothing would tell it from a whole one.
const MarkName = "log.mark"

const (
	// LogMarkBytes is the size of a log mark. Each of the two slots of the file begins with one.
	LogMarkBytes = 64

	markMagic   = 'P' | 'C'<<8 | 'M'<<16 | '1'<<24
	markVersion = 1
	markSlots   = 2

	maxMarkFileBytes = markSlots << maxBlockShift
)

// Offsets in a log mark. They are the same in every version.
const (
	offMarkMagic    = 0
	offMarkVersion  = 4
	offMarkFlags    = 5
	offMarkReserved = 6
	offMarkStore    = 8
	offMarkCounter  = 24
	offMarkFile     = 32
	offMarkSeq      = 40
	offMarkUsed     = 48
	offMarkZero     = 56
	offMarkCRC      = 60
)

// logMark is what a slot says: the log of this store reached group Seq, which lies in file File, and both were on
// stable storage. It is a lower bound: versions that do not know log.mark go on without it. File 0 says that no file
// was begun yet.
type logMark struct {
	Store   uuid.UUID
	Counter uint64 // 1, 2, 3, ...: the slot with the greatest counter counts
	File    uint64
	Seq     uint64
	Used    uint64 // no file may be begun with this number or a lower one; at least File
	// Noted says that the process that wrote the mark keeps the notes of where the partitions' logs begin, and that all
	// of them were right then (segment/note.go). A version that does not know of them writes false.
	Noted bool
}

// markNoted is the bit of a slot that encodes logMark.Noted.
const markNoted = 1

// encode writes the mark to p.
func (m *logMark) encode(p []byte) {
	p = p[:LogMarkBytes]
	clear(p)
	le := binary.LittleEndian
	le.PutUint32(p[offMarkMagic:], markMagic)
	p[offMarkVersion] = markVersion
	if m.Noted {
		p[offMarkFlags] = markNoted
	}
	copy(p[offMarkStore:], m.Store[:])
	le.PutUint64(p[offMarkCounter:], m.Counter)
	le.PutUint64(p[offMarkFile:], m.File)
	le.PutUint64(p[offMarkSeq:], m.Seq)
	le.PutUint64(p[offMarkUsed:], m.Used)
	le.PutUint32(p[offMarkCRC:], checksum(p[:offMarkCRC]))
}

// decode reads the mark at the start of p, and says whether there is one.
func (m *logMark) decode(p []byte) bool {
	le := binary.LittleEndian
	if len(p) < LogMarkBytes || le.Uint32(p[offMarkMagic:]) != markMagic || p[offMarkVersion] < markVersion ||
		checksum(p[:offMarkCRC]) != le.Uint32(p[offMarkCRC:]) {
		return false
	}
	m.Noted = p[offMarkFlags]&markNoted != 0
	copy(m.Store[:], p[offMarkStore:])
	m.Counter = le.Uint64(p[offMarkCounter:])
	m.File = le.Uint64(p[offMarkFile:])
	m.Seq = le.Uint64(p[offMarkSeq:])
	m.Used = le.Uint64(p[offMarkUsed:])
	return m.Counter > 0
}

// content returns a whole file of slots of stride bytes that says m.
func (m *logMark) content(stride int64) []byte {
	p := make([]byte, markSlots*stride)
	m.encode(p[m.at(stride):])
	return p
}

// at is where the slot of m begins. Two marks that follow each other have different slots, so that a write that a crash
// tears leaves the mark before it.
func (m *logMark) at(stride int64) int64 { return int64(m.Counter%markSlots) * stride }

// readLogMark reads the mark of a store. It first flushes the file, as recovery does with the files of the log: what
// Open builds on must be durable. The content of a file that the device cannot read counts as damaged.
func readLogMark(disk aio.Disk, store uuid.UUID) (m logMark, state markState, stride int64, err error) {
	f, err := disk.Open(MarkName)
	if errors.Is(err, fs.ErrNotExist) {
		return m, markNone, 0, nil
	}
	if err != nil {
		return m, 0, 0, fmt.Errorf("clog: opening %s: %w", MarkName, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return m, 0, 0, err
	}
	if err := f.Sync(); err != nil {
		return m, 0, 0, fmt.Errorf("clog: flushing %s: %w", MarkName, err)
	}
	if size < markSlots*LogMarkBytes || size > maxMarkFileBytes {
		return m, markDamaged, 0, nil
	}
	p := make([]byte, size)
	if err := f.ReadAt(p, 0); errors.Is(err, aio.ErrNoMemory) {
		return m, 0, 0, fmt.Errorf("clog: reading %s: %w", MarkName, err)
	} else if err != nil {
		return m, markDamaged, 0, nil
	}
	stride = size / markSlots
	m, state = newestSlot(p, stride, store)
	return m, state, stride, nil
}

// newestSlot returns the newest mark of the store. A slot that is damaged, or another store's, does not count if the
// other one does.
func newestSlot(p []byte, stride int64, store uuid.UUID) (newest logMark, state markState) {
	state = markDamaged
	for slot := range int64(markSlots) {
		var m logMark
		if !m.decode(p[slot*stride:]) {
			continue
		}
		if m.Store != store {
			if state == markDamaged {
				state = markForeign
			}
			continue
		}
		if state != markValid || m.Counter > newest.Counter {
			newest, state = m, markValid
		}
	}
	return newest, state
}

// CreateMark writes the log.mark of a new store, of which no file of the log was begun yet. The engine calls it before
// the file that makes the directory this store's: from then on, a directory without a log mark is one from which it was
// removed. A crash leaves the file as it was before or the new one.
func CreateMark(disk aio.Disk, store uuid.UUID) error {
	return replaceMark(disk, &logMark{Store: store, Counter: 1})
}

// BegunWithoutStore says whether log.mark tells of a log, of whatever store, of which a file was begun.
func BegunWithoutStore(disk aio.Disk) (bool, error) {
	p, err := disk.ReadFile(MarkName, maxMarkFileBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for slot := range markSlots {
		var m logMark
		if m.decode(p[slot*len(p)/markSlots:]) && m.File > 0 {
			return true, nil
		}
	}
	return false, nil
}

// FreshMark recovers the log on a disk and returns the content of a log.mark that it reaches. Nothing is written. After
// a restore, and where an operator accepts a loss, it replaces a mark that is not about this log. No later file may
// have the number used, or that of the newest file if used is 0. Damage of the log is no error: the next Open reports
// it.
func FreshMark(disk aio.Disk, arena *aio.Arena, store uuid.UUID, used uint64) ([]byte, error) {
	report, err := Read(disk, arena, Options{Store: store}, nil)
	if err != nil && !errors.As(err, new(*segment.CorruptError)) {
		return nil, err
	}
	m := logMark{Store: store, Counter: 1, File: report.NewestFile, Seq: report.LastSeq}
	m.Used = max(m.File, used)
	return m.content(int64(disk.Info().BlockBytes)), nil
}

// Read replays the log on disk into r, as Open does, and judges it, but opens no log and writes nothing. Of o it uses
// Store and MarkRequired; r may be nil. A log that has forgotten is no error: see Report.Forgotten.
func Read(disk aio.Disk, arena *aio.Arena, o Options, r Replayer) (*Report, error) {
	if r == nil {
		r = nobody{}
	}
	rec, err := replay(disk, arena, o.Store, r, new(Report))
	if err == nil {
		rec.judgeMark(o.MarkRequired)
	}
	return rec.report, err
}

// RenewMark replaces log.mark by one that the log on the disk reaches. It keeps the numbers of files that the old mark
// says were used. Nobody may have the log open.
func RenewMark(disk aio.Disk, arena *aio.Arena, store uuid.UUID) error {
	old, _, _, err := readLogMark(disk, store)
	if err != nil {
		return err
	}
	data, err := FreshMark(disk, arena, store, old.Used)
	if err != nil {
		return err
	}
	return writeMarkFile(disk, data)
}

func replaceMark(disk aio.Disk, m *logMark) error {
	return writeMarkFile(disk, m.content(int64(disk.Info().BlockBytes)))
}

func writeMarkFile(disk aio.Disk, data []byte) error {
	if err := disk.WriteFile(MarkName, data); err != nil {
		return fmt.Errorf("clog: writing %s: %w", MarkName, err)
	}
	return nil
}

// marker writes the log's mark, one write and one flush per file of the log. The holder of Log.mu uses it; before
// Start, Open does. A crash during a write leaves the mark of the file before, which is true as well.
type marker struct {
	disk   aio.Disk
	file   aio.File // nil: the first mark makes it
	mem    []byte   // one aligned block; nil before Open made it
	free   func()
	stride int64
	last   logMark
}

// open prepares the marker for a log that recovery has judged. It makes log.mark if there is none that counts, unless
// the log has forgotten something: then what is there stays until the log goes on in a new file. By then the caller has
// noted durably that the log forgot, and a crash before finds the same again.
func (m *marker) open(r *recovery, report *Report) error {
	m.disk, m.last, m.stride = r.disk, r.mark, r.stride
	m.last.Noted = report.Noted
	m.mem, m.free = aio.AlignedBytes(int(r.block))
	if r.markState != markValid {
		m.last = logMark{Store: r.store, File: report.NewestFile, Seq: report.LastSeq, Used: report.NewestFile}
		if report.Forgotten != nil {
			return nil
		}
	}
	if r.markState == markValid && m.stride%r.block == 0 {
		return m.openFile()
	}
	m.last.Counter++
	return m.make()
}

// make writes log.mark anew, with what last says. Without room for it the log goes on without a mark, as it did before
// there were marks: only a directory whose level requires none can be without one here.
func (m *marker) make() error {
	if err := replaceMark(m.disk, &m.last); wantsRoom(err) {
		return nil
	} else if err != nil {
		return err
	}
	m.stride = int64(len(m.mem))
	return m.openFile()
}

func (m *marker) openFile() (err error) {
	if m.file, err = m.disk.Open(MarkName); err != nil {
		return fmt.Errorf("clog: opening %s: %w", MarkName, err)
	}
	return nil
}

// note says durably that the log has begun a file and that the file's checkpoint ends with group seq.
//
// If it fails, last stays, so that the next try writes the same slot: the other slot may be the only whole one.
func (m *marker) note(file, seq uint64, noted bool) error {
	before := m.last
	m.last.Counter, m.last.File, m.last.Seq, m.last.Used = m.last.Counter+1, file, seq, max(m.last.Used, file)
	m.last.Noted = noted
	if m.file == nil {
		return m.make()
	}
	m.last.encode(m.mem)
	err := m.file.WriteSyncAt(m.mem, m.last.at(m.stride))
	if err != nil {
		m.last = before
	}
	return err
}

// close closes the file and frees the memory.
func (m *marker) close() (err error) {
	if m.file != nil {
		err = m.file.Close()
		m.file = nil
	}
	if m.free != nil {
		m.free()
		m.free = nil
	}
	return err
}

// NoteStarts says that the notes of where the partitions' logs begin are right, and that this process keeps them so.
// The next process learns it (Report.Noted), unless another version runs in between. The caller has made sure that the
// directory is at the feature level that requires a mark, because an older version would leave the mark as it is.
// NoteStarts takes no lock.
func (l *Log) NoteStarts() {
	l.noted.Store(true)
	l.Wake()
}

// StartsNoted says whether the notes are known to be right. It takes no lock.
func (l *Log) StartsNoted() bool { return l.noted.Load() }

// markNoted writes the mark again if it does not say yet that the notes are right. The holder of mu calls it.
func (l *Log) markNoted() error {
	if !l.noted.Load() || l.marker.last.Noted || l.current == nil {
		return nil
	}
	return l.noteMark(l.marker.last.File, l.marker.last.Seq)
}

// noteFile marks the current file, whose checkpoint is durable. It comes before any other group of the file, so that
// every record that is answered lies in a file that the mark names.
func (l *Log) noteFile() error { return l.noteMark(l.current.number, l.seq) }

func (l *Log) noteMark(file, seq uint64) error {
	l.opts.Pulse.Begin()
	err := l.marker.note(file, seq, l.noted.Load())
	l.opts.Pulse.End()
	switch judgeWrite(err) {
	case writtenNoRoom:
		l.awaitRoom(err)
	case writtenFailed:
		return l.fail("writing "+MarkName, err)
	}
	return nil
}

// ErrForgotten says that the log lacks groups that were on stable storage: files of it are gone, or an older state of
// the disk came back. Errors that wrap it are a *Forgotten. Nothing was changed.
var ErrForgotten = errors.New("clog: the commit log lacks what was written to it; nothing was changed")

// Forgotten describes what the log on disk lacks of what log.mark says.
type Forgotten struct {
	File   string // what is gone or is not as it was, in the data directory
	Detail string // a sentence about it, without its end
	// Reached is the last group of the log, and Wanted the group that it reached once. 0 means that it is not known.
	Reached, Wanted uint64
}

func (f *Forgotten) Error() string {
	if f.Wanted == 0 {
		return fmt.Sprintf("clog: the commit log is not known to be whole: %s", f.Detail)
	}
	return fmt.Sprintf("clog: the commit log lacks what was written to it: %s; it ends with group %d and once reached "+
		"group %d or more", f.Detail, f.Reached, f.Wanted)
}

func (f *Forgotten) Unwrap() error { return ErrForgotten }

// judgeMark compares what recovery found with the mark, and sets Report.Forgotten. It changes nothing on disk.
func (r *recovery) judgeMark(required bool) judgement {
	j := judge(r.markState, required, r.report.NewestFile > 0, r.reached())
	r.report.Noted = r.markState == markValid && required && r.mark.Noted
	if j == judgedForgotten {
		r.report.Forgotten = r.forgotten()
	}
	return j
}

// reached says whether the log goes as far as a valid mark says.
func (r *recovery) reached() bool {
	m := &r.mark
	return r.report.NewestFile > m.File || r.report.NewestFile == m.File && r.report.LastSeq >= m.Seq
}

func (r *recovery) forgotten() *Forgotten {
	f := &Forgotten{File: MarkName, Reached: r.report.LastSeq}
	switch r.markState {
	case markNone:
		f.Detail = MarkName + " is gone"
	case markDamaged:
		f.Detail = MarkName + " is damaged"
	case markForeign:
		f.Detail = MarkName + " belongs to another store"
	case markValid:
		f.Wanted = r.mark.Seq
		f.File, f.Detail = r.lost()
	}
	return f
}

// lost names the file that the log must have lost to end where it does.
func (r *recovery) lost() (file, detail string) {
	file = fileName(r.mark.File)
	if len(r.files) == 0 {
		return dirName, "the folder " + dirName + " is empty or gone"
	}
	for _, f := range r.files {
		if f.number == r.mark.File {
			return file, file + " does not hold the groups that it began with"
		}
	}
	return file, file + " is gone"
}
