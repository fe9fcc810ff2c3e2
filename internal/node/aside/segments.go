package aside

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"penstock/internal/node/datadir"
	"penstock/segment"
	"penstock/segment/aio"
)

// segmentsPrefix begins the names of directories that SetAside makes. A Keeper neither counts nor removes these.
const segmentsPrefix = "segments-"

// asideChunk is how much of a file is copied at once.
const asideChunk = 1 << 20

// SetAside durably moves the segment files that a log does not have at all into a directory below aside/, and copies
// there what a file holds behind the log's end. files are what segment.Beyond returned for the log, and c is what
// Beyond returned for it. It returns the directory, or "" if there is nothing to be moved. The directory has a cut.json
// like any cut, and stays until an operator removes it. A node of a cluster calls SetAside at a start at which its
// commit log has forgotten; offline.AcceptLoss calls it on a single node. A crash in between leaves some files in each
// place; the next call moves the others.
func SetAside(disk aio.Disk, c Cut, files []segment.BeyondFile, now time.Time) (to string, err error) {
	if len(files) == 0 {
		return "", nil
	}
	if to, err = newAside(disk, c.identity(), now); err != nil {
		return "", err
	}
	c.describe(files, now)
	data, err := datadir.SealFile(&c)
	if err == nil {
		err = disk.WriteFile(path.Join(to, CutFile), data)
	}
	if err != nil {
		return to, err
	}
	from := datadir.PartitionPath(c.TopicID, c.Partition)
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

// Beyond is the Cut of a log that ends at end, for SetAside.
func Beyond(node, topic string, id segment.Identity, end *segment.State) Cut {
	return Cut{
		Node: node, Topic: topic, TopicID: id.Topic, Partition: id.Partition, From: end.Next, FromID: end.NextID,
	}
}

// describe sets what the files say of the cut.
func (c *Cut) describe(files []segment.BeyondFile, now time.Time) {
	c.Format, c.Time, c.Reason = Format, now, ReasonForgot
	c.Committed, c.KeptFrom, c.Until, c.NextID = c.From, c.From, c.From, c.FromID
	for i := range files {
		f := &files[i]
		if f.Batches == 0 {
			continue
		}
		if c.Batches == 0 {
			c.KeptFrom, c.FirstTime = f.First.Position, time.Unix(0, f.First.Created)
		}
		if n := len(c.Epochs); n == 0 || c.Epochs[n-1].Epoch != f.First.Epoch {
			c.Epochs = append(c.Epochs, EpochStart{Epoch: f.First.Epoch, Position: f.First.Position})
		}
		c.Batches, c.Messages, c.Bytes = c.Batches+f.Batches, c.Messages+f.Messages, c.Bytes+f.Bytes
		c.Until, c.NextID, c.LastTime = f.Last.Position+1, f.Next, time.Unix(0, f.Last.Created)
		c.LastPosition, c.LastCRC = f.Last.Position, f.Last.CRC
	}
}

// newAside makes a directory that holds nothing yet.
func newAside(disk aio.Disk, id segment.Identity, now time.Time) (string, error) {
	for ; ; now = now.Add(time.Second) {
		to := path.Join(Dir, segmentsPrefix+nameOf(id, now.Unix()))
		if _, err := disk.ReadDir(to); err == nil {
			continue
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		return to, disk.MkdirAll(to)
	}
}

// scanSegments is Scan for an entry whose batches are in segment files.
func scanSegments(disk aio.Disk, e *Entry, fn func(h *segment.Header, body []byte) error) error {
	infos, err := disk.ReadDir(path.Join(Dir, e.Name))
	if err != nil {
		return err
	}
	var names []string
	for _, info := range infos {
		if strings.HasSuffix(info.Name(), ".seg") {
			names = append(names, path.Join(Dir, e.Name, info.Name()))
		}
	}
	slices.Sort(names)
	for _, name := range names {
		err := segment.ReadFile(disk, name, e.identity(), func(h *segment.Header, body []byte) error {
			if h.Position < e.KeptFrom {
				return nil // the log has it
			}
			return fn(h, body)
		})
		if err != nil {
			return err
		}
	}
	return nil
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
