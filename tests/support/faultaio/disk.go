package faultaio

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"

	"penstock/segment/aio"
	"penstock/segment/aio/contract"
)

// ErrCrashed is what every operation returns once CrashAt has struck.
var ErrCrashed = errors.New("faultaio: the machine has lost its power")

var errClosed = aio.ErrClosed

// DefaultCapacityBytes is the size of a disk if Options give no other.
const DefaultCapacityBytes = 1 << 30

// Options are the choices for a new disk.
type Options struct {
	Seed          uint64
	CapacityBytes int64 // of all files together; 0 means DefaultCapacityBytes
	Log           bool  // keep the log of operations
}

// Disk is an aio.Disk that fails on purpose. See the package comment.
type Disk struct {
	// mu guards all fields below, and the nodes, files, mappings and queues of the disk.
	mu      sync.Mutex
	changed *sync.Cond // a wake-up, a release, a crash
	rng     *rand.Rand

	root     *node
	dirOps   []dirOp // changes of names that are not durable yet, in order
	used     int64   // bytes of all files that have names; used <= capacity
	capacity int64
	noRoom   bool // see SetNoRoom

	rules    []*rule
	releases int
	blocked  int    // operations that wait in start because of a rule
	numbers  uint64 // the last one that was given to a node
	ops      int
	crashAt  int // negative: never
	keepLog  bool
	log      []Op

	queues  []*queue
	crashed bool
	closed  bool
}

var _ aio.Disk = (*Disk)(nil)

// New makes an empty disk.
func New(opts Options) *Disk {
	if opts.CapacityBytes == 0 {
		opts.CapacityBytes = DefaultCapacityBytes
	}
	d := &Disk{root: newDir(), capacity: opts.CapacityBytes, crashAt: -1, keepLog: opts.Log, rng: newRand(opts.Seed)}
	d.changed = sync.NewCond(&d.mu)
	return d
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15)) }

func pathError(op, name string, err error) error { return &fs.PathError{Op: op, Path: name, Err: err} }

// SetCapacity changes the size of the disk. If more than that is in use, nothing can grow.
func (d *Disk) SetCapacity(bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.capacity = bytes
}

// SetNoRoom makes every write, also one into space that a file has, fail with syscall.ENOSPC, until it is taken back: a
// full file system that copies on write. Of such a write, the seed decides how many of its first sectors are written.
func (d *Disk) SetNoRoom(full bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.noRoom = full
}

// Info describes the disk as direct, with blocks of aio.BlockBytes.
func (d *Disk) Info() aio.Info {
	return aio.Info{
		Engine: "fault", Reason: "a simulated disk", Direct: true, BlockBytes: aio.BlockBytes, FileSystem: "memory",
	}
}

// lookup finds a node. d.mu is held.
func (d *Disk) lookup(op, name string) (*node, error) {
	if d.closed {
		return nil, pathError(op, name, errClosed)
	}
	n := d.root
	if name == "." {
		return n, nil
	}
	for _, part := range strings.Split(name, "/") {
		if !n.dir {
			return nil, pathError(op, name, syscall.ENOTDIR)
		}
		if n = n.entries[part]; n == nil {
			return nil, pathError(op, name, syscall.ENOENT)
		}
	}
	return n, nil
}

// parent finds the directory that holds name.
func (d *Disk) parent(op, name string) (*node, string, error) {
	dir, err := d.lookup(op, path.Dir(name))
	if err == nil && !dir.dir {
		err = pathError(op, name, syscall.ENOTDIR)
	}
	return dir, path.Base(name), err
}

// change performs a change of names, which becomes durable with SyncDir. d.mu is held.
func (d *Disk) change(changes ...dirChange) {
	for _, c := range changes {
		if old := c.dir.entries[c.name]; old != nil {
			old.links--
			if !old.dir && c.to != old {
				d.used -= old.held
			}
		}
		if c.to != nil {
			c.to.links++
		}
		if c.to != nil && !c.to.dir {
			d.used += c.to.held
		}
		c.apply(c.dir.entries)
	}
	d.dirOps = append(d.dirOps, dirOp{changes})
}

// Create fails with fs.ErrExist, fs.ErrNotExist or syscall.ENOSPC; see aio.Disk.
func (d *Disk) Create(name string, size int64) (aio.File, error) {
	return d.CreateSparse(name, size, size)
}

// CreateSparse is Create with space for the first bytes alone; see aio.Disk.
func (d *Disk) CreateSparse(name string, size, reserve int64) (aio.File, error) {
	if err := contract.ChangeName("create", name); err != nil {
		return nil, err
	}
	contract.MustBeSizes(size, reserve)
	d.mu.Lock()
	defer d.mu.Unlock()
	n, err := d.create(name, size, reserve)
	if err != nil {
		return nil, err
	}
	return &file{disk: d, name: name, node: n}, nil
}

func (d *Disk) create(name string, size, reserve int64) (*node, error) {
	dir, base, err := d.parent("create", name)
	if err != nil {
		return nil, err
	}
	if dir.entries[base] != nil {
		return nil, pathError("create", name, syscall.EEXIST)
	}
	v, err := d.start(KindCreate, name, 0, int(size), true)
	if err != nil {
		return nil, err
	}
	if v.Err == nil && (reserve > d.capacity-d.used || d.noRoom && reserve > 0) {
		v.Err = syscall.ENOSPC
	}
	if v.Err != nil {
		return nil, pathError("create", name, v.Err)
	}
	n := newFile()
	n.now.size, n.held = size, reserve
	d.change(dirChange{dir, base, n})
	if v.crash {
		return nil, ErrCrashed
	}
	return n, nil
}

// Open opens an existing file.
func (d *Disk) Open(name string) (aio.File, error) {
	if err := contract.Name("open", name); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.crashed {
		return nil, ErrCrashed
	}
	n, err := d.lookup("open", name)
	if err != nil {
		return nil, err
	}
	if n.dir {
		return nil, pathError("open", name, syscall.EISDIR)
	}
	return &file{disk: d, name: name, node: n}, nil
}

// Rename is atomic, also across a crash.
func (d *Disk) Rename(oldname, newname string) error {
	err := cmp.Or(contract.ChangeName("rename", oldname), contract.ChangeName("rename", newname))
	return d.locked(err, func() error { return d.rename(oldname, newname) })
}

func (d *Disk) rename(oldname, newname string) error {
	from, oldBase, err := d.parent("rename", oldname)
	if err != nil {
		return err
	}
	to, newBase, err := d.parent("rename", newname)
	if err != nil {
		return err
	}
	n, old := from.entries[oldBase], to.entries[newBase]
	switch {
	case n == nil:
		return pathError("rename", oldname, syscall.ENOENT)
	case n == old:
		return nil
	case n.dir && strings.HasPrefix(newname, oldname+"/"):
		return pathError("rename", newname, syscall.EINVAL)
	case old != nil && n.dir && !old.dir:
		return pathError("rename", newname, syscall.ENOTDIR)
	case old != nil && !n.dir && old.dir:
		return pathError("rename", newname, syscall.EISDIR)
	case old != nil && len(old.entries) > 0:
		return pathError("rename", newname, syscall.ENOTEMPTY)
	}
	return d.perform(KindRename, oldname, dirChange{from, oldBase, nil}, dirChange{to, newBase, n})
}

// perform performs an operation that only changes names, as the rules say. d.mu is held.
func (d *Disk) perform(kind Kind, name string, changes ...dirChange) error {
	v, err := d.start(kind, name, 0, 0, true)
	if err != nil {
		return err
	}
	if v.Err != nil {
		return pathError(kind.String(), name, v.Err)
	}
	d.change(changes...)
	if v.crash {
		return ErrCrashed
	}
	return nil
}

// locked calls do with d.mu held, unless err, which is what is wrong with the names, is set.
func (d *Disk) locked(err error, do func() error) error {
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return do()
}

// Remove removes a file or an empty directory.
func (d *Disk) Remove(name string) error {
	return d.locked(contract.ChangeName("remove", name), func() error { return d.remove(name) })
}

func (d *Disk) remove(name string) error {
	dir, base, err := d.parent("remove", name)
	if err != nil {
		return err
	}
	n := dir.entries[base]
	if n == nil {
		return pathError("remove", name, syscall.ENOENT)
	}
	if len(n.entries) > 0 {
		return pathError("remove", name, syscall.ENOTEMPTY)
	}
	return d.perform(KindRemove, name, dirChange{dir, base, nil})
}

// RemoveAll removes entry by entry, deepest first, each an operation of its own.
func (d *Disk) RemoveAll(name string) error {
	return d.locked(contract.ChangeName("removeall", name), func() error { return d.removeAll(name) })
}

func (d *Disk) removeAll(name string) error {
	n, err := d.lookup("removeall", name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, base := range slices.Sorted(maps.Keys(n.entries)) {
		if err := d.removeAll(name + "/" + base); err != nil {
			return err
		}
	}
	return d.remove(name)
}

// MkdirAll makes the directory and its parents, and syncs each parent.
func (d *Disk) MkdirAll(name string) error {
	return d.locked(contract.Name("mkdir", name), func() error { return d.mkdirAll(name) })
}

func (d *Disk) mkdirAll(name string) error {
	if name == "." {
		_, err := d.lookup("mkdir", name)
		return err
	}
	if err := d.mkdirAll(path.Dir(name)); err != nil {
		return err
	}
	dir, base, err := d.parent("mkdir", name)
	if err != nil {
		return err
	}
	switch n := dir.entries[base]; {
	case n == nil:
		if err := d.perform(KindMkdir, name, dirChange{dir, base, newDir()}); err != nil {
			return err
		}
	case !n.dir:
		return pathError("mkdir", name, syscall.ENOTDIR)
	}
	return d.syncDir(path.Dir(name))
}

// SyncDir makes the names of one directory durable.
func (d *Disk) SyncDir(name string) error {
	return d.locked(contract.Name("syncdir", name), func() error { return d.syncDir(name) })
}

func (d *Disk) syncDir(name string) error {
	n, err := d.lookup("syncdir", name)
	if err != nil {
		return err
	}
	if !n.dir {
		return pathError("syncdir", name, syscall.ENOTDIR)
	}
	v, err := d.start(KindSyncDir, name, 0, 0, true)
	switch {
	case err != nil:
		return err
	case v.crash:
		return ErrCrashed
	case v.Err != nil:
		return pathError("syncdir", name, v.Err)
	}
	d.dirOps = settle(d.dirOps, func(_ int, op dirOp) bool {
		return slices.ContainsFunc(op.changes, func(c dirChange) bool { return c.dir == n })
	})
	return nil
}

// ReadDir lists a directory, sorted by name.
func (d *Disk) ReadDir(name string) ([]fs.FileInfo, error) {
	if err := contract.Name("readdir", name); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.crashed {
		return nil, ErrCrashed
	}
	n, err := d.lookup("readdir", name)
	if err != nil {
		return nil, err
	}
	if !n.dir {
		return nil, pathError("readdir", name, syscall.ENOTDIR)
	}
	infos := make([]fs.FileInfo, 0, len(n.entries))
	for _, base := range slices.Sorted(maps.Keys(n.entries)) {
		e := n.entries[base]
		infos = append(infos, info{name: base, size: e.now.size, dir: e.dir})
	}
	return infos, nil
}

// ReadFile reads a small file whole.
func (d *Disk) ReadFile(name string, maxBytes int64) ([]byte, error) {
	f, err := d.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > maxBytes {
		return nil, contract.TooLong(name, maxBytes)
	}
	data := make([]byte, size)
	if err := f.ReadAt(data, 0); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, err
	}
	return data, nil
}

// Identify returns the number of the node that a name leads to. It is no operation: it cannot fail by a rule.
func (d *Disk) Identify(name string) (aio.FileID, error) {
	if err := contract.Name("identify", name); err != nil {
		return aio.FileID{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	n, err := d.lookup("identify", name)
	if err != nil {
		return aio.FileID{}, err
	}
	return d.identify(n), nil
}

// identify returns a node's identity; a number is given to it when somebody asks. d.mu is held.
func (d *Disk) identify(n *node) aio.FileID {
	if n.number == 0 {
		d.numbers++
		n.number = d.numbers
	}
	return aio.FileID{Device: 1, Number: n.number}
}

// CheckPlace returns nil: a simulated directory has no path that could lead elsewhere, and no LOCK.
func (d *Disk) CheckPlace() error { return nil }

// FreeBytes is the capacity that no file uses.
func (d *Disk) FreeBytes() (int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return 0, errClosed
	}
	return max(d.capacity-d.used, 0), nil
}

// FreeInodes sets no limit.
func (d *Disk) FreeInodes() (int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return 0, errClosed
	}
	return aio.NoInodeLimit, nil
}

// NewQueue makes a queue; it registers no memory.
func (d *Disk) NewQueue(opts aio.QueueOptions) (aio.Queue, error) {
	depth, err := opts.QueueDepth()
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errClosed
	}
	q := &queue{disk: d, depth: depth}
	d.queues = append(d.queues, q)
	return q, nil
}

// Close ends the use of the disk by this process. The contents stay for Crash and Kill; Kill after Close stands for the
// next start of a process.
func (d *Disk) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	return nil
}
