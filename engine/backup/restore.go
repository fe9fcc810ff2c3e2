package backup

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"penstock/clog"
	"penstock/engine/dir"
	"penstock/segment"
	"penstock/segment/aio"
)

// RestoreOptions are the choices for Restore.
type RestoreOptions struct {
	// NodeID, if not empty, becomes the node's name. Not for a node of a cluster: the cluster knows it by its name.
	NodeID string
	// Files are further files of the new data directory, by name. They are written before node.json.
	Files map[string][]byte
}

// Restored says what Restore did.
type Restored struct {
	Manifest *Manifest
	Bytes    int64
	// Shortened is the number of copies that a node of a cluster lists as shortened.
	Shortened int
}

// Restore copies the backup in the directory from to the directory to, which must not exist or be empty, and verifies
// every file. node.json comes last, when everything else is on stable storage: a node does not start without it.
// Restore holds the locks of the new directory meanwhile, as a node does.
//
// The copies of a node of a cluster may lack what the node has acknowledged since the backup. So all of them are put on
// the list of shortened copies (dir.Shortened): each compares itself with another replica before it may lead.
//
// After an error, what was written is removed.
func Restore(from, to string, o RestoreOptions) (*Restored, error) {
	m, err := ReadManifest(from)
	if err != nil {
		return nil, err
	}
	if err := Apart("backup", from, to); err != nil {
		return nil, fmt.Errorf("backup: %w; nothing was restored", err)
	}
	if o.NodeID != "" && m.Cluster != uuid.Nil {
		return nil, fmt.Errorf("backup: this is a backup of node %s of cluster %s, which knows the node by this name: "+
			"nothing was restored, leave the new name out", m.NodeID, m.Cluster)
	}
	w, err := NewWriter(to, Options{Pause: func(time.Duration) bool { return true }})
	if err != nil {
		return nil, err
	}
	target, err := aio.OpenDisk(to, aio.DiskOptions{Mode: aio.ModePwrite})
	if err != nil {
		if w.made {
			_ = os.Remove(to) // unless somebody else put something there
		}
		return nil, fmt.Errorf("backup: %w; nothing was restored", err)
	}
	w.files[lockName] = File{Name: lockName} // so that Discard removes it
	r := &restoring{Writer: w, from: from, m: m}
	n, err := r.run(o)
	if err != nil {
		w.Discard()
		_ = target.Close()
		return nil, fmt.Errorf("backup: %w; nothing was restored", err)
	}
	if err := target.Close(); err != nil {
		return nil, fmt.Errorf("backup: %w", err)
	}
	return &Restored{Manifest: m, Bytes: w.Copied, Shortened: n}, nil
}

// lockName is the file that aio makes in the new data directory.
const lockName = "LOCK"

type restoring struct {
	*Writer
	from string
	m    *Manifest
}

func (r *restoring) run(o RestoreOptions) (shortened int, err error) {
	for i := range r.m.Files {
		f := &r.m.Files[i]
		switch f.Name {
		case dir.NodePath, dir.CopyOf(dir.NodePath), dir.ShortenedFile, clog.MarkName: // below
			continue
		case MetadataFile: // the caller decides what becomes of it
			if err := r.m.small(r.from, f.Name, MaxMetadataBytes, func([]byte) error { return nil }); err != nil {
				return 0, err
			}
			continue
		}
		if err := r.file(f); err != nil {
			return 0, err
		}
	}
	if r.m.Cluster != uuid.Nil {
		if shortened, err = r.shorten(); err != nil {
			return 0, err
		}
	}
	for name, data := range o.Files {
		if err := r.Write(name, data); err != nil {
			return 0, err
		}
	}
	node := new(dir.Node)
	err = r.small(dir.NodePath, func(data []byte) error {
		return dir.UnsealFile(data, node, func() error { return nil })
	})
	if err != nil {
		return 0, err
	}
	if err := r.small(dir.CopyOf(dir.NodePath), func([]byte) error { return nil }); err != nil {
		return 0, err
	}
	if o.NodeID != "" {
		node.NodeID = o.NodeID
	}
	if err := r.mark(node.StoreID); err != nil {
		return 0, err
	}
	for d := range r.dirs {
		if err := syncDir(r.at(d)); err != nil {
			return 0, err
		}
	}
	if err := syncDir(r.to); err != nil {
		return 0, err
	}
	if err := r.WriteTwice(dir.NodePath, node); err != nil {
		return 0, err
	}
	return shortened, syncDir(r.to)
}

// mark writes a log.mark that the restored commit log reaches. One that came with the backup would be about the log of
// another moment.
func (r *restoring) mark(store uuid.UUID) error {
	disk, err := aio.OpenDisk(r.to, aio.DiskOptions{Mode: aio.ModePwrite, ReadOnly: true, NoLock: true})
	if err != nil {
		return err
	}
	defer func() { _ = disk.Close() }()
	arena, err := dir.OfflineArena()
	if err != nil {
		return err
	}
	defer func() { _ = arena.Close() }()
	data, err := clog.FreshMark(disk, arena, store, 0)
	if err != nil {
		return err
	}
	return r.Write(clog.MarkName, data)
}

// damaged is the error for a file of the backup that is not what the manifest says.
func damaged(name string, why string) error {
	return fmt.Errorf("%s of the backup is damaged: %s", name, why)
}

// file copies one file and verifies it. Blocks of zeros are not written.
func (r *restoring) file(f *File) (err error) {
	in, err := os.Open(filepath.Join(r.from, filepath.FromSlash(f.Name)))
	if err != nil {
		return damaged(f.Name, err.Error())
	}
	defer in.Close()
	if st, err := in.Stat(); err != nil {
		return err
	} else if st.Size() != f.Bytes {
		return damaged(f.Name, fmt.Sprintf("it has %d bytes instead of %d", st.Size(), f.Bytes))
	}
	out, err := r.create(f.Name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if f.Bytes > 0 {
		err := error(unix.EOPNOTSUPP)
		if !growsByItself(f.Name) {
			err = unix.Fallocate(int(out.Fd()), 0, 0, f.Bytes)
		}
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
			err = out.Truncate(f.Bytes)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	sum := uint32(0)
	for at := int64(0); at < f.Bytes; {
		p := r.buf[:min(f.Bytes-at, chunkBytes)]
		if _, err := in.ReadAt(p, at); err != nil && !errors.Is(err, io.EOF) {
			return damaged(f.Name, err.Error())
		}
		sum = crc32.Update(sum, castagnoli, p)
		if err := writeHoles(out, p, at); err != nil {
			return err
		}
		at += int64(len(p))
	}
	if sumText(sum) != f.CRC {
		return damaged(f.Name, fmt.Sprintf("its checksum is %s instead of %s", sumText(sum), f.CRC))
	}
	r.Copied += f.Bytes
	return out.Sync()
}

func (r *restoring) small(name string, decode func([]byte) error) error {
	return r.m.small(r.from, name, max(dir.MaxFileBytes, dir.MaxShortenedBytes), decode)
}

// shorten writes the list of shortened copies: those that the backup's list has, all partitions of all topics in the
// backup, and dir.UnnamedCopies for those whose only trace is in the commit log or in the cluster's metadata. A copy
// that the list names needlessly compares itself once more than it must.
func (r *restoring) shorten() (int, error) {
	list := dir.NewCopyList()
	if err := r.small(dir.ShortenedFile, list.Decode); err != nil {
		return 0, err
	}
	list.Add(dir.UnnamedCopies)
	for _, f := range r.m.Files {
		id, rest, ok := topicOf(f.Name)
		if !ok {
			continue
		}
		if n, _, in := strings.Cut(rest, "/"); in {
			if number, err := strconv.ParseUint(n, 10, 32); err == nil {
				list.Add(segment.Identity{Topic: id, Partition: uint32(number)})
			}
		}
		if rest != dir.TopicFile {
			continue
		}
		err := r.small(f.Name, func(data []byte) error {
			var t struct{ Partitions int }
			if err := json.Unmarshal(data, &t); err != nil {
				return err
			}
			for number := range min(t.Partitions, dir.MaxPartitions) {
				list.Add(segment.Identity{Topic: id, Partition: uint32(number)})
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	data, err := list.Encode()
	if err != nil {
		return 0, err
	}
	return list.Len() - 1, r.Write(dir.ShortenedFile, data)
}
