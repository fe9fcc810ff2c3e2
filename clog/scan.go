package clog

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/google/uuid"

	"penstock/segment"
	"penstock/segment/aio"
)

// FileInfo is a file of the log as Scan sees it.
type FileInfo struct {
	Name      string
	Number    uint64
	SizeBytes int64
}

// GroupInfo is a group as Scan sees it. Err says what does not verify; recovery would not accept a group with an Err.
type GroupInfo struct {
	Offset    int64 // in the file
	Seq       uint64
	Durable   uint64 // its header's promise: every group up to this one was durable
	Oldest    uint64 // its header's promise: the first file that recovery needed
	Store     uuid.UUID
	Bytes     int64 // with padding
	Records   int
	PrevCRC   uint32
	CRC       uint32
	Continues bool // it follows the group that Scan saw before it
	Err       error
}

// RecordInfo is a record as Scan sees it.
type RecordInfo struct {
	Placement
	Offset  int64  // of the payload, in the file
	Payload []byte // borrowed for the call
}

// Scan shows every group of every file to visit, in order of file number and offset, including groups that recovery
// would not reach. It only reads, judges nothing, and skips, block by block, what is not a group of its file. An error
// of visit ends the scan.
func Scan(disk aio.Disk, visit func(file FileInfo, g GroupInfo, recs []RecordInfo) error) error {
	infos, err := disk.ReadDir(dirName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("clog: listing the log's folder: %w", err)
	}
	s := scanner{win: window{block: int64(disk.Info().BlockBytes)}, visit: visit}
	for _, info := range infos {
		number, ok := parseName(info.Name())
		if !ok {
			continue
		}
		f, err := disk.Open(fileName(number))
		if err != nil {
			return fmt.Errorf("clog: opening %s: %w", fileName(number), err)
		}
		s.file = FileInfo{Name: fileName(number), Number: number, SizeBytes: info.Size()}
		err = s.walk(f)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

type scanner struct {
	win   window
	visit func(FileInfo, GroupInfo, []RecordInfo) error
	file  FileInfo
	last  groupHeader
	recs  []RecordInfo
}

func (s *scanner) walk(f aio.File) error {
	s.win.open(f, s.file.SizeBytes)
	for off := int64(0); off+s.win.block <= s.win.size; {
		n, err := s.group(off)
		if err != nil {
			return err
		}
		off += n
	}
	return nil
}

// group shows the group at off, if there is one, and returns the distance to the next place to look at.
func (s *scanner) group(off int64) (int64, error) {
	block := s.win.block
	p, err := s.win.at(off, block)
	if err != nil {
		return 0, err
	}
	var h groupHeader
	if h.decode(p) != headerValid || h.File != s.file.Number {
		return block, nil
	}
	g := GroupInfo{
		Offset: off, Seq: h.Seq, Durable: h.Durable, Oldest: h.Oldest, Store: h.Store, Bytes: h.padded(),
		Records: int(h.Records), PrevCRC: h.PrevCRC, CRC: h.CRC,
		Continues: h.Seq == s.last.Seq+1 && h.PrevCRC == s.last.CRC,
	}
	s.last = h
	s.recs = s.recs[:0]
	if g.Err = s.records(off, &h); g.Err != nil {
		return block, s.visit(s.file, g, s.recs)
	}
	return g.Bytes, s.visit(s.file, g, s.recs)
}

// records fills s.recs if the whole group verifies.
func (s *scanner) records(off int64, h *groupHeader) error {
	size := h.padded()
	if off+size > s.win.size || size%s.win.block != 0 {
		return &segment.CorruptError{
			Path: s.file.Name, Offset: off, Detail: fmt.Sprintf("group %d passes the end of the file", h.Seq),
		}
	}
	p, err := s.win.at(off, size)
	if err != nil {
		return err
	}
	if at, err := verifyGroup(h, p); err != nil {
		return &segment.CorruptError{
			Path: s.file.Name, Offset: off + int64(at), Detail: fmt.Sprintf("group %d: %v", h.Seq, err),
		}
	}
	at := off + GroupHeaderBytes
	return eachRecord(h, p, func(rec *recordHeader, payload []byte) error {
		at += RecordHeaderBytes
		s.recs = append(s.recs, RecordInfo{Placement: rec.Placement, Offset: at, Payload: payload})
		at += int64(len(payload))
		return nil
	})
}
