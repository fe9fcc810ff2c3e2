package aio_test

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"penstock/segment/aio"
)

// unmappable is a node of a file system that passes everything on to a directory, and whose files cannot be mapped
// (direct_io), as on many network file systems of containers.
type unmappable struct{ fs.LoopbackNode }

func (n *unmappable) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	h, _, errno := n.LoopbackNode.Open(ctx, flags)
	return handleOf(h), fuse.FOPEN_DIRECT_IO, errno
}

func (n *unmappable) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (
	*fs.Inode, fs.FileHandle, uint32, syscall.Errno,
) {
	inode, h, _, errno := n.LoopbackNode.Create(ctx, name, flags, mode, out)
	return inode, handleOf(h), fuse.FOPEN_DIRECT_IO, errno
}

// handle is an open file without the methods by which the kernel would pass by the server and map the file below.
type handle struct {
	fs.FileReader
	fs.FileWriter
	fs.FileFlusher
	fs.FileReleaser
	fs.FileFsyncer
	fs.FileAllocater
	fs.FileGetattrer
	fs.FileSetattrer
}

func handleOf(h fs.FileHandle) fs.FileHandle {
	if h == nil {
		return nil
	}
	return &handle{
		h.(fs.FileReader), h.(fs.FileWriter), h.(fs.FileFlusher), h.(fs.FileReleaser), h.(fs.FileFsyncer),
		h.(fs.FileAllocater), h.(fs.FileGetattrer), h.(fs.FileSetattrer),
	}
}

// mountFuse mounts such a file system, or one whose files can be mapped.
func mountFuse(t *testing.T, mapped bool) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a file system needs root")
	}
	root := &fs.LoopbackRoot{Path: t.TempDir()}
	if !mapped {
		//lint:ignore SA1019 NodeWrapChilder needs a type of its own for the root, too
		root.NewNode = func(r *fs.LoopbackRoot, _ *fs.Inode, _ string, _ *syscall.Stat_t) fs.InodeEmbedder {
			return &unmappable{fs.LoopbackNode{RootData: r}}
		}
	}
	var top fs.InodeEmbedder = &fs.LoopbackNode{RootData: root}
	if !mapped {
		top = &unmappable{fs.LoopbackNode{RootData: root}}
	}
	root.RootNode = top
	dir := t.TempDir()
	server, err := fs.Mount(dir, top, &fs.Options{MountOptions: fuse.MountOptions{DirectMount: true, FsName: "test"}})
	if err != nil {
		t.Skipf("this machine mounts no FUSE file systems: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
		server.Wait()
	})
	return dir
}

// A file system that maps no files is refused at the start: what is stored there could never be delivered.
func TestMappingIsProbed(t *testing.T) {
	dir := mountFuse(t, false)
	d, err := aio.OpenDisk(dir, aio.DiskOptions{})
	if err == nil {
		d.Close()
		t.Fatal("it is opened")
	}
	for _, want := range []string{"(fuse) maps no files into memory", "nothing was stored", "without direct_io"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) > 1 { // LOCK stays
		t.Errorf("what is left: %v %v", names, err)
	}
	whole := open(t, mountFuse(t, true), aio.DiskOptions{})
	if err := whole.Close(); err != nil {
		t.Error(err)
	}
}
