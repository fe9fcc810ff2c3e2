package aio

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"sort"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"penstock/segment/aio/contract"
)

// DiskOptions are the choices of OpenDisk. The zero value opens for writing, with the best engine, without waiting for
// the lock.
type DiskOptions struct {
	Mode   Mode         // ModeAuto if empty
	Logger *slog.Logger // nil: silent

	// LockWait is how long to wait for another process to release the directory. A killed process holds it until its
	// last write in flight has landed. 0 or less: not at all.
	LockWait time.Duration

	ReadOnly bool // for tools that only look: nothing is created, every change fails with syscall.EROFS
	NoLock   bool // with ReadOnly: look at a directory in use, whose contents may be changing
	Buffered bool // do not use O_DIRECT
}

// fsDisk is a Disk on a directory of a real file system.
type fsDisk struct {
	path string // where the directory was when it was opened; absolute
	root *os.Root
	dir  *os.File // the directory of root, for openat2 and for its lock
	lock locks
	log  *slog.Logger

	readOnly   bool
	direct     bool // files are opened with O_DIRECT
	dsync      bool // RWF_DSYNC works
	uring      bool // queues are rings
	copies     bool // the file system copies files on write, unless they are told not to
	blockBytes int
	bounce     bouncePool

	closed  atomic.Bool
	mu      sync.Mutex // guards info
	info    Info
	replace [16]sync.Mutex // by hash of the name: two WriteFiles of one name must not share a temporary file
}

var _ Disk = (*fsDisk)(nil)

// OpenDisk opens the directory at dir, creates it (mode 0700) if it is missing, and takes its locks: ErrLocked says
// that another process, or another Disk of this process, uses it. It is no error if the kernel, the file system or the
// sandbox refuses io_uring or O_DIRECT: Info says what was chosen, and why.
func OpenDisk(dir string, opts DiskOptions) (Disk, error) {
	switch opts.Mode {
	case "", ModeAuto, ModeUring, ModePwrite:
	default:
		return nil, fmt.Errorf("aio: unknown I/O mode %q: choose %s, %s or %s", opts.Mode, ModeAuto, ModeUring, ModePwrite)
	}
	if !opts.ReadOnly {
		if err := makeDataDir(dir); err != nil {
			return nil, err
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("aio: opening the data directory: %w", err)
	}
	path, err := filepath.Abs(dir)
	if err != nil {
		path = dir
	}
	d := &fsDisk{
		path: path, root: root, log: opts.Logger, readOnly: opts.ReadOnly, blockBytes: BlockBytes,
		bounce: bouncePool{make(chan []byte, maxBounces)},
	}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	if d.dir, err = root.Open("."); err == nil {
		d.lock, err = takeLocks(root, d.dir, opts, d.log)
	}
	if err == nil {
		err = d.probe(opts)
	}
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("aio: opening the data directory %s: %w", dir, err)
	}
	i := d.info
	d.log.Info("storage opened", "dir", dir, "engine", i.Engine, "reason", i.Reason, "direct", i.Direct,
		"filesystem", i.FileSystem, "device", i.Device, "device_cache", i.DeviceCache, "kernel", i.Kernel)
	return d, nil
}

// makeDataDir makes the directory and its parents and syncs each parent that it changed, so that a power cut cannot
// take away the directory with everything in it.
func makeDataDir(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("aio: the data directory cannot be made: %w; choose another one, or make it yourself", err)
	}
	if _, err := os.Stat(dir); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(dir)
	if err := makeDataDir(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("aio: the data directory cannot be made: %w; choose another one, or make it yourself", err)
	}
	f, err := os.Open(parent)
	if err != nil {
		return fmt.Errorf("aio: the data directory cannot be made: %w; choose another one, or make it yourself", err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("aio: the data directory cannot be made: %w; choose another one, or make it yourself", err)
	}
	return nil
}

func (d *fsDisk) Info() Info {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.info
}

// check refuses names that are not plain and relative, the lock file, and use after Close. os.Root alone would also
// keep names inside the directory; check makes the same names legal on every disk.
func (d *fsDisk) check(op, name string) error {
	if d.closed.Load() {
		return &fs.PathError{Op: op, Path: name, Err: ErrClosed}
	}
	return contract.Name(op, name)
}

// checkWrite checks the name for an operation that changes something. Beyond check it refuses the directory itself
// (".").
func (d *fsDisk) checkWrite(op, name string) error {
	if err := d.check(op, name); err != nil {
		return err
	}
	if name == "." {
		return contract.ChangeName(op, name)
	}
	if d.readOnly {
		return &fs.PathError{Op: op, Path: name, Err: syscall.EROFS}
	}
	return nil
}

// open opens a name that check has allowed. openat2 resolves it below the directory in one system call, os.Root in two
// for each component. Where openat2 does not exist or a sandbox refuses it, and for rare errors, open asks os.Root,
// which accepts the same names.
func (d *fsDisk) open(name string, flag int) (*os.File, error) {
	how := unix.OpenHow{Flags: uint64(flag) | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH}
	if flag&os.O_CREATE != 0 {
		how.Mode = 0o600
	}
	var fd int
	err := withFD(d.dir, func(dir int) (err error) {
		fd, err = unix.Openat2(dir, name, &how)
		return err
	})
	switch err {
	case nil:
		return os.NewFile(uintptr(fd), name), nil
	case unix.ENOENT, unix.EEXIST:
		return nil, &fs.PathError{Op: "openat2", Path: name, Err: err}
	}
	return d.root.OpenFile(name, flag, 0o600)
}

// withFD calls do with f's descriptor, which stays open meanwhile: a Close by another goroutine takes effect
// afterwards, so that do never meets a descriptor that was given to another file. It returns os.ErrClosed if f is
// closed.
func withFD(f *os.File, do func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	if err := raw.Control(func(fd uintptr) { result = do(int(fd)) }); err != nil {
		return err
	}
	return result
}

// openFile opens a regular file for engine I/O.
func (d *fsDisk) openFile(name string, flag int) (*file, error) {
	if d.direct {
		flag |= unix.O_DIRECT
	}
	f, err := d.open(name, flag)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &st)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errors.New("not a regular file")
	}
	if err != nil {
		f.Close()
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return &file{disk: d, name: name, os: f, fd: int(f.Fd())}, nil
}

func (d *fsDisk) Create(name string, size int64) (File, error) {
	return d.CreateSparse(name, size, size)
}

func (d *fsDisk) CreateSparse(name string, size, reserved int64) (File, error) {
	if err := d.checkWrite("create", name); err != nil {
		return nil, err
	}
	contract.MustBeSizes(size, reserved)
	f, err := d.openFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return nil, err
	}
	d.writeInPlace(f.fd)
	if err := reserve(f.fd, size, reserved); err != nil {
		f.Close()
		if rmErr := d.root.Remove(name); rmErr != nil {
			d.log.Warn("a file that could not be allocated was left behind", "file", name, "err", rmErr)
		}
		return nil, &fs.PathError{Op: "create", Path: name, Err: err}
	}
	return f, nil
}

// allocate gives the first n bytes of a file, which lacks blocks for missing bytes of them, blocks. It first checks for
// room, because a fallocate that fails for lack of room has taken all the free space on its way, and other files would
// meet a full disk meanwhile.
func allocate(fd int, n, missing int64) error {
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(fd, &st) }); err != nil {
		return err
	}
	if st.Blocks > 0 && missing > freeBytes(&st) { // some network file systems report no blocks
		return syscall.ENOSPC
	}
	return retry(func() error { return unix.Fallocate(fd, 0, 0, n) })
}

// reserve gives the new file its size, and blocks for its first n bytes. On a file system without fallocate it writes
// zeros: the promise is that later writes within the first n bytes do not run out of room.
func reserve(fd int, size, n int64) error {
	if size == 0 {
		return nil
	}
	truncate := func() error { return retry(func() error { return unix.Ftruncate(fd, size) }) }
	if n == 0 {
		return truncate()
	}
	err := allocate(fd, n, n)
	if err == nil && n < size {
		return truncate()
	}
	if err != syscall.EOPNOTSUPP && err != syscall.ENOSYS {
		return err
	}
	zeros, free := AlignedBytes(bounceBytes)
	defer free()
	for off := int64(0); off < n; off += int64(len(zeros)) {
		if err := pwriteFull(fd, zeros, off, 0); err != nil {
			return err
		}
	}
	return truncate()
}

func (d *fsDisk) Open(name string) (File, error) {
	if err := d.check("open", name); err != nil {
		return nil, err
	}
	flag := os.O_RDWR
	if d.readOnly {
		flag = os.O_RDONLY
	}
	f, err := d.openFile(name, flag)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (d *fsDisk) Rename(oldname, newname string) error {
	if err := d.checkWrite("rename", oldname); err != nil {
		return err
	}
	if err := d.checkWrite("rename", newname); err != nil {
		return err
	}
	return d.root.Rename(oldname, newname)
}

func (d *fsDisk) Remove(name string) error {
	if err := d.checkWrite("remove", name); err != nil {
		return err
	}
	return d.root.Remove(name)
}

func (d *fsDisk) RemoveAll(name string) error {
	if err := d.checkWrite("removeall", name); err != nil {
		return err
	}
	return d.root.RemoveAll(name)
}

// MkdirAll syncs every parent, even of directories that exist: an earlier process may have made them and died before
// its sync.
func (d *fsDisk) MkdirAll(name string) error {
	if name == "." {
		return d.check("mkdir", name)
	}
	if err := d.checkWrite("mkdir", name); err != nil {
		return err
	}
	parent := path.Dir(name)
	if parent != "." {
		if err := d.MkdirAll(parent); err != nil {
			return err
		}
	}
	if err := d.root.Mkdir(name, 0o700); err != nil {
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		st, statErr := d.root.Stat(name)
		if statErr != nil {
			return statErr
		}
		if !st.IsDir() {
			return &fs.PathError{Op: "mkdir", Path: name, Err: syscall.ENOTDIR}
		}
	}
	return d.SyncDir(parent)
}

func (d *fsDisk) SyncDir(name string) error {
	if err := d.check("syncdir", name); err != nil {
		return err
	}
	dir, err := d.open(name, os.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("aio: names changed in %s are not durable: %w", name, err)
	}
	return nil
}

func (d *fsDisk) ReadDir(name string) ([]fs.FileInfo, error) {
	if err := d.check("readdir", name); err != nil {
		return nil, err
	}
	dir, err := d.open(name, os.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	infos, err := dir.Readdir(-1)
	if err != nil {
		return nil, err
	}
	if name == "." {
		kept := infos[:0]
		for _, fi := range infos {
			if fi.Name() != contract.LockName && fi.Name() != probeName {
				kept = append(kept, fi)
			}
		}
		infos = kept
	}
	sort.Slice(infos, func(i, j int) bool { return infos[i].Name() < infos[j].Name() })
	return infos, nil
}

func (d *fsDisk) ReadFile(name string, maxBytes int64) ([]byte, error) {
	if err := d.check("read", name); err != nil {
		return nil, err
	}
	f, err := d.open(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	if st.Size > maxBytes {
		return nil, contract.TooLong(name, maxBytes)
	}
	data := make([]byte, st.Size)
	n, err := io.ReadFull(f, data)
	if err == io.EOF || err == io.ErrUnexpectedEOF { // it became shorter meanwhile
		err = nil
	}
	return data[:n], err
}

func (d *fsDisk) WriteFile(name string, data []byte) error {
	if err := d.checkWrite("write", name); err != nil {
		return err
	}
	lock := &d.replace[nameHash(name)%uint32(len(d.replace))]
	lock.Lock()
	defer lock.Unlock()
	tmp := name + contract.TempSuffix
	if err := d.writeTemp(tmp, data); err != nil {
		if rmErr := d.root.Remove(tmp); rmErr != nil && !errors.Is(rmErr, fs.ErrNotExist) {
			d.log.Warn("a temporary file was left behind", "file", tmp, "err", rmErr)
		}
		return err
	}
	if err := d.root.Rename(tmp, name); err != nil {
		return err
	}
	return d.SyncDir(path.Dir(name))
}

func (d *fsDisk) writeTemp(tmp string, data []byte) error {
	f, err := d.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

// nameHash is the FNV-1a hash of name.
func nameHash(name string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	return h.Sum32()
}

func (d *fsDisk) FreeBytes() (int64, error) {
	if err := d.check("statfs", "."); err != nil {
		return 0, err
	}
	st, err := d.statfs()
	if err != nil {
		return 0, err
	}
	return freeBytes(&st), nil
}

// freeBytes is how many bytes an unprivileged process may still write.
func freeBytes(st *unix.Statfs_t) int64 { return int64(st.Bavail) * st.Bsize }

func (d *fsDisk) FreeInodes() (int64, error) {
	if err := d.check("statfs", "."); err != nil {
		return 0, err
	}
	st, err := d.statfs()
	switch {
	case err != nil:
		return 0, err
	case st.Files == 0: // btrfs
		return NoInodeLimit, nil
	}
	return int64(min(st.Ffree, NoInodeLimit)), nil
}

func (d *fsDisk) statfs() (unix.Statfs_t, error) {
	var st unix.Statfs_t
	err := retry(func() error { return withFD(d.dir, func(fd int) error { return unix.Fstatfs(fd, &st) }) })
	if err != nil {
		return st, fmt.Errorf("aio: free space and inodes: %w", err)
	}
	return st, nil
}

func (d *fsDisk) Close() error {
	if d.closed.Swap(true) {
		return nil
	}
	d.bounce.close()
	err := errors.Join(d.root.Close(), d.lock.release())
	if d.dir != nil { // nil: OpenDisk failed
		_ = d.dir.Close()
	}
	return err
}
