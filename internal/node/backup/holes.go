package backup

import (
	"bytes"
	"os"
	"path"

	"penstock/segment/aio"
)

var zeroBlock [aio.BlockBytes]byte

// writeHoles writes p at byte at of a new file, but leaves blocks of zeros out: they stay holes and take no space. The
// caller gives the file its size.
func writeHoles(out *os.File, p []byte, at int64) error {
	from, n := 0, 0 // p[from:n] waits to be written
	for n < len(p) {
		end := min(n+len(zeroBlock), len(p))
		if !bytes.Equal(p[n:end], zeroBlock[:end-n]) {
			n = end
			continue
		}
		if _, err := out.WriteAt(p[from:n], at+int64(from)); err != nil {
			return err
		}
		from, n = end, end
	}
	_, err := out.WriteAt(p[from:], at+int64(from))
	return err
}

// growsByItself says that a node gives the file space when it writes to it: the first segment file of a log (package
// segment, FirstReservedBytes). All other files have their space from the beginning, so that no write comes short.
func growsByItself(name string) bool { return path.Base(name) == "0000000000.seg" }
