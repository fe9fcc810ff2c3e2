package backup

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"penstock/clog"
	"penstock/internal/node/datadir"
	"penstock/segment"
	"penstock/segment/aio"
)

// RestoreOptions are the choices for Restore.
type RestoreOptions struct {
	// NodeID, if not empty, becomes the node's name. Not for a node of a cluster: the cluster knows it by its name.
	NodeID string
	// Files are further files of the new data directory, by name. They are written before node.json.
	Files map[string][]byte
	// AcceptLoss restores what verifies of a backup that is damaged, and says what is missing. The node knows it, too.
	AcceptLoss bool
}

// Restored says what Restore did.
type Restored struct {
	Manifest *Manifest
	Bytes    int64
	// Shortened is the number of copies that a node of a cluster lists as shortened.
	Shortened int
	// Differ are the files that are not what the manifest says. Missing are the messages that do not read back. Both are
	// empty unless RestoreOptions.AcceptLoss was set.
	Differ  []Difference
	Missing []Missing
}

// Restore copies the backup in the directory from to the directory to, which must not exist or be empty, and verifies
// every file, and every batch that segments must hold. node.json comes last, when everything else is on stable storage:
// a node does not start without it. Restore holds the locks of the new directory meanwhile, as a node does.
//
// If something does not verify, Restore returns a *DamagedError that names all of it, or, with
// RestoreOptions.AcceptLoss, restores the rest. The new directory then has a list of the damaged places
// (datadir.DamagedFile).
//
// The copies of a node of a cluster may lack what the node has acknowledged since the backup. So all of them are put on
// the list of shortened copies (datadir.Shortened): each compares itself with another replica before it may lead.
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
	r := &restoring{Writer: w, from: from, m: m, o: o}
	n, err := r.run()
	if err != nil {
		w.Discard()
		_ = target.Close()
		return nil, fmt.Errorf("backup: %w; nothing was restored", err)
	}
	if err := target.Close(); err != nil {
		return nil, fmt.Errorf("backup: %w", err)
	}
	return &Restored{Manifest: m, Bytes: w.Copied, Shortened: n, Differ: r.differ, Missing: r.missing}, nil
}

// lockName is the file that aio makes in the new data directory.
const lockName = "LOCK"

type restoring struct {
	*Writer
	from    string
	m       *Manifest
	o       RestoreOptions
	differ  []Difference
	missing []Missing
	logSays string // why the commit log cannot be read to its end
}

func (r *restoring) run() (shortened int, err error) {
	node, err := r.node()
	if err != nil {
		return 0, err
	}
	if err := r.copyFiles(node.StoreID); err != nil {
		return 0, err
	}
	if err := r.judge(); err != nil {
		return 0, err
	}
	if r.m.Cluster != uuid.Nil {
		if shortened, err = r.shorten(); err != nil {
			return 0, err
		}
	}
	for name, data := range r.o.Files {
		if err := r.Write(name, data); err != nil {
			return 0, err
		}
	}
	if err := r.writeDamaged(); err != nil {
		return 0, err
	}
	if r.o.NodeID != "" {
		node.NodeID = r.o.NodeID
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
	if err := r.WriteTwice(datadir.NodePath, node); err != nil {
		return 0, err
	}
	return shortened, syncDir(r.to)
}

// node reads node.json, or its second copy. Without either nothing can be restored.
func (r *restoring) node() (node *datadir.Node, err error) {
	for _, name := range []string{datadir.NodePath, datadir.CopyOf(datadir.NodePath)} {
		n := new(datadir.Node)
		serr := r.small(name, func(data []byte) error { return datadir.UnsealFile(data, n, func() error { return nil }) })
		switch {
		case serr != nil:
			r.differs(name, serr.Error())
			err = serr
		case node == nil && n.NodeID != "":
			node = n
		}
	}
	if node == nil {
		return nil, cmp.Or(err, damaged(datadir.NodePath, "the backup has no readable one"))
	}
	return node, nil
}

// copyFiles copies the files of the manifest, and verifies them. The commit log is first, and says what segments hold.
func (r *restoring) copyFiles(store uuid.UUID) error {
	surveyed := false
	for i := range r.m.Files {
		f := &r.m.Files[i]
		switch f.Name {
		case datadir.NodePath, datadir.CopyOf(datadir.NodePath), clog.MarkName: // in run
			continue
		case datadir.ShortenedFile: // in run, too
			if err := r.small(f.Name, datadir.NewCopyList().Decode); err != nil {
				r.differs(f.Name, err.Error())
			}
			continue
		case MetadataFile: // the caller decides what becomes of it
			if err := r.m.small(r.from, f.Name, MaxMetadataBytes, func([]byte) error { return nil }); err != nil {
				r.differs(f.Name, err.Error())
			}
			continue
		}
		if strings.HasPrefix(f.Name, "topics/") && !surveyed {
			surveyed = true
			if err := r.survey(store); err != nil {
				return err
			}
		}
		why, err := r.file(f)
		if err != nil {
			return err
		}
		if why != "" {
			r.differs(f.Name, why)
		}
	}
	return nil
}

// survey prepares to verify the segments.
func (r *restoring) survey(store uuid.UUID) error {
	disk, err := aio.OpenDisk(r.to, aio.DiskOptions{Mode: aio.ModePwrite, ReadOnly: true, NoLock: true})
	if err != nil {
		return err
	}
	defer func() { _ = disk.Close() }()
	ends, report, err := segmentEnds(disk, clog.Options{Store: store})
	if report == nil {
		return err
	}
	if err != nil {
		r.logSays = err.Error()
	}
	names := make([]string, len(r.m.Files))
	for i := range r.m.Files {
		names[i] = r.m.Files[i].Name
	}
	r.segments.addStored(ends, names, startIn(r.from))
	return nil
}

// mark writes a log.mark that the restored commit log reaches. One that came with the backup would be about the log of
// another moment.
func (r *restoring) mark(store uuid.UUID) error {
	disk, err := aio.OpenDisk(r.to, aio.DiskOptions{Mode: aio.ModePwrite, ReadOnly: true, NoLock: true})
	if err != nil {
		return err
	}
	defer func() { _ = disk.Close() }()
	arena, err := datadir.OfflineArena()
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

// file copies one file and verifies it. Blocks of zeros are not written. why says how the file differs from the
// manifest; "": it does not. Bytes that cannot be read are zeros in the copy.
func (r *restoring) file(f *File) (why string, err error) {
	in, err := os.Open(filepath.Join(r.from, filepath.FromSlash(f.Name)))
	if err != nil && path.Ext(f.Name) == ".json" { // an empty one is replaced by its second copy
		return err.Error(), r.Write(f.Name, nil)
	}
	if err != nil {
		return err.Error(), nil // the copy is missing, too
	}
	defer in.Close()
	if st, err := in.Stat(); err != nil {
		return "", err
	} else if st.Size() != f.Bytes {
		why = fmt.Sprintf("it has %d bytes instead of %d", st.Size(), f.Bytes)
	}
	out, err := r.create(f.Name)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if err := allot(out, f); err != nil {
		return "", fmt.Errorf("%s: %w", f.Name, err)
	}
	sum, v := uint32(0), r.segments.verifiers[f.Name]
	for at := int64(0); at < f.Bytes; {
		p := r.buf[:min(f.Bytes-at, chunkBytes)]
		n, err := in.ReadAt(p, at)
		if err != nil && !errors.Is(err, io.EOF) {
			why = err.Error()
		}
		clear(p[n:])
		sum = crc32.Update(sum, castagnoli, p)
		if v != nil {
			_, _ = v.Write(p)
		}
		if err := writeHoles(out, p, at); err != nil {
			return "", err
		}
		at += int64(len(p))
	}
	if sumText(sum) != f.CRC && why == "" {
		why = fmt.Sprintf("its checksum is %s instead of %s", sumText(sum), f.CRC)
	}
	r.Copied += f.Bytes
	return why, out.Sync()
}

// allot gives a new file its size and, unless a node does it, its space.
func allot(out *os.File, f *File) error {
	if f.Bytes == 0 {
		return nil
	}
	err := error(unix.EOPNOTSUPP)
	if !growsByItself(f.Name) {
		err = unix.Fallocate(int(out.Fd()), 0, 0, f.Bytes)
	}
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		err = out.Truncate(f.Bytes)
	}
	return err
}

func (r *restoring) small(name string, decode func([]byte) error) error {
	return r.m.small(r.from, name, max(datadir.MaxFileBytes, datadir.MaxShortenedBytes), decode)
}

// shorten writes the list of shortened copies: those that the backup's list has, all partitions of all topics in the
// backup, and datadir.UnnamedCopies for those whose only trace is in the commit log or in the cluster's metadata. A
// copy that the list names needlessly compares itself once more than it must.
func (r *restoring) shorten() (int, error) {
	list := datadir.NewCopyList()
	_ = r.small(datadir.ShortenedFile, list.Decode) // judge has named the file
	list.Add(datadir.UnnamedCopies)
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
		if rest != datadir.TopicFile && rest != datadir.CopyOf(datadir.TopicFile) {
			continue
		}
		_ = r.small(f.Name, func(data []byte) error { // if both are damaged, UnnamedCopies stands for what they name
			var t struct{ Partitions int }
			err := json.Unmarshal(data, &t)
			for number := range min(t.Partitions, datadir.MaxPartitions) {
				list.Add(segment.Identity{Topic: id, Partition: uint32(number)})
			}
			return err
		})
	}
	data, err := list.Encode()
	if err != nil {
		return 0, err
	}
	return list.Len() - 1, r.Write(datadir.ShortenedFile, data)
}
