package contract

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"unsafe"
)

// LockName is the file whose lock says that a process uses the directory. The file belongs to the disk.
const LockName = "LOCK"

// TempSuffix marks the file that WriteFile is writing. A crash can leave such a file; the next WriteFile of the same
// name replaces it.
const TempSuffix = ".tmp"

// memoryAlign is the alignment of memory for direct writes: a page.
const memoryAlign = 4096

// Name refuses every name that is not plain and relative (fs.ValidPath), and the lock file. The error is a
// *fs.PathError with fs.ErrInvalid.
func Name(op, name string) error {
	if !fs.ValidPath(name) || name == LockName {
		return &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	return nil
}

// ChangeName checks the name for an operation that changes something. Beyond Name it refuses the directory itself
// (".").
func ChangeName(op, name string) error {
	if name == "." {
		return &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	return Name(op, name)
}

// TooLong is the error for a file that exceeds the bound of ReadFile.
func TooLong(name string, maxBytes int64) error {
	return &fs.PathError{
		Op: "read", Path: name, Err: fmt.Errorf("longer than the %d bytes allowed: %w", maxBytes, syscall.EFBIG),
	}
}

// MustBeAligned panics unless a write of p at off is aligned for direct I/O. It applies to buffered disks, too.
func MustBeAligned(p []byte, off int64, blockBytes int) {
	block := int64(blockBytes)
	address := uintptr(unsafe.Pointer(unsafe.SliceData(p)))
	if len(p) == 0 || int64(len(p))%block != 0 || off < 0 || off%block != 0 || address%memoryAlign != 0 {
		panic(fmt.Sprintf("BUG: aio: unaligned write of %d bytes at offset %d: memory, length and offset must be multiples "+
			"of %d", len(p), off, block))
	}
}

// MustBeSizes panics unless a file of size bytes can be created with space for the first reserved bytes.
func MustBeSizes(size, reserved int64) {
	if reserved < 0 || reserved > size {
		panic(fmt.Sprintf("BUG: aio: a file of %d bytes with space for %d", size, reserved))
	}
}

// NoRoom says whether err means a full disk, or an exceeded quota or size limit. Such an error loses nothing that was
// written before, so it does not make a file unusable.
func NoRoom(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
}
