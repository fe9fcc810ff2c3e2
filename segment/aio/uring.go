package aio

import (
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"penstock/internal/uring"
	"penstock/segment/aio/contract"
)

// uringQueue keeps durable writes in flight in a ring. Each is one write with RWF_DSYNC, so no flush can overtake its
// write. The owner, the goroutine that made it, sleeps inside the ring, in io_uring_enter. Wake gets it out through the
// ring: a read of an eventfd is always armed while the owner sleeps. All fields except wake and event belong to the
// owner, which is a ringQueue's: nobody submits more than len(slots).
//
// Memory that the kernel writes or reads (the eventfd's counter, the operations' data) is outside the Go heap, or a
// slot holds it until its completion was seen.
type uringQueue struct {
	disk  *fsDisk
	ring  uring.Ring
	arena *Arena // registered with the ring, or nil
	wake  wakeState

	event   *os.File // eventfd; an os.File keeps a late Wake from writing to a file descriptor that was reused
	counter []byte   // 8 bytes, into which the armed read puts the eventfd's value
	free    func()
	armed   bool // a read of the eventfd is in the ring

	slots    []slot
	idle     []uint32 // numbers of the free slots
	inFlight int
	// broken is set when the ring failed: writes in flight may or may not become durable, and nothing more is
	// submitted.
	broken error
	closed bool
}

// slot is one operation in flight.
type slot struct {
	file *file
	data []byte
	off  int64
	tag  uint64
}

// wakeData is the user data of the armed read. It is no slot number.
const wakeData = 1 << 32

// one is the value that Wake adds to the eventfd.
var one = []byte{1, 0, 0, 0, 0, 0, 0, 0}

// newUringQueue opens the ring on the calling goroutine, which stays locked to its thread until Close: a request dies
// with the thread that submitted it.
func newUringQueue(d *fsDisk, depth int, arena *Arena) (*uringQueue, error) {
	runtime.LockOSThread()
	q := &uringQueue{disk: d, slots: make([]slot, depth), idle: make([]uint32, 0, depth)}
	if err := q.open(depth, arena); err != nil {
		q.release()
		return nil, err
	}
	for i := depth - 1; i >= 0; i-- {
		q.idle = append(q.idle, uint32(i))
	}
	return q, nil
}

func (q *uringQueue) open(depth int, arena *Arena) error {
	var err error
	if q.ring, err = uring.Open(uint32(depth + 1)); err != nil { // one more for the armed read
		return err
	}
	if fds := q.disk.lock.fds(); len(fds) > 0 {
		if err := q.ring.RegisterFiles(fds); err != nil {
			return fmt.Errorf("registering the locked files: %w", err)
		}
	}
	if arena != nil {
		q.register(arena)
	}
	// The eventfd is blocking on purpose: a read of a non-blocking eventfd would complete at once with EAGAIN instead
	// of staying armed.
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	q.event = os.NewFile(uintptr(fd), "eventfd")
	q.counter, q.free = AlignedBytes(len(one))
	return nil
}

// register makes the arena known to the ring. A refusal (outside of root the limit for locked memory is small) costs a
// few microseconds per write and is not an error.
func (q *uringQueue) register(a *Arena) {
	if a.Count() > uring.MaxBufferCount || a.BufBytes() > uring.MaxBufferBytes {
		q.disk.log.Info(
			"the arena is not registered with the ring: too many or too large buffers",
			"count", a.Count(), "bytes", a.BufBytes(),
		)
		return
	}
	iovecs := make([]unix.Iovec, a.Count())
	for i := range iovecs {
		iovecs[i].Base = &a.bufs[i].bytes[0]
		iovecs[i].SetLen(a.bufBytes)
	}
	if err := q.ring.RegisterBuffers(iovecs); err != nil {
		q.disk.log.Info(
			"the arena is not registered with the ring; writes take a little longer (raise the memlock limit)", "err", err,
		)
		return
	}
	q.arena = a
}

// Submit hands the write to the kernel at once. An error means that nothing was started.
func (q *uringQueue) Submit(op Op) error {
	switch {
	case q.closed:
		return ErrClosed
	case q.broken != nil:
		return q.broken
	}
	f := fileOf(op)
	contract.MustBeAligned(op.Data, op.Offset, q.disk.blockBytes)
	if err := f.usable(); err != nil {
		return err
	}
	number := q.idle[len(q.idle)-1]
	e := uring.Entry{
		Op: uring.OpWrite, FD: f.fd, Data: op.Data, Offset: op.Offset, Flags: unix.RWF_DSYNC, UserData: uint64(number),
	}
	if i := q.arena.indexOf(op.Data); i >= 0 {
		e.Op, e.BufIndex = uring.OpWriteFixed, i
	}
	if !q.ring.Prepare(e) {
		// The ring is full of neutralized entries that the kernel has not taken yet: let the kernel take them, once.
		if err := uring.EnterRetry(q.ring, 0); err != nil || !q.ring.Prepare(e) {
			return q.notStarted(err)
		}
	}
	q.slots[number] = slot{file: f, data: op.Data, off: op.Offset, tag: op.Tag}
	err := uring.EnterRetry(q.ring, 0)
	if q.ring.Untaken() > 0 {
		q.ring.Neutralize()
		q.slots[number] = slot{}
		return q.notStarted(err)
	}
	q.idle = q.idle[:len(q.idle)-1]
	q.inFlight++
	return nil
}

// notStarted describes a write that the kernel did not take.
func (q *uringQueue) notStarted(err error) error {
	mustBeOwner(err)
	if err == nil {
		err = uring.ErrStuck
	}
	return fmt.Errorf("aio: a write could not be started, nothing was stored: %w", err)
}

// mustBeOwner panics if err is the kernel's answer to a thread that did not make the ring.
func mustBeOwner(err error) {
	if err == syscall.EEXIST {
		panic("BUG: aio: a queue is used by a goroutine that did not make it")
	}
}

// Wait collects completions; with block it sleeps in the ring. An error means that the ring is broken: writes in flight
// may or may not become durable, and the queue can only be closed.
func (q *uringQueue) Wait(done []Completion, block bool) ([]Completion, error) {
	if q.closed {
		return done, ErrClosed
	}
	if q.broken != nil {
		return done, q.broken
	}
	if block && q.wake.fallAsleep() {
		for n := len(done); len(done) == n && !q.wake.pending(); {
			if err := q.sleep(); err != nil {
				return done, err
			}
			done = q.collect(done)
			if q.broken != nil {
				return done, q.broken
			}
		}
	} else if q.inFlight > 0 {
		if err := q.flushCompletions(); err != nil {
			return done, err
		}
		done = q.collect(done)
	}
	if block {
		q.wake.wakeUp()
	}
	return done, nil
}

// flushCompletions lets the kernel deliver completions that are ready, without waiting.
func (q *uringQueue) flushCompletions() error {
	return q.fail(uring.EnterRetry(q.ring, 0))
}

// sleep waits in the kernel for one completion, of a write or of the armed read.
func (q *uringQueue) sleep() error {
	if !q.armed {
		e := uring.Entry{Op: uring.OpRead, FD: int(q.event.Fd()), Data: q.counter, UserData: wakeData}
		if !q.ring.Prepare(e) {
			return q.fail(uring.ErrStuck)
		}
		q.armed = true
	}
	return q.fail(uring.EnterRetry(q.ring, 1))
}

// fail marks the queue broken.
func (q *uringQueue) fail(err error) error {
	if err == nil {
		return nil
	}
	mustBeOwner(err)
	q.broken = fmt.Errorf(
		"aio: the io_uring of this queue failed, writes in flight count as not stored; restart the node: %w", err)
	return q.broken
}

// collect moves completions from the ring to done. A completed read of the eventfd is not a completion, and it is not
// by itself a wake-up, because it may be stale: wakeState alone decides whether Wait returns.
func (q *uringQueue) collect(done []Completion) []Completion {
	for {
		data, res, ok := q.ring.Next()
		if !ok {
			return done
		}
		switch data {
		case wakeData:
			q.armed = false
			if res < 0 {
				_ = q.fail(fmt.Errorf("waiting for a wake-up: %w", syscall.Errno(-res))) // Wait returns it
			}
			continue
		case uring.IgnoredData:
			continue
		}
		s := q.slots[data]
		q.slots[data] = slot{}
		q.idle = append(q.idle, uint32(data))
		q.inFlight--
		err := result(res, len(s.data))
		if n := int(res); n < len(s.data) && canGoOn(n) { // the rest tells why: see pwriteFull
			err = pwriteFull(s.file.fd, s.data[n:], s.off+int64(n), unix.RWF_DSYNC)
		}
		if err != nil {
			err = s.file.note("a durable write", err)
		}
		done = append(done, Completion{Tag: s.tag, Err: err})
	}
}

func (q *uringQueue) InFlight() int { return q.inFlight }

func (q *uringQueue) Wake() {
	if q.wake.notify() {
		// It cannot block (the counter is far from full) and fails only when the queue was closed meanwhile.
		_, _ = q.event.Write(one)
	}
}

// Close waits for the writes in flight and drops their completions. It must run on the owner's goroutine.
func (q *uringQueue) Close() error {
	if q.closed {
		return nil
	}
	q.wake.retire()
	err := q.broken
	if q.armed && err == nil {
		_, err = q.event.Write(one) // completes the armed read: its memory is freed below
	}
	for err == nil && (q.inFlight > 0 || q.armed) {
		err = q.fail(uring.EnterRetry(q.ring, 1))
		q.collect(nil)
	}
	q.closed = true
	q.release()
	return err
}

func (q *uringQueue) release() {
	if q.ring != nil {
		q.ring.Close()
	}
	if q.event != nil {
		_ = q.event.Close()
	}
	if q.free != nil && !q.armed {
		q.free() // if a read is still armed in a broken ring, leak the page: the kernel may write to it
	}
	runtime.UnlockOSThread()
}

// NewQueue makes a ring, or a pwriteQueue where rings are refused. A ring may be refused here (memory, file
// descriptors) although the probe at OpenDisk succeeded: then the queue works without a ring, and Info says so.
func (d *fsDisk) NewQueue(opts QueueOptions) (Queue, error) {
	depth, err := opts.QueueDepth()
	if err != nil {
		return nil, err
	}
	if d.closed.Load() {
		return nil, ErrClosed
	}
	if d.readOnly {
		return nil, fmt.Errorf("aio: no queue on a disk opened for reading only: %w", syscall.EROFS)
	}
	if !d.uring {
		return newPwriteQueue(depth), nil
	}
	q, err := newRingQueue(d, depth, opts.Arena)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.info.Engine, d.info.Reason = "pwrite", "a ring could not be opened: "+err.Error()
		d.log.Warn("a queue works without io_uring", "err", err)
		return newPwriteQueue(depth), nil
	}
	if opts.Arena != nil {
		d.info.Registered = q.ring.arena != nil
	}
	return q, nil
}
