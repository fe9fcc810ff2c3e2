//go:build giouring

package aio

import (
	"fmt"
	"syscall"
	"unsafe"

	"github.com/pawelgaczynski/giouring"
	"golang.org/x/sys/unix"
)

// ringEngine is the name of the ring's implementation in Info.
const ringEngine = "giouring"

// openRing opens a ring for the calling thread.
func openRing(entries uint32) (ring, error) { return openGiouringRing(entries) }

// giouringRing is a ring over the giouring library, for comparison with kernelRing. It links only
// with -ldflags=-checklinkname=0.
type giouringRing struct {
	lib  *giouring.Ring
	last *giouring.SubmissionQueueEntry // prepared last
}

var _ ring = (*giouringRing)(nil)

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

func (r *giouringRing) registerBuffers(iovecs []unix.Iovec) error {
	// The two Iovec types are the same struct under two names.
	same := unsafe.Slice((*syscall.Iovec)(unsafe.Pointer(unsafe.SliceData(iovecs))), len(iovecs))
	_, err := r.lib.RegisterBuffers(same)
	return err
}

// registerFile does not use the library's RegisterFiles, which passes 8-byte numbers where the kernel reads 4-byte ones.
func (r *giouringRing) registerFile(fd int) error {
	fds := [1]int32{int32(fd)}
	if _, errno := r.lib.Register(r.lib.RingFd(), giouring.RegisterFiles, unsafe.Pointer(&fds), 1); errno != 0 {
		return errno
	}
	return nil
}

func (r *giouringRing) prepare(e entry) bool {
	s := r.lib.GetSQE()
	if s == nil {
		return false
	}
	// The library's Prepare functions leave rw_flags and addr3 of the slot's older entry in place.
	*s = giouring.SubmissionQueueEntry{}
	switch e.op {
	case opWriteFixed:
		s.PrepareWriteFixed(e.fd, e.addr, uint32(e.bytes), uint64(e.off), e.bufIndex)
	case opWrite:
		s.PrepareWrite(e.fd, e.addr, uint32(e.bytes), uint64(e.off))
	case opRead:
		s.PrepareRead(e.fd, e.addr, uint32(e.bytes), uint64(e.off))
	case opFsync:
		s.PrepareFsync(e.fd, 0)
	default:
		panic(fmt.Sprintf("BUG: aio: operation %d is not known", e.op))
	}
	s.OpcodeFlags = e.rwFlags
	s.SetData64(e.userData)
	r.last = s
	return true
}

func (r *giouringRing) neutralize() {
	*r.last = giouring.SubmissionQueueEntry{}
	r.last.PrepareNop()
	r.last.SetData64(ignoredData)
}

func (r *giouringRing) untaken() uint32 { return r.lib.SQReady() }

func (r *giouringRing) enter(minComplete uint32) error {
	var err error
	if minComplete == 0 {
		_, err = r.lib.SubmitAndGetEvents()
	} else {
		_, err = r.lib.SubmitAndWait(minComplete)
	}
	return err
}

// next asks CQReady first: PeekCQE of an empty queue can make a system call.
func (r *giouringRing) next() (uint64, int32, bool) {
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

func (r *giouringRing) close() { r.lib.QueueExit() }
