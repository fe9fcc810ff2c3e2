package aio

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/edsrzf/mmap-go"
	"golang.org/x/sys/unix"

	"penstock/segment/aio/contract"
)

// maxRetries bounds how often a system call is repeated that was interrupted or answered EAGAIN.
const maxRetries = 1000

// file is a File of fsDisk.
type file struct {
	disk *fsDisk
	name string
	os   *os.File // owns fd, and keeps the finalizer from closing it
	fd   int

	closed atomic.Bool
	// failed is the first failure of a write or a flush, and stays for ever: the next fdatasync may report success
	// although the kernel dropped the bytes, so neither a flush nor a write is tried again.
	failed atomic.Pointer[error]
}

var _ File = (*file)(nil)

func (f *file) Name() string { return f.name }

// usable returns nil while the file may be written.
func (f *file) usable() error {
	if f.closed.Load() {
		return fmt.Errorf("aio: %s: %w", f.name, ErrClosed)
	}
	if failed := f.failed.Load(); failed != nil {
		return fmt.Errorf("aio: %s takes no more writes until it is opened again: an earlier one was not made durable: %w",
			f.name, *failed)
	}
	return nil
}

// note keeps a failure after which the file cannot be trusted, and returns a description of the failure. A disk without
// room has lost nothing that was written before, so lack of room is not such a failure.
func (f *file) note(what string, err error) error {
	err = fmt.Errorf("aio: %s of %s failed, the bytes count as not stored: %w", what, f.name, err)
	if !contract.NoRoom(err) {
		f.failed.CompareAndSwap(nil, &err)
	}
	return err
}

func (f *file) Size() (int64, error) {
	if f.closed.Load() {
		return 0, fmt.Errorf("aio: %s: %w", f.name, ErrClosed)
	}
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return 0, fmt.Errorf("aio: size of %s: %w", f.name, err)
	}
	return st.Size, nil
}

func (f *file) WriteAt(p []byte, off int64) error {
	contract.MustBeAligned(p, off, f.disk.blockBytes)
	if err := f.usable(); err != nil {
		return err
	}
	if err := pwriteFull(f.fd, p, off, 0); err != nil {
		return f.note("a write", err)
	}
	return nil
}

func (f *file) Reserve(n int64) error {
	if err := f.usable(); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return fmt.Errorf("aio: size of %s: %w", f.name, err)
	}
	contract.MustBeSizes(st.Size, n)
	if n == 0 {
		return nil
	}
	err := allocate(f.fd, n, n-st.Blocks*512)
	if err == syscall.EOPNOTSUPP || err == syscall.ENOSYS {
		return nil // writing zeros would overwrite what is there: the file system makes no promise
	}
	if err != nil {
		return fmt.Errorf("aio: reserving %d bytes of %s: %w", n, f.name, err)
	}
	return nil
}

func (f *file) WriteSyncAt(p []byte, off int64) error {
	contract.MustBeAligned(p, off, f.disk.blockBytes)
	if err := f.usable(); err != nil {
		return err
	}
	if f.disk.dsync {
		if err := pwriteFull(f.fd, p, off, unix.RWF_DSYNC); err != nil {
			return f.note("a durable write", err)
		}
		return nil
	}
	if err := pwriteFull(f.fd, p, off, 0); err != nil {
		return f.note("a write", err)
	}
	return f.Sync()
}

func (f *file) Sync() error {
	if err := f.usable(); err != nil {
		return err
	}
	if err := fdatasync(f.fd); err != nil {
		err = fmt.Errorf("aio: flush of %s failed, what was written since the last flush counts as not stored: %w",
			f.name, err)
		f.failed.CompareAndSwap(nil, &err)
		return err
	}
	return nil
}

func fdatasync(fd int) error {
	return retry(func() error { return unix.Fdatasync(fd) })
}

// retry repeats a call that a signal interrupted. A call may be repeated only if success of the repetition cannot hide
// a failure of the first attempt. EINTR of fdatasync is fine: it means that fdatasync did not look at the device.
func retry(call func() error) error {
	var err error
	for range maxRetries {
		if err = call(); err != syscall.EINTR {
			return err
		}
	}
	return err
}

func (f *file) ReadAt(p []byte, off int64) error {
	if f.closed.Load() {
		return fmt.Errorf("aio: %s: %w", f.name, ErrClosed)
	}
	if off < 0 {
		panic("BUG: aio.File.ReadAt: negative offset")
	}
	if len(p) == 0 {
		return nil
	}
	block := int64(f.disk.blockBytes)
	var err error
	if !f.disk.direct || (off%block == 0 && int64(len(p))%block == 0 && addrOf(p)%BlockBytes == 0) {
		err = preadFull(f.fd, p, off)
	} else {
		err = f.readBounced(p, off)
	}
	if err != nil {
		return fmt.Errorf("aio: read of %d bytes of %s at byte %d: %w", len(p), f.name, off, err)
	}
	return nil
}

// readBounced reads an unaligned range of a direct file through an aligned buffer. It uses O_DIRECT on purpose: after a
// disk error the page cache still shows bytes that the device never got.
func (f *file) readBounced(p []byte, off int64) error {
	buf := f.disk.bounce.get()
	defer f.disk.bounce.put(buf)
	block := int64(f.disk.blockBytes)
	for len(p) > 0 {
		start := off - off%block
		skip := int(off - start)
		want := min(len(buf), roundUpTo(skip+len(p), int(block)))
		n, err := preadSome(f.fd, buf[:want], start)
		if err != nil {
			return err
		}
		if n <= skip {
			return io.ErrUnexpectedEOF
		}
		m := copy(p, buf[skip:n])
		p, off = p[m:], off+int64(m)
	}
	return nil
}

func roundUpTo(n, multiple int) int { return (n + multiple - 1) / multiple * multiple }

func (f *file) Map() (Mapping, error) {
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size == 0 || size != int64(int(size)) {
		return nil, fmt.Errorf("aio: %s has %d bytes and cannot be mapped", f.name, size)
	}
	mem, err := mmap.MapRegion(f.os, int(size), mmap.RDONLY, 0, 0)
	if err != nil {
		return nil, fmt.Errorf("aio: %w", &fs.PathError{Op: "map", Path: f.name, Err: err})
	}
	return newMapping(f.name, mem), nil
}

func (f *file) Close() error {
	if f.closed.Swap(true) {
		return nil
	}
	if err := f.os.Close(); err != nil {
		return fmt.Errorf("aio: closing %s: %w", f.name, err)
	}
	return nil
}

// pwriteFull writes all of p or fails. When the kernel takes only whole blocks of p, it has not said why: pwriteFull
// asks for the rest, and the answer is the reason, mostly a full disk. If the rest is written, too, all of p is.
func pwriteFull(fd int, p []byte, off int64, flags uintptr) error {
	var err error
	for range maxRetries {
		var n int
		n, err = pwritev2(fd, p, off, flags)
		switch {
		case err == syscall.EINTR || err == syscall.EAGAIN:
			continue
		case err != nil:
			return err
		case n == len(p):
			return nil
		case !canGoOn(n):
			return shortWrite(n, len(p))
		}
		p, off = p[n:], off+int64(n)
	}
	return err
}

// canGoOn says whether the rest of a write of which the kernel took n bytes is aligned.
func canGoOn(n int) bool { return n > 0 && n%BlockBytes == 0 }

// shortWrite describes a write of which the kernel took only a part, and did not say why. Guessing would turn a lost
// write into a harmless one.
func shortWrite(n, want int) error {
	return fmt.Errorf("%w: %d of %d bytes", io.ErrShortWrite, n, want)
}

// pwritev2 is one system call without an allocation. With flags 0 it is pwrite, which older kernels have, too.
func pwritev2(fd int, p []byte, off int64, flags uintptr) (int, error) {
	if flags == 0 {
		return unix.Pwrite(fd, p, off)
	}
	iov := unix.Iovec{Base: unsafe.SliceData(p)}
	iov.SetLen(len(p))
	// The offset is passed as two longs, its low and its high half; on 64 bits the first long carries all of it.
	n, _, errno := syscall.Syscall6(unix.SYS_PWRITEV2, uintptr(fd), uintptr(unsafe.Pointer(&iov)), 1, uintptr(off),
		uintptr(uint64(off)>>32), flags)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// preadFull fills p or fails.
func preadFull(fd int, p []byte, off int64) error {
	for len(p) > 0 {
		n, err := preadSome(fd, p, off)
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrUnexpectedEOF
		}
		if n < len(p) && n%BlockBytes != 0 {
			// Only the end of the file ends a read inside a block, and going on from there would be an unaligned direct
			// read.
			return io.ErrUnexpectedEOF
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// preadSome reads once. It returns 0 at the end of the file.
func preadSome(fd int, p []byte, off int64) (int, error) {
	var n int
	err := retry(func() (err error) {
		n, err = unix.Pread(fd, p, off)
		return err
	})
	return n, err
}
