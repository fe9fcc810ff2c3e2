// Package aio is the engine's only access to storage: files, durable writes, off-heap buffers and read-only mappings.
// It is the only package that knows mmap and O_DIRECT, and, with internal/uring below it, the only one that uses
// unsafe.
//
// Four nouns describe it:
//
//   - [Disk] is one data directory. Every name is relative to it and resolved below it by the kernel (openat2) or by
//     an os.Root, so no name can leave it.
//   - [File] is one open file; its methods block the calling goroutine.
//   - [Queue] keeps several durable writes in flight for one goroutine, its owner, and lets that goroutine sleep until
//     a write completes or another goroutine calls Wake.
//   - [Arena] hands out [Buf], reference-counted, aligned memory outside the Go heap.
//
// Three implementations of the interfaces pass one conformance suite (aiotest): the io_uring ring, pwritev2 with
// RWF_DSYNC, and faultaio, an in-memory disk that tears, loses and fails according to a seed. [OpenDisk] finds out by
// trying which of the first two the kernel, the file system and the sandbox allow, and reports its choice in [Info]. It
// never fails because one of them is refused.
//
// Written bytes are durable when WriteSyncAt or Sync returned nil or a Queue's completion has no error, and only then.
// After one failure a file takes no more writes until it is opened again: the next flush could succeed although the
// kernel has dropped the bytes. (A full disk is not such a failure.)
package aio

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
)

// BlockBytes is the alignment of every direct write: of its file offset, its length and its memory. 4 KiB is the
// physical block of the devices that the engine knows. Info.BlockBytes says if a disk needs more.
const BlockBytes = 4096

// Errors of this package, tested with errors.Is. Errors of the system stay in the chain (syscall.ENOSPC, syscall.EIO,
// fs.ErrNotExist, ...).
var (
	// ErrLocked says that another process holds the data directory's lock.
	ErrLocked = errors.New("aio: the data directory is in use by another process")
	// ErrQueueFull says that Submit found Depth operations in flight already.
	ErrQueueFull = errors.New("aio: queue full")
	// ErrClosed says that the disk, file or queue was already closed.
	ErrClosed = errors.New("aio: closed")
	// ErrMedia says that mapped bytes could not be read from the device (SIGBUS, or EFAULT or EIO from
	// MADV_POPULATE_READ).
	ErrMedia = errors.New("aio: the device could not read a mapped range")
)

// Mode chooses the implementation of a disk's queues.
type Mode string

const (
	ModeAuto   Mode = "auto"   // uring where the kernel allows it, else pwrite
	ModeUring  Mode = "uring"  // io_uring; falls back to pwrite with a reason where it is refused
	ModePwrite Mode = "pwrite" // pwritev2 with RWF_DSYNC, or pwrite and fdatasync
)

// Info says what a disk turned out to be. It goes into the log, /info and every benchmark header.
type Info struct {
	Engine      string // "uring", "giouring", "pwrite", "fault"
	Reason      string // why this engine: one clause, for people
	Direct      bool   // files are opened with O_DIRECT
	Registered  bool   // arena memory is registered with the ring
	BlockBytes  int    // alignment of direct writes
	FileSystem  string // "ext4", "tmpfs", ...
	Device      string // block device name, "" if there is none
	DeviceCache string // "write back", "write through", "" if unknown
	Kernel      string // release of the running kernel
	// CopyOnWrite: a write into a file's own blocks needs new ones, so that even what was preallocated can meet a full
	// disk.
	CopyOnWrite bool
}

// NoInodeLimit is what Disk.FreeInodes returns where nothing but space limits how many files there are.
const NoInodeLimit = math.MaxInt64

// Disk is one data directory. All methods are safe for concurrent use.
//
// Names are slash-separated, relative and plain (fs.ValidPath). Other names, and LOCK, give fs.ErrInvalid. Links are
// followed only within the directory. A change of the directory tree (a created, renamed or removed name) is durable
// only after SyncDir of its parent returned, and a file's size only after a flush of the file.
type Disk interface {
	Info() Info

	// Create makes a new file of exactly size bytes with its space reserved (fallocate). The file reads as zeros.
	// Create fails with fs.ErrExist if the name exists, and with syscall.ENOSPC if there is no room; then no file is
	// left.
	Create(name string, size int64) (File, error)
	// CreateSparse is Create, but reserves space only for the first reserved bytes. The rest is a hole: it reads as zeros,
	// takes no space before it is written or File.Reserve gives it some.
	CreateSparse(name string, size, reserved int64) (File, error)
	// Open opens an existing file for reading and writing.
	Open(name string) (File, error)
	Rename(oldname, newname string) error
	Remove(name string) error
	// RemoveAll removes a directory tree; a name that does not exist is no error.
	RemoveAll(name string) error
	// MkdirAll makes a directory (mode 0700) and its parents. It syncs all parents, even those that existed: the
	// process that made them may have died before its sync.
	MkdirAll(name string) error
	SyncDir(name string) error
	// ReadDir lists a directory, sorted by name; LOCK is not shown.
	ReadDir(name string) ([]fs.FileInfo, error)
	// ReadFile reads a small file whole. If it is longer than maxBytes, the error is syscall.EFBIG.
	ReadFile(name string, maxBytes int64) ([]byte, error)
	// WriteFile replaces a small file durably and atomically: temporary file, fsync, rename, SyncDir. A crash can leave
	// the temporary file, name.tmp; the next WriteFile of the name replaces it.
	WriteFile(name string, data []byte) error
	// Identify returns the identity of the file or directory that a name leads to now.
	Identify(name string) (FileID, error)
	// CheckPlace returns a *GroundError if the directory or its LOCK is not any more where this Disk was opened: removed,
	// renamed, replaced, or under another file system that was mounted. It may hang as long as the file system does.
	CheckPlace() error
	// FreeBytes is how many bytes an unprivileged process may still write.
	FreeBytes() (int64, error)
	// FreeInodes is how many files and folders may still be made; NoInodeLimit: the file system sets no limit.
	FreeInodes() (int64, error)

	// NewQueue makes a queue. See Queue.
	NewQueue(opts QueueOptions) (Queue, error)
	// Close releases the lock last. Files and queues must be closed first. Closing again does nothing.
	Close() error
}

// File is one open file. Methods are safe for concurrent use except Close.
//
// Every write must be aligned to Info.BlockBytes in offset and length, and to a page in memory, even on a disk that is
// not direct. Memory from an Arena or AlignedBytes is aligned. An unaligned write panics. Reads need no alignment;
// aligned reads need no copy. On a direct disk reads go around the page cache, because after a disk error the page
// cache still shows bytes that the device never got.
type File interface {
	Name() string
	Size() (int64, error)
	// ID returns the identity of the open file, whatever its name leads to now.
	ID() (FileID, error)
	// Links returns how many names lead to the file. What is written to a file without a name is gone when it is closed,
	// and what is written to one with two names changes what the other one shows. Links allocates nothing.
	Links() (int, error)
	// WriteAt writes all of p or fails. A short write is an error and counts as not written.
	WriteAt(p []byte, off int64) error
	// Reserve gives the first n bytes of the file, at most its size, space where they have none. It fails with
	// syscall.ENOSPC if there is no room; then nothing that was written is lost. A write into a hole without it could come
	// short on a full disk, which counts as a failure of the device. The reservation is durable after the next flush.
	Reserve(n int64) error
	// WriteSyncAt is WriteAt and a flush: when it returns nil, p is on stable storage.
	WriteSyncAt(p []byte, off int64) error
	// ReadAt fills p or fails with io.ErrUnexpectedEOF or the system's error.
	ReadAt(p []byte, off int64) error
	// Sync is fdatasync. After it failed once, the file must not be written again: the kernel may still show earlier
	// writes that never reach the device. Implementations refuse such writes.
	Sync() error
	// Map maps the whole file, read-only. Its size must be greater than 0. The mapping outlives Close and Remove. A
	// file must never become shorter while it is mapped.
	Map() (Mapping, error)
	Close() error
}

// Mapping is a read-only view of a file. It shows what is written to the file meanwhile. Nobody gets access to the
// mapped bytes themselves: reading a page that the device cannot read raises a signal that ends the process, and a page
// that was read may have to be read again at any time. So Copy copies the bytes out and turns the signal into an error.
type Mapping interface {
	Size() int64
	// Copy brings [off, off+len(dst)) into memory as Populate does and copies it to dst. If the device cannot read the
	// range, the error is ErrMedia, and the contents of dst are undefined.
	Copy(dst []byte, off int64) error
	// Populate brings [off, off+n) into memory with a system call (MADV_POPULATE_READ), so that no page fault blocks a
	// processor. It does so in small pieces, so that writes need not wait for the whole range. A media error is
	// ErrMedia. Populate is cheap when the range is resident. After a longer range the kernel may read a little of what
	// follows. A range outside the mapping panics.
	Populate(off, n int64) error
	// Unmap ends the mapping; nobody may read its bytes afterwards. Unmapping again does nothing.
	Unmap() error
}

// QueueOptions are the choices for one queue.
type QueueOptions struct {
	Depth int    // maximum number of operations in flight, 1..MaxQueueDepth; 0 means DefaultQueueDepth
	Arena *Arena // memory to register with the ring, if possible; nil: none
}

// Limits of a queue.
const (
	DefaultQueueDepth = 2
	MaxQueueDepth     = 64
)

// QueueDepth returns Depth or its default. An impossible Depth is an error.
func (o QueueOptions) QueueDepth() (int, error) {
	if o.Depth < 0 || o.Depth > MaxQueueDepth {
		return 0, fmt.Errorf("aio: queue depth %d is not possible: choose 1 to %d", o.Depth, MaxQueueDepth)
	}
	if o.Depth == 0 {
		return DefaultQueueDepth, nil
	}
	return o.Depth, nil
}

// Queue keeps durable writes in flight for one goroutine, its owner, which alone calls Submit, Wait and Close. Any
// goroutine may call Wake.
type Queue interface {
	// Submit starts one durable write: data goes to op.File at op.Offset and is flushed to stable storage. The memory
	// must not change until Wait has returned the completion. An error (ErrQueueFull, ErrClosed, a file that failed
	// before) means that nothing was started and no completion will come.
	Submit(op Op) error
	// Wait appends completions to done and returns the result. With block it sleeps until there is at least one
	// completion or Wake was called since the last blocking Wait returned; without block it only collects. Completions
	// may come in any order. A blocking Wait consumes the wake-up whatever it returns for, so the owner must look at
	// all its work after each one. It may also return once without a reason. An error means that the queue itself
	// broke: writes in flight may or may not become durable.
	Wait(done []Completion, block bool) ([]Completion, error)
	// InFlight is the number of submitted operations whose completions Wait has not returned yet.
	InFlight() int
	// Wake makes the owner's current or next blocking Wait return. It is cheap (one atomic operation) when the owner is
	// awake, and never blocks. After Close it does nothing.
	Wake()
	// Close waits for the operations in flight, drops their completions, and frees the queue.
	Close() error
}

// Op is one durable write.
type Op struct {
	File   File
	Data   []byte // aligned; memory of the queue's Arena, or of AlignedBytes
	Offset int64
	Tag    uint64 // returned with the completion
}

// Completion is the end of one Op. If Err is nil, all bytes are on stable storage. A short write, -ECANCELED and every
// other outcome is an error and means "not durable".
type Completion struct {
	Tag uint64
	Err error
}
