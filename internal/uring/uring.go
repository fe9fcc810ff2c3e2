// Package uring is a thin layer over the kernel's io_uring: enough of it for durable writes to files and for sends to
// sockets, and no more.
//
// Its users are segment/aio, which keeps durable writes in flight, and internal/netio, which sends to many sockets with
// one system call. Those packages decide what an operation means, who sleeps, and what an error says about the data.
// This package has only the two queues that are shared with the kernel.
//
// [Open] makes a ring for one thread. The implementation is this package's own or, under the build tag giouring, one
// over the library of that name. [OpenUnbound] makes a ring that any thread may use, one at a time.
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
// There is no lock. One goroutine at a time calls the methods. For a ring of Open that goroutine must always run on the
// thread that opened the ring, because the kernel answers EEXIST to every other thread. When that thread ends, the
// kernel cancels what the ring has in flight.
type Ring interface {
	// RegisterBuffers makes the buffers known to the kernel, which pins them; buffer i is iovecs[i].
	RegisterBuffers(iovecs []unix.Iovec) error
	// RegisterFiles makes the kernel keep these files open as long as the ring lives. It may be called once.
	RegisterFiles(fds []int32) error
	// Prepare fills the next submission entry. It returns false if the submission queue is full.
	Prepare(e Entry) bool
	// Neutralize turns the entry that was prepared last, and that the kernel has not taken, into one that does nothing
	// and completes with IgnoredData.
	Neutralize()
	// Enter submits what was prepared and waits for at least minComplete completions. It does not wait if the kernel
	// did not take every entry. It is one system call, made so that the scheduler can hand the processor to other
	// goroutines.
	Enter(minComplete uint32) error
	// Untaken is the number of prepared entries that the kernel has not taken.
	Untaken() uint32
	// Next takes one completion. ok is false if there is none.
	Next() (userData uint64, res int32, ok bool)
	// Close frees the ring. No operation may be in flight.
	Close()
}

// Entry is one operation for a ring.
type Entry struct {
	Op uint8 // OpRead, OpWrite, ...
	FD int

	// Data is the memory that is written, sent, or read into. From Prepare until the completion is taken, the kernel
	// uses this memory by its address: the caller must keep it reachable, and it must not be on a goroutine's stack,
	// which moves.
	Data []byte

	Offset   int64  // in the file
	Flags    uint32 // flags of the operation: RWF_*, MSG_*, FsyncData
	BufIndex int    // OpWriteFixed: the registered buffer in which Data lies
	UserData uint64 // the completion returns it; must be below IgnoredData
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

// IgnoredData is the user data of neutralized entries. (liburing's own timeouts use all ones.)
const IgnoredData = 2 << 32

// Limits of the kernel for RegisterBuffers.
const (
	MaxBufferCount = 1 << 14
	MaxBufferBytes = 1 << 30
)

// ErrStuck says that the kernel answered "try again" for too long.
var ErrStuck = errors.New("the ring did not take the call")

// Limits for a ring that answers "try again": about 100 ms.
const (
	MaxEnterTries  = 100
	enterTriesFast = 10 // without a pause
	enterPause     = time.Millisecond
)

// EnterRetry repeats r.Enter while the kernel answers "try again", and gives up with ErrStuck. Interruptions by signals
// do not count as tries: an idle owner sleeps here for days, and each signal may interrupt the call once.
func EnterRetry(r Ring, minComplete uint32) error {
	for tries := 0; ; {
		err := r.Enter(minComplete)
		switch {
		case err == nil || !again(err):
			return err
		case err == syscall.EINTR:
			continue
		}
		// The kernel is short of memory, or of room for completions: let others make progress.
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

// again says whether the same call of Enter may succeed after err.
func again(err error) bool {
	switch err {
	case syscall.EINTR, syscall.EAGAIN, syscall.EBUSY, syscall.ETIME:
		return true
	}
	return false
}
