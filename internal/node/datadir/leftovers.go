package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"sync/atomic"

	"penstock/segment"
	"penstock/segment/aio"
)

// leftovers numbers the files that this process moves to the trash, so that their names are unique.
var leftovers atomic.Uint64

// HasNoFiles says whether a partition's directory is missing or empty.
func HasNoFiles(disk aio.Disk, id segment.Identity) bool {
	files, err := disk.ReadDir(PartitionPath(id.Topic, id.Partition))
	return errors.Is(err, fs.ErrNotExist) || err == nil && len(files) == 0
}

// TrashLeftovers moves the files from a partition's directory to the trash that belong to none of its segments. A reset
// of the log removes only the segments that the log lists. A file from before the last reset that a restart did not
// list would lie below the new segments, and would look like the log's beginning in front of a gap.
func TrashLeftovers(disk aio.Disk, id segment.Identity, segments []segment.SegmentInfo) error {
	in := PartitionPath(id.Topic, id.Partition)
	files, err := disk.ReadDir(in)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	listed := map[string]bool{}
	for _, s := range segments {
		name := path.Base(s.Path)
		listed[name], listed[strings.TrimSuffix(name, ".seg")+".idx"] = true, true
	}
	moved := false
	for i := 0; i < len(files) && err == nil; i++ {
		name := files[i].Name()
		if listed[name] {
			continue
		}
		if err = disk.MkdirAll(Trash); err == nil {
			err = disk.Rename(path.Join(in, name),
				path.Join(Trash, fmt.Sprintf("%s-%d-left%d-%s", id.Topic, id.Partition, leftovers.Add(1), name)))
		}
		moved = true
	}
	if err == nil && moved {
		err = disk.SyncDir(in)
	}
	return err
}
