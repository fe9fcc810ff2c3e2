package aio

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"penstock/internal/uring"
	"penstock/segment/aio/contract"
)

// probeRing opens a ring and does what a queue does, on the file at fd: a durable write of one block, a read, and a
// flush. So a sandbox or file system that refuses one of these is detected here and not in the first commit.
func probeRing(fd, blockBytes int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r, err := uring.Open(4)
	if err != nil {
		return err
	}
	defer r.Close()
	block, free := AlignedBytes(blockBytes)
	defer free()
	write := uring.Entry{Op: uring.OpWrite, FD: fd, Data: block, Flags: unix.RWF_DSYNC}
	read := uring.Entry{Op: uring.OpRead, FD: fd, Data: block}
	// One after the other: a flush that is submitted before its write completed may overtake the write.
	for _, e := range []uring.Entry{write, read, {Op: uring.OpFsync, FD: fd, Flags: uring.FsyncData}} {
		if err := runOne(r, e); err != nil && !contract.NoRoom(err) && !errors.Is(err, io.ErrShortWrite) {
			return fmt.Errorf("operation %d: %w", e.Op, err)
		}
	}
	return nil
}

// runOne submits one entry and waits for it.
func runOne(r uring.Ring, e uring.Entry) error {
	if !r.Prepare(e) {
		return uring.ErrStuck
	}
	for {
		if err := uring.EnterRetry(r, 1); err != nil {
			return err
		}
		if _, res, ok := r.Next(); ok {
			return result(res, len(e.Data))
		}
	}
}

// result turns a completion into an error. It returns nil only if all bytes were written.
func result(res int32, want int) error {
	switch {
	case res < 0:
		return syscall.Errno(-res)
	case int(res) != want:
		return shortWrite(int(res), want)
	}
	return nil
}
