package datadir

import (
	"errors"
	"fmt"
	"io/fs"

	"penstock/internal/meta"
	"penstock/segment/aio"
)

// SeenFile has the newest state of the cluster's metadata that this node knew of, as a meta.Seen with a checksum. The
// engine compares it at the next start: metadata that are older have forgotten something.
const SeenFile = "seen.json"

// ReadSeen reads SeenFile. Without the file, or with one that cannot be read, nothing is known: the result is zero.
func ReadSeen(disk aio.Disk) (meta.Seen, error) {
	var s meta.Seen
	data, err := disk.ReadFile(SeenFile, MaxFileBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = UnsealFile(data, &s, func() error { return nil })
	}
	if err != nil {
		return meta.Seen{}, fmt.Errorf("engine: cannot read %s of the data directory: %w", SeenFile, err)
	}
	return s, nil
}

// WriteSeen durably replaces SeenFile. A crash leaves the old file or the new one. An old one only means that less is
// noticed.
func WriteSeen(disk aio.Disk, s meta.Seen) error {
	data, err := SealFile(s)
	if err != nil {
		return err
	}
	return disk.WriteFile(SeenFile, data)
}
