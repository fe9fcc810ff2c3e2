//go:build giouring

package uring

import (
	"fmt"
	"syscall"
	"unsafe"

	"github.com/pawelgaczynski/giouring"
	"golang.org/x/sys/unix"
)

// Engine names the implementation behind Open.
const Engine = "giouring"

// Open opens a ring of at least entries submissions for the calling thread.
func Open(entries uint32) (Ring, error) {
	r, err := openGiouringRing(entries)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// giouringRing is a ring over the giouring library, for comparison with kernelRing. It links only with
// -ldflags=-checklinkname=0.
type giouringRing struct {
	lib  *giouring.Ring
	last *giouring.SubmissionQueueEntry // the entry that was prepared last
}

var _ Ring = (*giouringRing)(nil)

func openGiouringRing(entries uint32) (*giouringRing, error) {
	r := &giouringRing{lib: giouring.NewRing()}
	err := r.lib.QueueInit(entries, giouring.SetupSingleIssuer|giouring.SetupDeferTaskrun)
	if err == syscall.EINVAL {
		r.lib = giouring.NewRing()
		err = r.lib.QueueInit(entries, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("io_uring_setup: %w", err)
	}
	return r, nil
}

func (r *giouringRing) RegisterBuffers(iovecs []unix.Iovec) error {
	// The two Iovec types are the same struct under two names.
	same := unsafe.Slice((*syscall.Iovec)(unsafe.Pointer(unsafe.SliceData(iovecs))), len(iovecs))
	_, err := r.lib.RegisterBuffers(same)
	return err
}

// RegisterFiles does not use the library's function of that name, which passes 8-byte numbers where the kernel reads
// 4-byte ones.
func (r *giouringRing) RegisterFiles(fds []int32) error {
	p := unsafe.Pointer(unsafe.SliceData(fds))
	if _, errno := r.lib.Register(r.lib.RingFd(), giouring.RegisterFiles, p, uint32(len(fds))); errno != 0 {
		return errno
	}
	return nil
}

func (r *giouringRing) Prepare(e Entry) bool {
	s := r.lib.GetSQE()
	if s == nil {
		return false
	}
	// The library's Prepare functions do not clear rw_flags and addr3, which the slot's older entry may have set.
	*s = giouring.SubmissionQueueEntry{}
	switch e.Op {
	case OpWriteFixed:
		s.PrepareWriteFixed(e.FD, addrOf(e.Data), uint32(len(e.Data)), uint64(e.Offset), e.BufIndex)
	case OpWrite:
		s.PrepareWrite(e.FD, addrOf(e.Data), uint32(len(e.Data)), uint64(e.Offset))
	case OpRead:
		s.PrepareRead(e.FD, addrOf(e.Data), uint32(len(e.Data)), uint64(e.Offset))
	case OpFsync:
		s.PrepareFsync(e.FD, 0)
	default:
		panic(fmt.Sprintf("BUG: uring: operation %d is not known", e.Op))
	}
	s.OpcodeFlags = e.Flags
	s.SetData64(e.UserData)
	r.last = s
	return true
}

func (r *giouringRing) Neutralize() {
	*r.last = giouring.SubmissionQueueEntry{}
	r.last.PrepareNop()
	r.last.SetData64(IgnoredData)
}

func (r *giouringRing) Untaken() uint32 { return r.lib.SQReady() }

func (r *giouringRing) Enter(minComplete uint32) error {
	var err error
	if minComplete == 0 {
		_, err = r.lib.SubmitAndGetEvents()
	} else {
		_, err = r.lib.SubmitAndWait(minComplete)
	}
	return err
}

// Next asks CQReady first: PeekCQE of an empty queue can make a system call.
func (r *giouringRing) Next() (uint64, int32, bool) {
	if r.lib.CQReady() == 0 {
		return 0, 0, false
	}
	c, err := r.lib.PeekCQE()
	if err != nil || c == nil {
		return 0, 0, false
	}
	data, res := c.GetData64(), c.Res
	r.lib.CQESeen(c)
	return data, res, true
}

func (r *giouringRing) Close() { r.lib.QueueExit() }
