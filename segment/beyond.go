package segment

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"penstock/batch"
	"penstock/segment/aio"
)

// BeyondFile is a segment file with content that its log does not have: batches at or behind the log's end, or all of
// the file. A log that goes on from there replaces that content.
type BeyondFile struct {
	Path string // in the data directory
	// Whole says that no batch of the file is part of the log. Otherwise the log's newest batches lie in it, too.
	Whole bool
	// UsedBytes is the part of the file up to the end of its last batch; SizeBytes is all of it.
	UsedBytes, SizeBytes int64
	Messages             int64 // behind the log's end, as far as the batches' headers verify
	Next                 MsgID // id behind the last of them; 0: there is none
	// Batches and Bytes count the batches behind the log's end, and First and Last are the headers of two of them.
	Batches, Bytes int64
	First, Last    Header
}

// Beyond lists the segment files in dir (relative to the disk) that hold more of a partition than a log that ends at
// st. It reads headers only and changes nothing. A start that finds a commit log which has forgotten asks, before
// anything is written. A file whose header does not verify is listed if the log does not need it.
func Beyond(disk aio.Disk, dir string, id Identity, st State) (files []BeyondFile, err error) {
	have, err := listFiles(disk, dir)
	if err != nil {
		return nil, err
	}
	for _, n := range have.segments {
		if n < st.Segment {
			continue
		}
		newest := n == st.Segment && st.SegmentBase < st.End && st.SegmentCapacity != 0
		f := BeyondFile{Path: path.Join(dir, segmentName(n)), Whole: !newest}
		h, size, err := readSegmentHeader(disk, f.Path)
		if err != nil && !errors.Is(err, errSegHeader) {
			return nil, err
		}
		f.SizeBytes = size
		if err == nil && h.id == id && h.number == n {
			if err := f.read(disk, &h, st); err != nil {
				return nil, err
			}
		}
		if f.Whole || f.UsedBytes > 0 {
			files = append(files, f)
		}
	}
	return files, nil
}

// read follows the batches of the file from the log's end, or from the file's first batch, to the first place where
// none continues the ones before.
func (f *BeyondFile) read(disk aio.Disk, h *segHeader, st State) error {
	file, err := disk.Open(f.Path)
	if err != nil {
		return fmt.Errorf("segment: %w", err)
	}
	defer func() { _ = file.Close() }()
	at, pos, next, crc, known := SegmentHeaderBytes+int64(h.first-h.base), h.firstPos, h.firstID, uint32(0), false
	if !f.Whole {
		if st.End < h.base || st.SegmentBase != h.base {
			return nil
		}
		at, pos, next, crc, known = SegmentHeaderBytes+int64(st.End-h.base), st.Next, st.NextID, st.LastCRC, true
	}
	var p [HeaderBytes]byte
	var b Header
	for at+HeaderBytes <= f.SizeBytes {
		if err := file.ReadAt(p[:], at); err != nil || b.Decode(p[:]) != nil {
			break
		}
		if b.Position != pos || b.FirstID != next || known && b.PrevCRC != crc || at+int64(b.Size()) > f.SizeBytes {
			break
		}
		at += int64(b.Size())
		if f.Batches == 0 {
			f.First = b
		}
		f.Batches, f.Bytes, f.Last = f.Batches+1, f.Bytes+int64(b.Size()), b
		pos, next, crc, known = pos+1, b.NextID(), b.CRC, true
		f.Messages += int64(b.Count)
		f.UsedBytes, f.Next = at, next
	}
	return nil
}

// ReadFile calls fn for each batch of a segment file that is in no log any more, control batches included, with the
// body as it is stored. It verifies both checksums of each. h and body are valid until fn returns. It ends at the first
// place where no batch continues the ones before, as Beyond does, and with the first error.
func ReadFile(disk aio.Disk, name string, id Identity, fn func(h *Header, body []byte) error) error {
	sh, size, err := readSegmentHeader(disk, name)
	if err != nil {
		return err
	}
	if sh.id != id {
		return fmt.Errorf("segment: %s is of another partition", name)
	}
	file, err := disk.Open(name)
	if err != nil {
		return fmt.Errorf("segment: %w", err)
	}
	defer func() { _ = file.Close() }()
	at, pos := SegmentHeaderBytes+int64(sh.first-sh.base), sh.firstPos
	var p [HeaderBytes]byte
	var body []byte
	for at+HeaderBytes <= size {
		var h Header
		if err := file.ReadAt(p[:], at); err != nil {
			return fmt.Errorf("segment: %w", err)
		}
		if h.Decode(p[:]) != nil || h.Position != pos || at+int64(h.Size()) > size {
			return nil
		}
		body = slices.Grow(body[:0], h.Size()-HeaderBytes)[:h.Size()-HeaderBytes]
		if err := file.ReadAt(body, at+HeaderBytes); err != nil {
			return fmt.Errorf("segment: %w", err)
		}
		if err := batch.VerifyBody(&h, body); err != nil {
			return fmt.Errorf("%s at byte %d: %w", name, at, err)
		}
		if err := fn(&h, body); err != nil {
			return err
		}
		at, pos = at+int64(h.Size()), pos+1
	}
	return nil
}
