package aio_test

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"penstock/segment/aio"
	"penstock/tests/support/aiotest"
)

var engines = map[string]aio.DiskOptions{
	"uring":           {Mode: aio.ModeUring},
	"uring buffered":  {Mode: aio.ModeUring, Buffered: true},
	"pwrite":          {Mode: aio.ModePwrite},
	"pwrite buffered": {Mode: aio.ModePwrite, Buffered: true},
}

// writeOne writes p durably through a queue and returns how that ended.
func writeOne(t *testing.T, q aio.Queue, f aio.File, p []byte, off int64) error {
	t.Helper()
	if err := q.Submit(aio.Op{File: f, Data: p, Offset: off}); err != nil {
		return err
	}
	done, err := q.Wait(nil, true)
	if err != nil || len(done) != 1 {
		t.Fatalf("completions %v, %v", done, err)
	}
	return done[0].Err
}

// A full disk: a write that does not fit is an error, whatever part of it fits. A file that only lacked room goes on
// once there is room (B16).
func TestFullDisk(t *testing.T) {
	for name, opts := range engines {
		t.Run(name, func(t *testing.T) {
			d := open(t, mount(t, "tmpfs", "size=1m"), opts)
			defer d.Close()
			q, err := d.NewQueue(aio.QueueOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer q.Close()
			if _, err := d.Create("large", 2<<20); !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("Create above the size of the disk: %v, want ENOSPC", err)
			}
			f, err := d.Create("small", aio.BlockBytes)
			if err != nil {
				t.Fatalf("after a failed Create: %v", err)
			}
			defer f.Close()
			p, free := aio.AlignedBytes(4 << 20)
			defer free()
			for what, write := range map[string]func() error{
				"a queue": func() error { return writeOne(t, q, f, p, 0) },
				"a file":  func() error { return f.WriteSyncAt(p, 0) },
			} {
				// The kernel takes what fits, and says why not more when it is asked for the rest.
				if err := write(); !errors.Is(err, syscall.ENOSPC) {
					t.Fatalf("%s: a write larger than the disk: %v, want ENOSPC", what, err)
				}
				if err := writeOne(t, q, f, p[:aio.BlockBytes], 0); err != nil {
					t.Fatalf("%s: a block that has its room already: %v", what, err)
				}
			}
		})
	}
}

// mountImage mounts a new journaled ext4 from an image file.
func mountImage(t *testing.T) string { return aiotest.MountImage(t, "ext4", 32<<20) }

// shutdown makes the file system fail every operation from now on, like a device that went away.
func shutdown(t *testing.T, dir string) {
	t.Helper()
	const (
		extShutdown = 0x8004587D // EXT4_IOC_SHUTDOWN
		noLogFlush  = 2
	)
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.IoctlSetPointerInt(int(f.Fd()), extShutdown, noLogFlush); err != nil {
		t.Fatalf("shutting the file system down: %v", err)
	}
}

// After one failed write or flush, nothing in the file is reported as stored again (B28).
func TestFailedDeviceStaysFailed(t *testing.T) {
	for name, opts := range engines {
		t.Run(name, func(t *testing.T) {
			dir := mountImage(t)
			d := open(t, dir, opts)
			defer d.Close()
			q, err := d.NewQueue(aio.QueueOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer q.Close()
			p, free := aio.AlignedBytes(aio.BlockBytes)
			defer free()
			written, flushed := make([]aio.File, 2), make([]aio.File, 2)
			for i, name := range []string{"queue", "direct"} {
				if written[i], err = d.Create(name, 4*aio.BlockBytes); err != nil {
					t.Fatal(err)
				}
				defer written[i].Close()
				if flushed[i], err = d.Create("flush-"+name, 4*aio.BlockBytes); err != nil {
					t.Fatal(err)
				}
				defer flushed[i].Close()
				if err := errors.Join(writeOne(t, q, written[i], p, 0), flushed[i].WriteAt(p, 0)); err != nil {
					t.Fatal(err)
				}
			}
			shutdown(t, dir)
			if err := writeOne(t, q, written[0], p, 0); !errors.Is(err, syscall.EIO) {
				t.Errorf("a queue's write to a dead device: %v, want EIO", err)
			}
			if err := written[1].WriteSyncAt(p, 0); !errors.Is(err, syscall.EIO) {
				t.Errorf("a durable write to a dead device: %v, want EIO", err)
			}
			for _, f := range flushed {
				if err := f.Sync(); !errors.Is(err, syscall.EIO) {
					t.Errorf("a flush of a dead device: %v, want EIO", err)
				}
			}
			for _, f := range append(written, flushed...) {
				if err := f.WriteAt(p, 0); err == nil {
					t.Errorf("%s took a write after a failure", f.Name())
				}
				if err := f.Sync(); err == nil {
					t.Errorf("%s was flushed after a failure", f.Name())
				}
				if err := q.Submit(aio.Op{File: f, Data: p}); err == nil {
					t.Errorf("%s was submitted after a failure", f.Name())
				}
			}
		})
	}
}
