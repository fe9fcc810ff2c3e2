package dir

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"penstock/segment"
	"penstock/segment/aio"
)

// Aside is the directory with what was taken out of the logs of partitions although nobody deleted it. SetAside puts
// segment files there, each set of them in a directory of its own:
//
//	aside/segments-<topic-uuid>-<partition>-<unix seconds>/0000000004.seg
//
// What package aside keeps has names without "segments-". Its Keeper removes only directories of its own.
const Aside = "aside"

// asideChunk is how much of a file is copied at once.
const asideChunk = 1 << 20

// SetAside durably moves the segment files that a log does not have at all into a directory below aside/, and copies
// there what a file holds behind the log's end. It returns the directory, or "" if there is nothing to be moved. The
// directory stays until an operator removes it. A node of a cluster calls SetAside at a start at which its commit log
// has forgotten; AcceptLoss calls it on a single node. A crash in between leaves some files in each place; the next
// call moves the others.
func SetAside(
	disk aio.Disk, id segment.Identity, files []segment.BeyondFile, now time.Time,
) (to string, err error) {
	if len(files) == 0 {
		return "", nil
	}
	if to, err = newAside(disk, id, now); err != nil {
		return "", err
	}
	from := PartitionPath(id.Topic, id.Partition)
	for i := range files {
		f := &files[i]
		name := path.Base(f.Path)
		if !f.Whole {
			if err := copyAside(disk, path.Join(to, name), f); err != nil {
				return to, err
			}
			continue
		}
		if err := disk.Rename(f.Path, path.Join(to, name)); err != nil {
			return to, fmt.Errorf("engine: cannot move %s aside: %w", f.Path, err)
		}
		index := strings.TrimSuffix(name, ".seg") + ".idx"
		err := disk.Rename(path.Join(from, index), path.Join(to, index))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return to, fmt.Errorf("engine: cannot move %s/%s aside: %w", from, index, err)
		}
	}
	return to, errors.Join(disk.SyncDir(to), disk.SyncDir(from))
}

// newAside makes a directory that holds nothing yet.
func newAside(disk aio.Disk, id segment.Identity, now time.Time) (string, error) {
	for ; ; now = now.Add(time.Second) {
		to := path.Join(Aside, fmt.Sprintf("segments-%s-%d-%d", id.Topic, id.Partition, now.Unix()))
		if _, err := disk.ReadDir(to); err == nil {
			continue
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		return to, disk.MkdirAll(to)
	}
}

// copyAside copies a segment file up to its last batch. The rest of the copy reads as zeros, as it does in a segment
// that is not full.
func copyAside(disk aio.Disk, to string, f *segment.BeyondFile) (err error) {
	in, err := disk.Open(f.Path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	block := int64(disk.Info().BlockBytes)
	round := func(n int64) int64 { return (n + block - 1) / block * block }
	size := round(f.SizeBytes)
	out, err := disk.CreateSparse(to, size, round(f.UsedBytes))
	if err != nil {
		return fmt.Errorf("engine: cannot copy %s aside: %w", f.Path, err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	buf, free := aio.AlignedBytes(asideChunk)
	defer free()
	for at := int64(0); at < f.UsedBytes; at += asideChunk {
		p := buf[:min(asideChunk, f.UsedBytes-at)]
		if err := in.ReadAt(p, at); err != nil {
			return fmt.Errorf("engine: cannot copy %s aside: %w", f.Path, err)
		}
		padded := buf[:round(int64(len(p)))]
		clear(padded[len(p):])
		if err := out.WriteAt(padded, at); err != nil {
			return fmt.Errorf("engine: cannot copy %s aside: %w", f.Path, err)
		}
	}
	return out.Sync()
}
