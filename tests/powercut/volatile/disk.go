package volatile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/rpc"
	"os"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// disk is a device in the server's process. Its methods are safe for concurrent use.
type disk struct {
	mu      sync.Mutex
	stable  []byte                      // survives a cut; anonymous memory that takes what was touched
	cache   map[int64][SectorBytes]byte // written and not flushed, by sector
	dead    bool                        // after a cut: every request fails
	noReads bool                        // reads fail
	noWrite bool                        // writes and flushes fail
	flushes int
}

// Disks is what the server's process does, called by Server over net/rpc, one call at a time.
type Disks struct{ all []*disk }

// OpenArgs make a disk on a directory; the answer is its number.
type OpenArgs struct {
	Dir       string
	SizeBytes int
}

// CutArgs cut the power of some disks. Share is how much of what was not flushed survives, chosen with Seed.
type CutArgs struct {
	Disks []int
	Share float64
	Seed  uint64
}

// FailArgs say which requests of a disk fail.
type FailArgs struct {
	Disk          int
	Reads, Writes bool
}

// Nothing is an answer without content.
type Nothing struct{}

// serveDisks answers calls until its caller is gone.
func serveDisks() error {
	server := rpc.NewServer()
	if err := server.Register(&Disks{}); err != nil {
		return err
	}
	server.ServeConn(stdio{})
	return nil
}

// stdio is the connection to the process that started this one.
type stdio struct{}

func (stdio) Read(p []byte) (int, error)  { return os.Stdin.Read(p) }
func (stdio) Write(p []byte) (int, error) { return os.Stdout.Write(p) }
func (stdio) Close() error                { return os.Stdin.Close() }

// Open mounts a file system with one file, which is the disk.
func (s *Disks) Open(a OpenArgs, number *int) error {
	stable, err := unix.Mmap(-1, 0, a.SizeBytes, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		return err
	}
	d := &disk{stable: stable, cache: map[int64][SectorBytes]byte{}}
	if _, err := fs.Mount(a.Dir, &rootNode{d: d}, &fs.Options{MountOptions: fuse.MountOptions{
		DirectMount: true, FsName: "volatile", Name: "volatile", MaxWrite: maxIOBytes, DisableXAttrs: true,
	}}); err != nil {
		return errors.Join(fmt.Errorf("mounting the device's file: %w", err), unix.Munmap(stable))
	}
	*number = len(s.all)
	s.all = append(s.all, d)
	return nil
}

// Cut takes the power of some disks at one moment, and answers how many sectors were lost.
func (s *Disks) Cut(a CutArgs, lost *int) error {
	rng := rand.New(rand.NewPCG(a.Seed, 1))
	for _, n := range a.Disks {
		d := s.all[n]
		d.mu.Lock()
		defer d.mu.Unlock()
		d.dead = true
	}
	for _, n := range a.Disks {
		d := s.all[n]
		for sector, data := range d.cache {
			if rng.Float64() < a.Share {
				copy(d.stable[sector*SectorBytes:], data[:])
			} else {
				*lost++
			}
		}
		clear(d.cache)
	}
	return nil
}

// Fail lets requests of a disk fail.
func (s *Disks) Fail(a FailArgs, _ *Nothing) error {
	d := s.all[a.Disk]
	d.mu.Lock()
	defer d.mu.Unlock()
	d.noReads, d.noWrite = a.Reads, a.Writes
	return nil
}

// Revive gives a disk its power back.
func (s *Disks) Revive(n int, _ *Nothing) error {
	d := s.all[n]
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dead = false
	return nil
}

func (d *disk) write(p []byte, off int64) syscall.Errno {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.dead || d.noWrite:
		return syscall.EIO
	case off%SectorBytes != 0 || len(p)%SectorBytes != 0 || off+int64(len(p)) > int64(len(d.stable)):
		return syscall.EINVAL
	}
	for ; len(p) > 0; p, off = p[SectorBytes:], off+SectorBytes {
		d.cache[off/SectorBytes] = [SectorBytes]byte(p)
	}
	return 0
}

func (d *disk) read(p []byte, off int64) (int, syscall.Errno) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead || d.noReads {
		return 0, syscall.EIO
	}
	if off >= int64(len(d.stable)) {
		return 0, 0
	}
	p = p[:copy(p, d.stable[off:])]
	if len(d.cache) == 0 {
		return len(p), 0
	}
	for sector := off / SectorBytes; sector*SectorBytes < off+int64(len(p)); sector++ {
		if data, ok := d.cache[sector]; ok {
			from := sector*SectorBytes - off
			copy(p[max(from, 0):], data[max(-from, 0):])
		}
	}
	return len(p), 0
}

func (d *disk) flush() syscall.Errno {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead || d.noWrite {
		return syscall.EIO
	}
	for sector, data := range d.cache {
		copy(d.stable[sector*SectorBytes:], data[:])
	}
	clear(d.cache)
	d.flushes++
	return 0
}

// fileName is the only file of the FUSE file system.
const fileName = "device"

// rootNode is the directory that holds the file.
type rootNode struct {
	fs.Inode
	d *disk
}

var _ fs.NodeOnAdder = (*rootNode)(nil)

func (r *rootNode) OnAdd(ctx context.Context) {
	r.AddChild(fileName, r.NewPersistentInode(ctx, &fileNode{d: r.d}, fs.StableAttr{Mode: syscall.S_IFREG}), false)
}

// fileNode is the file. The kernel keeps nothing of it (FOPEN_DIRECT_IO): what it wrote is in our cache, and nowhere
// else.
type fileNode struct {
	fs.Inode
	d *disk
}

var (
	_ fs.NodeOpener    = (*fileNode)(nil)
	_ fs.NodeGetattrer = (*fileNode)(nil)
	_ fs.NodeReader    = (*fileNode)(nil)
	_ fs.NodeWriter    = (*fileNode)(nil)
	_ fs.NodeFsyncer   = (*fileNode)(nil)
	_ fs.NodeFlusher   = (*fileNode)(nil)
)

func (f *fileNode) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

func (f *fileNode) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode = syscall.S_IFREG | 0o600
	out.Size = uint64(len(f.d.stable))
	return 0
}

func (f *fileNode) Read(_ context.Context, _ fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	n, errno := f.d.read(dest, off)
	return fuse.ReadResultData(dest[:n]), errno
}

func (f *fileNode) Write(_ context.Context, _ fs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	if errno := f.d.write(data, off); errno != 0 {
		return 0, errno
	}
	return uint32(len(data)), 0
}

// Fsync is the device's flush.
func (f *fileNode) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno { return f.d.flush() }

// Flush is what close does: no flush of the device.
func (f *fileNode) Flush(context.Context, fs.FileHandle) syscall.Errno { return 0 }
