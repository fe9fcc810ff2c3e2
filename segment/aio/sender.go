package aio

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// MaxSendCount is the most sends that a Sender hands to the kernel at once.
const MaxSendCount = 64

// Sending is bytes for one socket, and what became of them.
type Sending struct {
	FD   int    // of a stream socket; it must stay open until Send returns, or the bytes may go to whoever gets the number next
	Data []byte // not empty; borrowed until Send returns
	N    int    // result: bytes that the socket took
	Err  error  // result: why it did not take them; syscall.EAGAIN: it has no room
}

// Sender writes to many sockets with one system call per MaxSendCount of them, and never waits for any. One goroutine at a time may use it.
//
// It saves more than calls: each write wakes a reader of the socket that sleeps, and one on the same processor would run before the next write.
type Sender struct {
	ring   ring
	data   [MaxSendCount][]byte // what the kernel has addresses of; so none of it lies on a stack, which moves
	broken error
}

// NewSender opens a ring for sends. Where the kernel refuses that it returns why; nothing is lost without it but speed.
func NewSender() (*Sender, error) {
	r, err := newKernelRing(MaxSendCount, 0) // not bound to a thread: goroutines move
	if err != nil {
		return nil, err
	}
	s := &Sender{ring: r}
	if err := s.probe(); err != nil {
		s.Close()
		return nil, fmt.Errorf("sending by io_uring is not usable here: %w", err)
	}
	return s, nil
}

// probe sends one byte: kernels before 5.6 have rings that cannot, and sandboxes refuse operations one by one.
func (s *Sender) probe() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	batch := []Sending{{FD: pair[0], Data: one[:1]}}
	if err := s.Send(batch); err != nil {
		return err
	}
	return batch[0].Err
}

// Send sends all of the batch, in order, and fills in the results. An error says that the ring is broken and takes no more: entries with that
// Err may have been sent, or in part. It allocates nothing.
func (s *Sender) Send(batch []Sending) error {
	for len(batch) > 0 {
		n := min(len(batch), MaxSendCount)
		s.sendSome(batch[:n])
		batch = batch[n:]
	}
	return s.broken
}

// notSent is N of an entry whose completion was not seen.
const notSent = -1

// sendSome sends what fits into the ring.
func (s *Sender) sendSome(batch []Sending) {
	for i := range batch {
		b := &batch[i]
		b.N, b.Err = notSent, nil
		// With MSG_DONTWAIT the kernel completes a send when it takes the entry, one way or the other: nothing stays in flight.
		s.data[i] = b.Data
		e := entry{op: opSend, fd: b.FD, addr: addrOf(b.Data), bytes: len(b.Data), rwFlags: unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL, userData: uint64(i)}
		if s.broken == nil && !s.ring.prepare(e) {
			s.broken = errRingStuck
		}
	}
	for done := 0; done < len(batch) && s.broken == nil; {
		if err := enterRetry(s.ring, uint32(len(batch)-done)); err != nil {
			s.broken = fmt.Errorf("aio: the io_uring for sends failed, who was being answered is cut off: %w", err)
		}
		done += s.collect(batch)
	}
	clear(s.data[:])
	for i := range batch {
		if b := &batch[i]; b.N == notSent {
			b.N, b.Err = 0, s.broken
		}
	}
}

// collect takes what the kernel has completed.
func (s *Sender) collect(batch []Sending) (n int) {
	for data, res, ok := s.ring.next(); ok; data, res, ok = s.ring.next() {
		b := &batch[data]
		if b.N = int(res); res < 0 {
			b.N, b.Err = 0, syscall.Errno(-res)
		}
		n++
	}
	return n
}

// Close frees the ring.
func (s *Sender) Close() { s.ring.close() }
