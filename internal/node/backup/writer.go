package backup

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"penstock/clog"
	"penstock/internal/node/datadir"
	"penstock/segment/aio"
)

const (
	// chunkBytes is how much of a file is read and written at once.
	chunkBytes = 1 << 20
	// DefaultRate is the most bytes per second that a backup of a running node reads, so that publishing goes on at its
	// usual speed.
	DefaultRate = 128 << 20
)

// Options are the choices for a Writer.
type Options struct {
	Rate int64 // bytes per second; 0: unlimited
	// Pause waits for d, and returns false if the backup has to end. Required.
	Pause func(d time.Duration) bool
	// Blocked returns an error if the backup has to end. It is called before every chunk. nil: never.
	Blocked func() error
	// More is called by Copy to add further files, before the manifest. nil: there are none.
	More func(*Manifest, *Writer) error
}

// ErrStopped says that the process is ending.
var ErrStopped = errors.New("the node is shutting down")

// Writer writes one backup. One goroutine uses it. Errors name the file.
type Writer struct {
	to    string // the directory of the backup
	o     Options
	made  bool // to did not exist
	dirs  map[string]bool
	files map[string]File
	open  *os.File // of Append
	sum   uint32   // of open
	size  int64    // of open
	buf   []byte

	// Bytes copied and Linked: what has been done so far.
	Copied, Linked int64
	owed           time.Duration // by the rate
	segments       *survey
}

// NewWriter begins a backup in the directory to, which must not exist or be empty.
func NewWriter(to string, o Options) (*Writer, error) {
	made, err := makeEmpty(to)
	if err != nil {
		return nil, fmt.Errorf("backup: %w", explain(err))
	}
	return &Writer{
		to: to, o: o, made: made, dirs: map[string]bool{}, files: map[string]File{}, buf: make([]byte, chunkBytes),
		segments: newSurvey(),
	}, nil
}

// Verify says which segment files of a partition will be copied. Their batches are verified on the way.
func (w *Writer) Verify(f *Files) { w.segments.add(f) }

// Missing lists what did not verify. topic returns the name of a topic, or "".
func (w *Writer) Missing(topic func(uuid.UUID) string) []Missing { return w.segments.missing(topic) }

// makeEmpty makes the directory, or checks that it is empty. made says that it did not exist.
func makeEmpty(to string) (made bool, err error) {
	entries, err := os.ReadDir(to)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := os.MkdirAll(to, 0o700); err != nil {
			return false, err
		}
		return true, syncDir(filepath.Dir(to))
	case err != nil:
		return false, err
	case len(entries) != 0:
		return false, fmt.Errorf("%s is not empty: nothing was changed, name a new or an empty directory", to)
	}
	return false, nil
}

// Discard removes what was written, after a failure.
func (w *Writer) Discard() {
	w.closeOpen()
	if w.made {
		_ = os.RemoveAll(w.to)
		return
	}
	for name := range w.files {
		_ = os.Remove(w.at(name))
	}
	for _, d := range slices.Backward(slices.Sorted(maps.Keys(w.dirs))) {
		_ = os.Remove(w.at(d))
	}
}

func (w *Writer) at(name string) string { return filepath.Join(w.to, filepath.FromSlash(name)) }

// make makes the directories of a file.
func (w *Writer) make(name string) error {
	for _, d := range parents(name) {
		if w.dirs[d] {
			continue
		}
		if err := os.Mkdir(w.at(d), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		w.dirs[d] = true
	}
	return nil
}

// step is called before every chunk of n bytes.
func (w *Writer) step(n int) error {
	if w.o.Blocked != nil {
		if err := w.o.Blocked(); err != nil {
			return err
		}
	}
	if w.o.Rate > 0 {
		w.owed += time.Duration(float64(n) / float64(w.o.Rate) * float64(time.Second))
	}
	if w.owed < 10*time.Millisecond && w.o.Rate > 0 {
		return nil
	}
	owed := w.owed
	w.owed = 0
	if !w.o.Pause(owed) {
		return ErrStopped
	}
	return nil
}

func (w *Writer) create(name string) (*os.File, error) {
	if err := w.make(name); err != nil {
		return nil, err
	}
	w.files[name] = File{Name: name} // so that Discard removes it
	return os.OpenFile(w.at(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// Write writes a small file.
func (w *Writer) Write(name string, data []byte) error {
	if err := w.Append(name, data); err != nil {
		return err
	}
	return w.finish()
}

// WriteTwice writes a file of the catalog and its second copy.
func (w *Writer) WriteTwice(name string, v any) error {
	data, err := datadir.SealFile(v)
	if err != nil {
		return err
	}
	if err := w.Write(name, data); err != nil {
		return err
	}
	return w.Write(datadir.CopyOf(name), data)
}

// Append appends to the file, which is created if it is not the one of the last Append.
func (w *Writer) Append(name string, p []byte) error {
	if w.open == nil || w.open.Name() != w.at(name) {
		if err := w.finish(); err != nil {
			return err
		}
		f, err := w.create(name)
		if err != nil {
			return err
		}
		w.open, w.sum, w.size = f, 0, 0
	}
	if _, err := w.open.Write(p); err != nil {
		return err
	}
	w.sum = crc32.Update(w.sum, castagnoli, p)
	w.size += int64(len(p))
	w.Copied += int64(len(p))
	return nil
}

// finish syncs and closes the file of Append.
func (w *Writer) finish() error {
	if w.open == nil {
		return nil
	}
	name, _ := filepath.Rel(w.to, w.open.Name())
	err := errors.Join(w.open.Sync(), w.open.Close())
	w.open = nil
	if err != nil {
		return err
	}
	name = filepath.ToSlash(name)
	w.files[name] = File{Name: name, Bytes: w.size, CRC: sumText(w.sum)}
	return nil
}

func (w *Writer) closeOpen() {
	if w.open != nil {
		_ = w.open.Close()
		w.open = nil
	}
}

// Forget removes the files below a directory from the backup.
func (w *Writer) Forget(below string) error {
	w.closeOpen()
	for name := range w.files {
		if strings.HasPrefix(name, below+"/") {
			if err := os.Remove(w.at(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			delete(w.files, name)
		}
	}
	return nil
}

// Link links the file old, which nobody may change any more, into the backup, and reads it for its checksum. If the
// two are on different file systems, it copies the file.
func (w *Writer) Link(name, old string) error {
	if err := w.make(name); err != nil {
		return err
	}
	err := os.Link(old, w.at(name))
	if err != nil {
		// Another file system, one without links, or too many links of one file.
		if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EMLINK) ||
			errors.Is(err, unix.ENOTSUP) {
			return w.Copy(name, old, -1)
		}
		return err
	}
	w.files[name] = File{Name: name, Linked: true}
	f, err := os.Open(w.at(name))
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	sum, err := w.read(name, f, st.Size(), nil)
	if err != nil {
		return err
	}
	w.files[name] = File{Name: name, Bytes: st.Size(), CRC: sumText(sum), Linked: true}
	w.Linked += st.Size()
	return nil
}

// Copy copies the first used bytes of the file old; -1: all of it. The copy is as long as old; what lies beyond used
// reads as zeros and takes no space.
func (w *Writer) Copy(name, old string, used int64) (err error) {
	f, err := os.Open(old)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if used < 0 || used > st.Size() {
		used = st.Size()
	}
	out, err := w.create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	sum, err := w.read(name, f, used, out)
	if err != nil {
		return err
	}
	if err := out.Truncate(st.Size()); err != nil {
		return err
	}
	zeros := w.buf
	clear(zeros)
	for left := st.Size() - used; left > 0; left -= int64(len(zeros)) {
		sum = crc32.Update(sum, castagnoli, zeros[:min(left, int64(len(zeros)))])
	}
	if err := out.Sync(); err != nil {
		return err
	}
	w.files[name] = File{Name: name, Bytes: st.Size(), CRC: sumText(sum)}
	w.Copied += used
	return nil
}

// read reads the first n bytes of f, writes them to out unless it is nil, and returns their checksum. If they are a
// segment's, their batches are verified, too: see Missing. name is the file's name in the backup. What it read and
// wrote does not stay in the page cache.
func (w *Writer) read(name string, f *os.File, n int64, out *os.File) (sum uint32, err error) {
	v := w.segments.verifiers[name]
	for at := int64(0); at < n; {
		p := w.buf[:min(n-at, int64(len(w.buf)))]
		if err := w.step(len(p)); err != nil {
			return 0, err
		}
		if _, err := f.ReadAt(p, at); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return 0, err
		}
		sum = crc32.Update(sum, castagnoli, p)
		if v != nil {
			_, _ = v.Write(p)
		}
		if out != nil {
			if err := writeHoles(out, p, at); err != nil {
				return 0, err
			}
		}
		_ = unix.Fadvise(int(f.Fd()), at, int64(len(p)), unix.FADV_DONTNEED) // advice only
		at += int64(len(p))
	}
	return sum, nil
}

// Commit writes the manifest, when everything else is on stable storage. m.Files is filled in.
func (w *Writer) Commit(m *Manifest) error {
	if err := w.finish(); err != nil {
		return err
	}
	m.Format = Format
	m.Files = slices.SortedFunc(maps.Values(w.files), func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	if err := m.check(); err != nil {
		panic("BUG: backup: " + err.Error())
	}
	for d := range w.dirs {
		if err := syncDir(w.at(d)); err != nil {
			return err
		}
	}
	if err := syncDir(w.to); err != nil {
		return err
	}
	data, err := datadir.SealFile(m)
	if err != nil {
		return err
	}
	tmp := ManifestFile + ".tmp"
	f, err := w.create(tmp)
	if err != nil {
		return err
	}
	delete(w.files, tmp)
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(w.at(tmp), w.at(ManifestFile))
	}
	if err == nil {
		err = syncDir(w.to)
	}
	if err != nil {
		_ = os.Remove(w.at(tmp))
		_ = os.Remove(w.at(ManifestFile))
	}
	return err
}

func syncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, syscall.EINVAL) { // file systems without it
		err = nil
	}
	return errors.Join(err, d.Close())
}

// Copy makes a backup of the data directory of a stopped node. It takes the lock of the data directory, for reading,
// and refuses a directory whose level is above newest. m is filled in. A directory whose commit log has forgotten or is
// damaged is copied as it is, because it may be all that is left; m.Lacks says so.
func Copy(data, to string, m *Manifest, newest int, o Options) error {
	err := datadir.Check(data, newest)
	if err == nil {
		err = Apart("data directory", data, to)
	}
	if err != nil {
		return fmt.Errorf("backup: %w; nothing was written", err)
	}
	disk, err := aio.OpenDisk(data, aio.DiskOptions{Mode: aio.ModePwrite, ReadOnly: true, LockWait: aio.ExitTime})
	if err != nil {
		return err
	}
	defer func() { _ = disk.Close() }()
	text, err := disk.ReadFile(datadir.NodePath, datadir.MaxFileBytes)
	n := new(datadir.Node)
	if err == nil {
		err = datadir.UnsealFile(text, n, func() error { return n.CheckFormat(newest) })
	}
	if err != nil {
		return fmt.Errorf("backup: %s of %s: %w; nothing was written", datadir.NodePath, data, err)
	}
	m.NodeID, m.Cluster = n.NodeID, n.Cluster
	w, err := NewWriter(to, o)
	if err != nil {
		return err
	}
	m.Lacks, err = w.surveyStopped(data, disk, n)
	if err == nil {
		err = w.tree(data)
	}
	m.Missing = w.Missing(topicNames(data))
	if err == nil && o.More != nil {
		err = o.More(m, w)
	}
	if err == nil {
		err = w.Commit(m)
	}
	if err != nil {
		w.Discard()
		return fmt.Errorf("backup: %w; the data directory is as it was, and what had been written of the backup was "+
			"removed", err)
	}
	return nil
}

// surveyStopped says what is wrong with the commit log on the disk of the node; "": it is whole as far as the directory
// knows. The backup has no log.mark and a restore makes one, so nothing would tell it later. It prepares to verify the
// segments in the directory data.
func (w *Writer) surveyStopped(data string, disk aio.Disk, n *datadir.Node) (lacks string, err error) {
	ends, report, err := segmentEnds(disk, clog.Options{
		Store: n.StoreID, MarkRequired: n.Format >= datadir.FormatOf(datadir.MarkLevel),
	})
	switch {
	case report == nil:
		return "", err
	case err != nil:
		lacks = err.Error()
	case report.Forgotten != nil:
		lacks = report.Forgotten.Detail
	}
	names, err := topicFiles(data)
	if err != nil {
		return "", err
	}
	w.segments.addStored(ends, names, startIn(data))
	return lacks, nil
}

// tree copies what a backup has of a data directory.
func (w *Writer) tree(data string) error {
	for _, name := range []string{datadir.NodePath, datadir.CopyOf(datadir.NodePath), datadir.ShortenedFile} {
		if err := w.Copy(name, filepath.Join(data, name), -1); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, top := range []string{"topics", "clog"} {
		err := filepath.WalkDir(filepath.Join(data, top), func(at string, e fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) && at == filepath.Join(data, top) {
				return nil
			}
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			rel, err := filepath.Rel(data, at)
			if err != nil {
				return err
			}
			name := filepath.ToSlash(rel)
			if ext := path.Ext(name); ext != ".seg" && ext != ".json" && ext != ".clog" {
				return nil
			}
			return w.Copy(name, at, -1)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
