package clog

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/google/uuid"

	"penstock/segment"
	"penstock/segment/aio"
)

// Record is one replayed record.
type Record struct {
	Placement
	Payload  []byte   // inside Buf
	Buf      *aio.Buf // retain it to keep Payload
	FileSeq  uint64
	GroupSeq uint64
}

// Replayer receives what recovery finds. An error ends recovery, and Open returns that error.
type Replayer interface {
	// Checkpoint receives the chunks of the first replayed file's checkpoint, before all records. chunk is borrowed for
	// the call.
	Checkpoint(chunk []byte) error
	// Record receives the records, in order. r and what r points to are borrowed for the call.
	Record(r *Record) error
	// Restart says that everything received so far does not count: replay began with files that turned out not to be
	// needed. Replay starts again behind them, at most once.
	Restart()
}

// Report says what Open found. It is complete even if Open fails.
type Report struct {
	Files      int
	OldestFile uint64 // 0: there was nothing
	NewestFile uint64 // the last file with a group that counts
	LastSeq    uint64 // of the last group
	Groups     uint64
	Records    uint64 // without those of checkpoints
	Bytes      int64  // of all groups, with padding

	// TornBytes is the size of the groups behind the end of the log. They were submitted, no header promises them, and
	// recovery cut them. Whether any of them became durable is unknown.
	TornBytes int64
	Torn      bool // something behind the end was cut
	// Tear describes the group that was cut; nil if there is no sign of such a group.
	Tear *Tear
	// Forgotten says what the log lacks although it was durable once. It is nil if log.mark shows no such loss.
	Forgotten *Forgotten
	// Noted says that the notes of where the partitions' logs begin are right: the version that wrote the log keeps them,
	// and made all of them. Versions from before the directory's level that requires a mark leave the mark as it is, so it
	// counts only there.
	Noted bool
	// Unneeded is damage that recovery ignored because the log no longer needed the damaged file; nil if there is none.
	Unneeded error

	Duration time.Duration
}

// oldFile is a file that recovery found.
type oldFile struct {
	aio.File
	number    uint64
	sizeBytes int64
	id        aio.FileID
	first     groupHeader
	valid     bool  // the file begins with first, and first carries the file's own number
	whole     bool  // a walk has seen the whole checkpoint with which the file begins
	headless  error // its first block could not be read
}

// recovery walks the chain of groups through the files; decide is its judgement. It changes nothing on disk. Only the
// goroutine that runs Open uses it.
type recovery struct {
	disk     aio.Disk
	store    uuid.UUID
	block    int64
	replayer Replayer
	report   *Report
	win      window
	files    []*oldFile // in order of number

	// What log.mark says, and the size of its slots.
	mark      logMark
	markState markState
	stride    int64

	// The place under judgement, and the chain up to it.
	at      int // index of the file
	off     int64
	begun   bool // a group was accepted
	damaged bool // the error is about the log's bytes, not about the environment
	last    groupHeader
	later   int              // groups behind the place in the same file whose headers promise no group at the place
	used    map[uint64]int64 // by file number: where the last accepted group ends

	checkpoint chunks
	record     Record
}

// run replays the log. On success r.last is the header of the chain's last group.
func (r *recovery) run() error {
	defer r.win.release()
	defer func() { r.checkpoint.drop() }()
	if err := r.openFiles(); err != nil {
		return err
	}
	err := r.headless()
	if err == nil {
		err = r.walk()
	}
	if err != nil && !r.damaged {
		return err
	}
	if err == nil {
		first, ok := r.firstNeeded()
		if !ok || r.files[first].number <= r.report.OldestFile {
			return nil
		}
		r.restart(first)
		return r.walk()
	}
	first, ok := r.unneededBelow()
	if !ok {
		return err
	}
	r.report.Unneeded = err
	r.restart(first)
	return r.walk()
}

// headless turns to the newest file whose first block could not be read, and returns the error of that read.
func (r *recovery) headless() error {
	for i, f := range slices.Backward(r.files) {
		if f.headless != nil {
			r.turnTo(i)
			r.damaged = true
			return f.headless
		}
	}
	return nil
}

// walk follows the chain from the place to its end.
func (r *recovery) walk() error {
	for r.at < len(r.files) {
		p, h, group, err := r.look()
		if err != nil {
			return err
		}
		next, promised := false, false
		if p != placeValid {
			if next = r.continuesInNext(); !next {
				if promised, err = r.promisedBeyond(); err != nil {
					return err
				}
			}
		}
		switch decide(p, next, promised) {
		case verdictAccept:
			if err := r.accept(&h, group); err != nil {
				return err
			}
		case verdictFollow:
			r.turnTo(r.at + 1)
		case verdictCut:
			if err := r.end(); err != nil {
				return err
			}
			return r.checkOldest()
		case verdictCorrupt:
			return r.corrupt()
		}
	}
	return nil
}

// end reports what lies behind the log's end.
func (r *recovery) end() error {
	t, err := r.tear()
	if err != nil || t == nil {
		return err
	}
	r.report.Tear, r.report.Torn = t, true
	r.report.TornBytes = max(r.report.TornBytes, t.Bytes)
	return nil
}

// openFiles opens every file, flushes it, and reads its first header. It flushes first because the source will build on
// everything that recovery replays, so all of it must be durable. After a process was killed, bytes in the page cache
// may not be.
func (r *recovery) openFiles() error {
	infos, err := r.disk.ReadDir(dirName)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("clog: listing the log's folder: %w", err)
	}
	for _, info := range infos {
		number, ok := parseName(info.Name())
		if !ok {
			continue
		}
		f, err := r.disk.Open(fileName(number))
		if err != nil {
			return fmt.Errorf("clog: opening %s: %w", fileName(number), err)
		}
		old := &oldFile{File: f, number: number}
		r.files = append(r.files, old)
		if old.sizeBytes, err = f.Size(); err != nil {
			return err
		}
		if old.id, err = f.ID(); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return fmt.Errorf("clog: flushing what was found: %w", err)
		}
		if err := r.identify(old); err != nil {
			return err
		}
	}
	r.report.Files = len(r.files)
	if len(r.files) > 0 {
		r.turnTo(0)
	}
	return nil
}

// identify reads the header at the start of a file. Only there does a header prove whose file it is: further in, a
// message may look like a header.
func (r *recovery) identify(f *oldFile) error {
	if f.sizeBytes < r.block {
		return nil
	}
	r.win.open(f, r.block)
	p, err := r.win.at(0, r.block)
	if errors.Is(err, aio.ErrNoMemory) {
		return r.unreadable(f, 0, err)
	} else if err != nil {
		f.headless = r.unreadable(f, 0, err)
		return nil
	}
	switch f.first.decode(p) {
	case headerNewer:
		if f.first.File == f.number {
			return fmt.Errorf("%w (%s)", ErrNewer, f.Name())
		}
	case headerValid:
		if f.first.Store != r.store {
			return fmt.Errorf("%w (%s belongs to store %v, this is %v)", ErrForeign, f.Name(), f.first.Store, r.store)
		}
		f.valid = f.first.File == f.number
	}
	return nil
}

func (r *recovery) turnTo(file int) {
	r.at, r.off = file, 0
	r.checkpoint.reset()
	if file < len(r.files) {
		r.win.open(r.files[file], r.files[file].sizeBytes)
	}
}

// headerAt decodes the header at off in the current file and says whether it belongs to a group of this file.
func (r *recovery) headerAt(off int64, h *groupHeader) (bool, error) {
	f := r.files[r.at]
	if off+r.block > r.win.size {
		return false, nil
	}
	p, err := r.win.at(off, r.block)
	if err != nil {
		return false, r.unreadable(f, off, err)
	}
	return h.decode(p) == headerValid && h.Store == r.store && h.File == f.number, nil
}

// look classifies the place. h is set unless p is placeNothing. group is set with placeValid, and with placeDamaged if
// the whole group could be read.
func (r *recovery) look() (p place, h groupHeader, group []byte, err error) {
	own, err := r.headerAt(r.off, &h)
	switch {
	case err != nil || !own:
		return placeNothing, h, nil, err
	case !r.continues(&h):
		return placeOther, h, nil, nil
	case r.off+h.padded() > r.win.size || h.padded()%r.block != 0:
		return placeDamaged, h, nil, nil
	}
	group, err = r.win.at(r.off, h.padded())
	if err != nil {
		return placeNothing, h, nil, r.unreadable(r.files[r.at], r.off, err)
	}
	if _, err := verifyGroup(&h, group); err != nil || !r.checkpoint.fits(&h, group) {
		return placeDamaged, h, group, nil
	}
	return placeValid, h, group, nil
}

// continues says whether h is the header of the next group of the chain. A chain may begin with any group.
func (r *recovery) continues(h *groupHeader) bool {
	return !r.begun || h.Seq == r.last.Seq+1 && h.PrevCRC == r.last.CRC
}

// continuesInNext says whether the next file continues the chain (the condition next of decide). If no chain has begun,
// the next file may begin it, provided that the header of its first group says that this file was not needed.
func (r *recovery) continuesInNext() bool {
	if r.at+1 == len(r.files) {
		return false
	}
	next := r.files[r.at+1]
	if !next.valid || !r.continues(&next.first) {
		return false
	}
	return r.begun || next.first.Oldest > r.files[r.at].number
}

// promisedBeyond computes the condition promised of decide. It searches the rest of the file and all later files, block
// by block, for headers of this store. Afterwards the window is back at the place.
func (r *recovery) promisedBeyond() (bool, error) {
	at, off := r.at, r.off
	r.later = 0
	defer func() {
		r.at, r.off = at, off
		r.win.open(r.files[at], r.files[at].sizeBytes)
	}()
	var h groupHeader
	for ; r.at < len(r.files); r.at, r.off = r.at+1, 0 {
		r.win.open(r.files[r.at], r.files[r.at].sizeBytes)
		for r.off+r.block <= r.win.size {
			own, err := r.headerAt(r.off, &h)
			if err != nil {
				return false, err
			}
			step := r.block
			if own && h.Seq > r.last.Seq {
				if h.Durable > r.last.Seq {
					return true, nil
				}
				r.report.Torn = true
				r.report.TornBytes += h.padded()
				if r.at == at && r.off > off {
					r.later++
				}
				if step, err = r.stepOver(&h); err != nil {
					return false, err
				}
			}
			r.off += step
		}
	}
	return false, nil
}

// stepOver returns the size of the group at the place if the group verifies, else one block. A message inside a valid
// group may look like a header and must not be taken for one.
func (r *recovery) stepOver(h *groupHeader) (int64, error) {
	size := h.padded()
	if r.off+size > r.win.size || size%r.block != 0 {
		return r.block, nil
	}
	p, err := r.win.at(r.off, size)
	if err != nil {
		return 0, r.unreadable(r.files[r.at], r.off, err)
	}
	if _, err := verifyGroup(h, p); err != nil {
		return r.block, nil
	}
	return size, nil
}

// accept replays a group and moves the place behind it.
func (r *recovery) accept(h *groupHeader, group []byte) error {
	f := r.files[r.at]
	if !r.begun {
		r.begun = true
		r.report.OldestFile = f.number
	}
	r.last = *h
	r.report.NewestFile, r.report.LastSeq = f.number, h.Seq
	r.report.Groups++
	r.report.Bytes += h.padded()
	r.off += h.padded()
	r.used[f.number] = r.off
	r.record.Buf, r.record.FileSeq, r.record.GroupSeq = r.win.buf, h.File, h.Seq
	return eachRecord(h, group, func(rec *recordHeader, payload []byte) error {
		if rec.Type == Checkpoint {
			f.whole = rec.Flags&flagLast != 0
			return r.checkpoint.take(rec, payload, r.win.buf, r.replayer)
		}
		r.report.Records++
		r.record.Placement, r.record.Payload = rec.Placement, payload
		return r.replayer.Record(&r.record)
	})
}

// checkOldest detects a loss at the beginning: the header of the last group says which file was the oldest needed. If
// newer files are gone (Report.Forgotten), they may have said that fewer are needed, and those may have been given back
// since: then the first group of what is left decides, and replay finds what the segments lack in front of it.
func (r *recovery) checkOldest() error {
	if r.markState == markValid && !r.reached() {
		return nil
	}
	if r.begun && r.last.Oldest < r.report.OldestFile {
		r.damaged = true
		return &segment.CorruptError{
			Path: fileName(r.last.Oldest), Missing: true,
			Detail: "the log needs it, and the first file found is " + fileName(r.report.OldestFile),
		}
	}
	return nil
}

// corrupt returns an error that describes the damage at the place.
func (r *recovery) corrupt() error {
	p, h, group, err := r.look() // again: the search for promises moved the window
	if err != nil {
		return err
	}
	r.damaged = true
	f := r.files[r.at]
	e := &segment.CorruptError{Path: fileName(f.number), Offset: r.off}
	last := r.at+1 == len(r.files)
	switch {
	case p == placeDamaged:
		e.Detail = fmt.Sprintf("group %d is cut or out of order", h.Seq)
		if group != nil {
			if at, err := verifyGroup(&h, group); err != nil {
				e.Offset += int64(at)
				e.Detail = fmt.Sprintf("group %d: %v", h.Seq, err)
			}
		}
	case p == placeOther:
		e.Detail = fmt.Sprintf("group %d stands where group %d belongs", h.Seq, r.last.Seq+1)
	case r.begun && r.damagedHeader():
		e.Detail = fmt.Sprintf("group %d: its header is not what was written", r.last.Seq+1)
	case !r.begun:
		e.Detail = "the file does not begin with a group, and later ones say that it did"
	case !last && r.files[r.at+1].number != f.number+1:
		e.Path, e.Offset, e.Missing = fileName(f.number+1), 0, true
		e.Detail = fmt.Sprintf("group %d, which was durable, is not in the file before", r.last.Seq+1)
	case !last && !r.files[r.at+1].valid:
		// This file may just be full; in that case the damage is at the beginning of the next one.
		e.Path, e.Offset = fileName(r.files[r.at+1].number), 0
		e.Detail = fmt.Sprintf("group %d, which was durable, is missing here or at the end of the file before", r.last.Seq+1)
	default:
		e.Detail = fmt.Sprintf("group %d, which was durable, is missing", r.last.Seq+1)
	}
	return e
}

// unreadable turns the error of a read into corruption, because bytes that cannot be read may have been promised. Lack
// of memory is not corruption.
func (r *recovery) unreadable(f *oldFile, off int64, err error) error {
	if errors.Is(err, aio.ErrNoMemory) {
		return fmt.Errorf("clog: reading the log: %w; nothing was changed; give the process more memory", err)
	}
	r.damaged = true
	return fmt.Errorf("%w: %w", &segment.CorruptError{Path: fileName(f.number), Offset: off, Detail: "cannot be read"},
		err)
}

func (r *recovery) closeFiles() error {
	var err error
	for _, f := range r.files {
		err = errors.Join(err, f.Close())
	}
	return err
}
