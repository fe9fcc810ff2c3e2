package segment

import (
	"errors"
	"fmt"
	"path"

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
}

// Beyond lists the segment files in dir (relative to the disk) that hold more of a partition than a log that ends at
// st. It reads headers only and changes nothing. A start that finds a commit log which has forgotten asks, before
// anything is written. A file whose header does not verify is listed if the log does not need it.
func Beyond(disk aio.Disk, dir string, id Identity, st State) (files []BeyondFile, err error) {
	numbers, _, err := listFiles(disk, dir)
	if err != nil {
		return nil, err
	}
	for _, n := range numbers {
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
		pos, next, crc, known = pos+1, b.NextID(), b.CRC, true
		f.Messages += int64(b.Count)
		f.UsedBytes, f.Next = at, next
	}
	return nil
}
