package aio

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"penstock/segment/aio/contract"
)

// The ground of a process is the files and directories that it works with. Somebody may take them away although no
// read or write fails: a removed file can be written and flushed like any other as long as it is open. What such a
// write stores is gone with the process. So a process has to look.

// FileID tells a file or directory from all others that there are or were.
type FileID struct {
	Device, Number uint64
	// BornNs is the time at which the file was made, or 0 if the file system does not say. It tells the file from a later
	// one with the same inode number.
	BornNs int64
}

// GroundError says that a name does not lead any more to the file or directory that the process works with.
type GroundError struct {
	Name string
	Seen string // what happened to it, as the rest of a sentence that begins with the name
}

func (e *GroundError) Error() string {
	return "aio: " + e.Name + " " + e.Seen + " while this process uses it"
}

// CompareGround says whether name still means what it meant. was is what it meant; is and err are what Disk.Identify
// said now. The result is a *GroundError or nil. An error other than that of a missing name proves nothing.
func CompareGround(name string, was, is FileID, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return &GroundError{name, "was removed or renamed"}
	case err != nil:
		return nil
	case was.Device != is.Device:
		return &GroundError{name, "was covered by another file system, or replaced by something on one,"}
	case was.Number != is.Number, was.BornNs != is.BornNs && was.BornNs != 0 && is.BornNs != 0:
		return &GroundError{name, "was replaced by another file or directory of that name"}
	}
	return nil
}

// MissingGround returns what is lost according to err, an fs.ErrNotExist that somebody met who knows that the file or
// folder was there. what is what he was doing.
func MissingGround(what string, err error) *GroundError {
	lost := &GroundError{"a file or folder", fmt.Sprintf("was removed or renamed (%s: %v)", what, err)}
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		lost.Name = p.Path
	} else if p := (*os.LinkError)(nil); errors.As(err, &p) {
		lost.Name = p.New
	}
	return lost
}

// identify returns the identity of a name, relative to dirFD; with an empty name and AT_EMPTY_PATH, that of dirFD.
func identify(dirFD int, name string, flags int) (FileID, error) {
	var stx unix.Statx_t
	const mask = unix.STATX_INO | unix.STATX_BTIME
	err := retry(func() error { return unix.Statx(dirFD, name, flags, mask, &stx) })
	if err == nil {
		id := FileID{Device: unix.Mkdev(stx.Dev_major, stx.Dev_minor), Number: stx.Ino}
		if stx.Mask&unix.STATX_BTIME != 0 {
			id.BornNs = stx.Btime.Sec*1e9 + int64(stx.Btime.Nsec)
		}
		return id, nil
	}
	if err != syscall.ENOSYS && err != syscall.EPERM { // old kernels, and the sandboxes of old container runtimes
		return FileID{}, err
	}
	var st unix.Stat_t
	err = retry(func() error { return unix.Fstatat(dirFD, name, &st, flags) })
	return FileID{Device: st.Dev, Number: st.Ino}, err
}

// identifyFD returns the identity of an open file.
func identifyFD(fd int) (FileID, error) { return identify(fd, "", unix.AT_EMPTY_PATH) }

func (d *fsDisk) Identify(name string) (id FileID, err error) {
	if err := d.check("identify", name); err != nil {
		return id, err
	}
	return d.identifyName(name)
}

// identifyName does what Identify does, but does not check the name.
func (d *fsDisk) identifyName(name string) (id FileID, err error) {
	err = withFD(d.dir, func(dir int) (err error) {
		id, err = identify(dir, name, unix.AT_SYMLINK_NOFOLLOW)
		return err
	})
	if err != nil {
		err = &fs.PathError{Op: "identify", Path: name, Err: err}
	}
	return id, err
}

func (d *fsDisk) CheckPlace() error {
	is, seen := identify(unix.AT_FDCWD, d.path, 0)
	err := withFD(d.dir, func(dir int) error {
		was, err := identifyFD(dir)
		if err != nil {
			return err
		}
		return CompareGround("the data directory "+d.path, was, is, seen)
	})
	if lost := (*GroundError)(nil); errors.As(err, &lost) || d.lock.file == nil {
		return groundOnly(err)
	}
	is, seen = d.identifyName(contract.LockName)
	err = withFD(d.lock.file, func(lock int) error {
		was, err := identifyFD(lock)
		if err != nil {
			return err
		}
		return CompareGround(contract.LockName, was, is, seen)
	})
	return groundOnly(err)
}

// groundOnly returns err if it is a *GroundError. Any other error proves nothing: the disk was closed, or the system
// had no answer.
func groundOnly(err error) error {
	if lost := (*GroundError)(nil); errors.As(err, &lost) {
		return lost
	}
	return nil
}

func (f *file) ID() (FileID, error) {
	if f.closed.Load() {
		return FileID{}, fmt.Errorf("aio: %s: %w", f.name, ErrClosed)
	}
	id, err := identifyFD(f.fd)
	if err != nil {
		err = fmt.Errorf("aio: the identity of %s: %w", f.name, err)
	}
	return id, err
}

func (f *file) Links() (int, error) {
	if f.closed.Load() {
		return 0, fmt.Errorf("aio: %s: %w", f.name, ErrClosed)
	}
	var st unix.Statx_t
	if err := links(f.fd, &st); err != nil {
		return 0, fmt.Errorf("aio: the links of %s: %w", f.name, err)
	}
	return int(st.Nlink), nil
}

// noPath is an empty path that ends with a zero: unix.Statx would allocate it each time.
var noPath byte

// links asks for the number of links only, again if a signal interrupts it. It allocates nothing. It must not ask for
// times, as fstat does: since Linux 6.13 the next write after that takes a new, finer time and changes the inode.
func links(fd int, st *unix.Statx_t) error {
	for range maxRetries {
		_, _, errno := unix.Syscall6(unix.SYS_STATX, uintptr(fd), uintptr(unsafe.Pointer(&noPath)), unix.AT_EMPTY_PATH,
			unix.STATX_NLINK, uintptr(unsafe.Pointer(st)), 0)
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
	return unix.EINTR
}
