package aside

import (
	"fmt"
	"io"
	"path"

	"penstock/batch"
	"penstock/segment"
	"penstock/segment/aio"
)

// scanBytes is how much Scan reads at once. A larger batch is read whole.
const scanBytes = 1 << 20

// Scan calls fn for each batch that the entry keeps, control batches included, with the body as it is stored. It
// verifies both checksums of each. h and body are valid until fn returns. It ends with the first error. It may be
// called while a node runs on the directory.
func Scan(disk aio.Disk, e *Entry, fn func(h *segment.Header, body []byte) error) (err error) {
	if e.Err != nil {
		return e.Err
	}
	if inSegments(e.Name) {
		return scanSegments(disk, e, fn)
	}
	name := path.Join(Dir, e.Name, BatchesFile)
	file, err := disk.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	var buf []byte
	at, read := int64(0), int64(0) // buf holds the file's bytes [at, read)
	fill := func(n int64) error {
		if at+n > e.Bytes {
			return fmt.Errorf("%w: %s is cut short: %w", batch.ErrInvalid, name, io.ErrUnexpectedEOF)
		}
		if read-at >= n {
			return nil
		}
		to := min(at+max(n, scanBytes), e.Bytes)
		grown := make([]byte, to-at)
		copy(grown, buf)
		if err := file.ReadAt(grown[read-at:], read); err != nil {
			return err
		}
		buf, read = grown, to
		return nil
	}
	var h segment.Header
	for at < e.Bytes {
		if err := fill(segment.HeaderBytes); err != nil {
			return err
		}
		if err := h.Decode(buf); err != nil {
			return fmt.Errorf("%s at byte %d: %w", name, at, err)
		}
		size := int64(h.Size())
		if err := fill(size); err != nil {
			return err
		}
		body := buf[segment.HeaderBytes:size:size]
		if err := batch.VerifyBody(&h, body); err != nil {
			return fmt.Errorf("%s at byte %d: %w", name, at, err)
		}
		if err := fn(&h, body); err != nil {
			return err
		}
		buf, at = buf[size:], at+size
	}
	return nil
}
