package uring

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file is the kernel's io_uring interface (include/uapi/linux/io_uring.h), as far as the layer uses it. A test
// checks sizes and offsets against the kernel's.

// sqe is struct io_uring_sqe.
type sqe struct {
	opcode      uint8
	flags       uint8
	ioprio      uint16
	fd          int32
	off         uint64
	addr        uint64
	len         uint32
	rwFlags     uint32 // also fsync_flags
	userData    uint64
	bufIndex    uint16
	personality uint16
	spliceFd    int32
	addr3       uint64
	pad         uint64
}

// cqe is struct io_uring_cqe.
type cqe struct {
	userData uint64
	res      int32
	flags    uint32
}

// sqOffsets is struct io_sqring_offsets.
type sqOffsets struct {
	head, tail, ringMask, ringEntries, flags, dropped, array, resv1 uint32
	userAddr                                                        uint64
}

// cqOffsets is struct io_cqring_offsets.
type cqOffsets struct {
	head, tail, ringMask, ringEntries, overflow, cqes, flags, resv1 uint32
	userAddr                                                        uint64
}

// params is struct io_uring_params.
type params struct {
	sqEntries, cqEntries, flags, sqThreadCPU, sqThreadIdle, features, wqFd uint32
	resv                                                                   [3]uint32
	sqOff                                                                  sqOffsets
	cqOff                                                                  cqOffsets
}

const (
	setupSingleIssuer = 1 << 12 // IORING_SETUP_SINGLE_ISSUER, since 6.0
	setupDeferTaskrun = 1 << 13 // IORING_SETUP_DEFER_TASKRUN, since 6.1

	featSingleMmap = 1 << 0 // IORING_FEAT_SINGLE_MMAP, since 5.4
	featNodrop     = 1 << 1 // IORING_FEAT_NODROP, since 5.5

	enterGetEvents = 1 << 0 // IORING_ENTER_GETEVENTS

	registerBuffersOp = 0
	registerFilesOp   = 2
	offRings          = 0          // IORING_OFF_SQ_RING; with single mmap both rings
	offSqes           = 0x10000000 // IORING_OFF_SQES
)

// kernelRing is an io_uring. This process writes sqTail and cqHead, the kernel writes sqHead and cqTail. Each side
// publishes entries by an atomic store of its index:
//
//	sqHead <= sqTail <= sqHead + len(sqes)    [sqHead, sqTail) is submitted and not taken
//	cqHead <= cqTail <= cqHead + len(cqes)    [cqHead, cqTail) is completed and not seen
type kernelRing struct {
	fd    int
	rings []byte // both queues
	sqMem []byte // the submission entries

	sqHead, sqTail *uint32
	cqHead, cqTail *uint32
	sqMask, cqMask uint32
	sqes           []sqe
	cqes           []cqe
}

var _ Ring = (*kernelRing)(nil)

// OpenUnbound opens a ring of at least entries submissions and twice as many completions, for any thread. It uses
// kernelRing under either build tag.
func OpenUnbound(entries uint32) (Ring, error) {
	r, err := newKernelRing(entries, 0)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// openKernelRing opens a ring of at least entries submissions and twice as many completions. It prefers a ring for one
// thread, to which the kernel delivers completions when that thread asks. On kernels before 6.1 it opens an unbound
// ring.
func openKernelRing(entries uint32) (*kernelRing, error) {
	r, err := newKernelRing(entries, setupSingleIssuer|setupDeferTaskrun)
	if errors.Is(err, syscall.EINVAL) {
		r, err = newKernelRing(entries, 0)
	}
	return r, err
}

func newKernelRing(entries, flags uint32) (*kernelRing, error) {
	p := params{flags: flags}
	fd, err := setup(entries, &p)
	if err != nil {
		return nil, fmt.Errorf("io_uring_setup: %w", err)
	}
	r := &kernelRing{fd: fd}
	if p.features&(featSingleMmap|featNodrop) != featSingleMmap|featNodrop {
		r.Close()
		return nil, errors.New("the kernel's io_uring is too old (before 5.5)")
	}
	if err := r.mmap(&p); err != nil {
		r.Close()
		return nil, fmt.Errorf("mapping the rings: %w", err)
	}
	return r, nil
}

func setup(entries uint32, p *params) (int, error) {
	fd, _, errno := syscall.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(p)), 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

func (r *kernelRing) mmap(p *params) error {
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED | unix.MAP_POPULATE
	sqBytes := int(p.sqOff.array) + int(p.sqEntries)*4
	cqBytes := int(p.cqOff.cqes) + int(p.cqEntries)*int(unsafe.Sizeof(cqe{}))
	var err error
	if r.rings, err = unix.Mmap(r.fd, offRings, max(sqBytes, cqBytes), prot, flags); err != nil {
		return err
	}
	if r.sqMem, err = unix.Mmap(r.fd, offSqes, int(p.sqEntries)*int(unsafe.Sizeof(sqe{})), prot, flags); err != nil {
		return err
	}
	word := func(off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.rings[off])) }
	r.sqHead, r.sqTail, r.sqMask = word(p.sqOff.head), word(p.sqOff.tail), *word(p.sqOff.ringMask)
	r.cqHead, r.cqTail, r.cqMask = word(p.cqOff.head), word(p.cqOff.tail), *word(p.cqOff.ringMask)
	r.sqes = unsafe.Slice((*sqe)(unsafe.Pointer(&r.sqMem[0])), p.sqEntries)
	r.cqes = unsafe.Slice((*cqe)(unsafe.Pointer(&r.rings[p.cqOff.cqes])), p.cqEntries)
	// Entry i of the queue is always submission entry i, so the indirection array is filled once.
	array := unsafe.Slice(word(p.sqOff.array), p.sqEntries)
	for i := range array {
		array[i] = uint32(i)
	}
	return nil
}

func (r *kernelRing) register(op uintptr, arg unsafe.Pointer, count int) error {
	_, _, errno := syscall.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.fd), op, uintptr(arg), uintptr(count), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func (r *kernelRing) RegisterBuffers(iovecs []unix.Iovec) error {
	return r.register(registerBuffersOp, unsafe.Pointer(unsafe.SliceData(iovecs)), len(iovecs))
}

func (r *kernelRing) RegisterFiles(fds []int32) error {
	return r.register(registerFilesOp, unsafe.Pointer(unsafe.SliceData(fds)), len(fds))
}

func (r *kernelRing) Prepare(e Entry) bool {
	tail := *r.sqTail // only the user of the ring writes it
	if r.Untaken() == uint32(len(r.sqes)) {
		return false
	}
	// Write the whole entry: the slot still holds an older one.
	r.sqes[tail&r.sqMask] = sqe{
		opcode: e.Op, fd: int32(e.FD), off: uint64(e.Offset), addr: uint64(addrOf(e.Data)), len: uint32(len(e.Data)),
		rwFlags: e.Flags, userData: e.UserData, bufIndex: uint16(e.BufIndex),
	}
	atomic.StoreUint32(r.sqTail, tail+1)
	return true
}

// addrOf returns the address of the first byte of p, for the kernel; nil for an operation without data.
func addrOf(p []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(p))) }

func (r *kernelRing) Neutralize() {
	r.sqes[(*r.sqTail-1)&r.sqMask] = sqe{opcode: opNop, fd: -1, userData: IgnoredData}
}

func (r *kernelRing) Untaken() uint32 { return *r.sqTail - atomic.LoadUint32(r.sqHead) }

func (r *kernelRing) Enter(minComplete uint32) error {
	// GETEVENTS always: with DEFER_TASKRUN the kernel delivers completions only to a thread that asks for them.
	_, _, errno := syscall.Syscall6(
		unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(r.Untaken()), uintptr(minComplete), enterGetEvents, 0, 0,
	)
	if errno != 0 {
		return errno
	}
	return nil
}

func (r *kernelRing) Next() (uint64, int32, bool) {
	head := *r.cqHead // only the user of the ring writes it
	if head == atomic.LoadUint32(r.cqTail) {
		return 0, 0, false
	}
	c := r.cqes[head&r.cqMask]
	atomic.StoreUint32(r.cqHead, head+1)
	return c.userData, c.res, true
}

func (r *kernelRing) Close() {
	// Unmapping what mmap returned cannot fail, and an error of closing the ring could not be acted on.
	if r.rings != nil {
		_ = unix.Munmap(r.rings)
	}
	if r.sqMem != nil {
		_ = unix.Munmap(r.sqMem)
	}
	_ = unix.Close(r.fd)
	r.rings, r.sqMem, r.fd = nil, nil, -1
}
