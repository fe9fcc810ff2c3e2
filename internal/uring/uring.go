// Package uring is a thin layer over the kernel's io_uring: enough of it for durable writes to files and for sends to
// sockets, and no more.
//
// Its users are segment/aio, which keeps durable writes in flight, and internal/netio, which sends to many sockets with
// one system call. What an operation means, who sleeps, and what an error says about the data is decided there. Here
// are only the two queues that are shared with the kernel.
//
// [Open] makes a ring for one thread. Its implementation is the layer's own, or, under the build tag giouring, one over
// the library of that name. [OpenUnbound] makes a ring that any thread may use, one at a time.
package uring

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Ring is one io_uring: a queue of submissions to the kernel and a queue of completions from it.
//
// There is no lock. One goroutine at a time calls the methods; for a ring of Open it must always run on the thread that
// opened the ring, because the kernel answers EEXIST to every other thread. When that thread ends, the kernel cancels
// what the ring has in flight.
type Ring interface {
	// RegisterBuffers makes the buffers known to the kernel, which pins them; number i is iovecs[i].
	RegisterBuffers(iovecs []unix.Iovec) error
	// RegisterFile makes the kernel hold fd as long as the ring lives.
	RegisterFile(fd int) error
	// Prepare fills the next submission entry; false: the submission queue is full.
	Prepare(e Entry) bool
	// Neutralize turns the entry that was prepared last, and that the kernel has not taken, into
	// one that does nothing and completes with IgnoredData.
	Neutralize()
	// Enter submits what was prepared and waits for at least minComplete completions; it does not wait when
	// the kernel did not take all. It is one system call, made so that the scheduler can hand the processor over.
	Enter(minComplete uint32) error
	// Untaken is the number of prepared entries that the kernel has not taken.
	Untaken() uint32
	// Next takes one completion, if one is there.
	Next() (userData uint64, res int32, ok bool)
	// Close frees the ring; operations in flight must have completed.
	Close()
}

// Entry is one operation for a ring.
type Entry struct {
	Op uint8 // OpRead, OpWrite, ...
	FD int

	// Data is what is written, sent, or read into. From Prepare until the completion was taken the kernel uses this
	// memory by its address: the caller keeps it reachable, and it must not lie on a goroutine's stack, which moves.
	Data []byte

	Offset   int64  // in the file
	Flags    uint32 // of the operation: RWF_*, MSG_*, FsyncData
	BufIndex int    // OpWriteFixed: the registered buffer in which Data lies
	UserData uint64 // comes back with the completion; below IgnoredData
}

// Operation codes of the kernel interface.
const (
	opNop        = 0
	OpFsync      = 3
	OpWriteFixed = 5
	OpRead       = 22
	OpWrite      = 23
	OpSend       = 26
)

// FsyncData is IORING_FSYNC_DATASYNC: OpFsync flushes as fdatasync does.
const FsyncData = 1

// IgnoredData is the user data of neutralized entries. (All ones is taken by liburing's own timeouts.)
const IgnoredData = 2 << 32

// Limits of the kernel for RegisterBuffers.
const (
	MaxBufferCount = 1 << 14
	MaxBufferBytes = 1 << 30
)

// ErrStuck says that the kernel asked to try again for too long.
var ErrStuck = errors.New("the ring did not take the call")

// Limits of the patience with a ring that says "again": about 100 ms.
const (
	MaxEnterTries  = 100
	enterTriesFast = 10 // without a pause
	enterPause     = time.Millisecond
)

// EnterRetry repeats r.Enter while the kernel says to try again, and gives up with ErrStuck. Signals do not count: an
// idle owner sleeps here for days, and each may interrupt it once more.
func EnterRetry(r Ring, minComplete uint32) error {
	for tries := 0; ; {
		err := r.Enter(minComplete)
		switch {
		case err == nil || !again(err):
			return err
		case err == syscall.EINTR:
			continue
		}
		// Short of memory, or of room for completions: let others make progress.
		if tries++; tries == MaxEnterTries {
			return fmt.Errorf("%w %d times: %w", ErrStuck, tries, err)
		}
		if tries > enterTriesFast {
			time.Sleep(enterPause)
		} else {
			runtime.Gosched()
		}
	}
}

// again tells errors of Enter after which the same call may succeed.
func again(err error) bool {
	switch err {
	case syscall.EINTR, syscall.EAGAIN, syscall.EBUSY, syscall.ETIME:
		return true
	}
	return false
}
