package aio

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"penstock/segment/aio/internal/contract"
)

// ring is what a uringQueue needs of an io_uring. Two implementations exist: kernelRing, the
// engine's own thin layer over the kernel's interface, and giouringRing, over the library of that name,
// under the build tag giouring. A ring is used by one thread.
type ring interface {
	// registerBuffers makes the buffers known to the kernel, which pins them; number i is iovecs[i].
	registerBuffers(iovecs []unix.Iovec) error
	// registerFile makes the kernel hold fd as long as the ring lives.
	registerFile(fd int) error
	// prepare fills the next submission entry; false: the submission queue is full.
	prepare(e entry) bool
	// neutralize turns the entry that was prepared last, and that the kernel has not taken, into
	// one that does nothing and completes with ignoredData.
	neutralize()
	// enter submits what was prepared and waits for at least minComplete completions; it does not wait when
	// the kernel did not take all. It is one system call, made so that the scheduler can hand the processor over.
	enter(minComplete uint32) error
	// untaken is the number of prepared entries that the kernel has not taken.
	untaken() uint32
	// next takes one completion, if one is there.
	next() (userData uint64, res int32, ok bool)
	// close frees the ring; operations in flight must have completed.
	close()
}

// entry is one operation for a ring.
type entry struct {
	op       uint8 // opRead, opWrite, ...
	fd       int
	addr     uintptr
	bytes    int
	off      int64
	rwFlags  uint32
	bufIndex int // opWriteFixed: the registered buffer
	userData uint64
}

// Operation codes of the kernel interface.
const (
	opNop        = 0
	opFsync      = 3
	opWriteFixed = 5
	opRead       = 22
	opWrite      = 23
	opSend       = 26
)

// fsyncData is IORING_FSYNC_DATASYNC.
const fsyncData = 1

// User data that is no slot number. All ones is taken by liburing's own timeouts.
const (
	wakeData    = 1 << 32
	ignoredData = 2 << 32
)

// again tells errors of enter after which the same call may succeed.
func again(err error) bool {
	switch err {
	case syscall.EINTR, syscall.EAGAIN, syscall.EBUSY, syscall.ETIME:
		return true
	}
	return false
}

// errRingStuck ends the retries of enter.
var errRingStuck = errors.New("the ring did not take the call")

// Limits of the patience with a ring that says "again": about 100 ms.
const (
	maxEnterTries  = 100
	enterTriesFast = 10 // without a pause
	enterPause     = time.Millisecond
)

// enterRetry repeats enter while the kernel says to try again. Signals do not count: an idle owner sleeps
// here for days, and each may interrupt it once more.
func enterRetry(r ring, minComplete uint32) error {
	for tries := 0; ; {
		err := r.enter(minComplete)
		switch {
		case err == nil || !again(err):
			return err
		case err == syscall.EINTR:
			continue
		}
		// Short of memory, or of room for completions: let others make progress.
		if tries++; tries == maxEnterTries {
			return fmt.Errorf("%w %d times: %w", errRingStuck, tries, err)
		}
		if tries > enterTriesFast {
			time.Sleep(enterPause)
		} else {
			runtime.Gosched()
		}
	}
}

// result turns a completion into an error: nil only if all bytes were written.
func result(res int32, want int) error {
	switch {
	case res < 0:
		return syscall.Errno(-res)
	case int(res) != want:
		return shortWrite(int(res), want)
	}
	return nil
}

// probeRing opens a ring and does with it what a queue does, on the file at fd: a durable write of
// one block, a read, and a flush. Sandboxes and file systems that refuse any of it are found here,
// not in the first commit.
func probeRing(fd, blockBytes int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r, err := openRing(4)
	if err != nil {
		return err
	}
	defer r.close()
	block, free := AlignedBytes(blockBytes)
	defer free()
	write := entry{op: opWrite, fd: fd, addr: addrOf(block), bytes: len(block), rwFlags: unix.RWF_DSYNC}
	read := entry{op: opRead, fd: fd, addr: addrOf(block), bytes: len(block)}
	// One after the other: a flush submitted before its write completed may overtake it.
	for _, e := range []entry{write, read, {op: opFsync, fd: fd, rwFlags: fsyncData}} {
		if err := runOne(r, e); err != nil && !contract.NoRoom(err) && !errors.Is(err, io.ErrShortWrite) {
			return fmt.Errorf("operation %d: %w", e.op, err)
		}
	}
	return nil
}

// runOne submits one entry and waits for it.
func runOne(r ring, e entry) error {
	if !r.prepare(e) {
		return errRingStuck
	}
	for {
		if err := enterRetry(r, 1); err != nil {
			return err
		}
		if _, res, ok := r.next(); ok {
			return result(res, e.bytes)
		}
	}
}
