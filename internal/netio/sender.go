// Package netio sends to many sockets with one system call.
//
// A [Sender] is for a server that answers many clients at the same moment, as package nsq does after each commit. It
// sends by io_uring (internal/uring); where the kernel refuses that, [newSender] says why and the server writes to
// each socket by itself.
package netio

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"penstock/internal/uring"
)

// MaxSendCount is how many sends a Sender hands to the kernel at once, at most.
const MaxSendCount = 64

// Sending is bytes for one socket, and the result of sending them.
type Sending struct {
	// FD is a stream socket. It must stay open until Send returns: the kernel reuses the number of a closed socket, and
	// the bytes would go to the new owner of that number.
	FD   int
	Data []byte // not empty; borrowed until Send returns
	N    int    // result: how many bytes the socket took
	Err  error  // result: why the socket did not take all; syscall.EAGAIN: its send buffer is full
}

// Sender writes to many sockets with one system call per MaxSendCount sockets, and waits for none of them.
//
// It saves more than system calls. Each write wakes the reader that sleeps at the other end. If that reader is on the
// same processor, it runs before the next write. The sends of one call all happen before that.
//
// A Sender has no lock: one goroutine at a time may use it, on any thread. Between two calls of Send it keeps only the
// ring. After an error of the ring it stays broken and refuses everything.
type Sender struct {
	ring uring.Ring
	// data keeps the slices whose memory the kernel uses during a call, so that none of that memory is on a goroutine's
	// stack, which may move.
	data   [MaxSendCount][]byte
	broken error // why the ring is no longer used
}

// newSender opens a ring for sends, or says why the kernel refuses it. Without a Sender only speed is lost.
func newSender() (*Sender, error) {
	r, err := uring.OpenUnbound(MaxSendCount) // goroutines move between threads
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

// probe sends one byte to find out whether sends work: kernels before 5.6 have rings that cannot send, and sandboxes
// refuse single operations.
func (s *Sender) probe() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	batch := []Sending{{FD: pair[0], Data: []byte{0}}}
	if err := s.Send(batch); err != nil {
		return err
	}
	return batch[0].Err
}

// Send sends the whole batch, in order, and fills in the results. It allocates nothing. It returns an error only if the
// ring is broken, now or since an earlier call: entries whose Err is that error may have been sent, whole or in part.
func (s *Sender) Send(batch []Sending) error {
	for len(batch) > 0 {
		n := min(len(batch), MaxSendCount)
		s.sendSome(batch[:n])
		batch = batch[n:]
	}
	return s.broken
}

// notSent is the N of an entry whose completion was not seen.
const notSent = -1

// sendSome sends at most MaxSendCount entries, which is as many as the ring holds.
func (s *Sender) sendSome(batch []Sending) {
	for i := range batch {
		b := &batch[i]
		b.N, b.Err = notSent, nil
		s.data[i] = b.Data
		// With MSG_DONTWAIT the kernel completes a send, with or without success, when it takes the entry: nothing
		// stays in flight after the loop below.
		e := uring.Entry{
			Op: uring.OpSend, FD: b.FD, Data: b.Data, Flags: unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL, UserData: uint64(i),
		}
		if s.broken == nil && !s.ring.Prepare(e) {
			s.broken = uring.ErrStuck
		}
	}
	for done := 0; done < len(batch) && s.broken == nil; {
		if err := uring.EnterRetry(s.ring, uint32(len(batch)-done)); err != nil {
			s.broken = fmt.Errorf("netio: the io_uring for sends failed, who was being answered is cut off: %w", err)
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

// collect fills in the results of the entries that the kernel has completed, and returns how many there were.
func (s *Sender) collect(batch []Sending) (n int) {
	for i, res, ok := s.ring.Next(); ok; i, res, ok = s.ring.Next() {
		b := &batch[i]
		if b.N = int(res); res < 0 {
			b.N, b.Err = 0, syscall.Errno(-res)
		}
		n++
	}
	return n
}

// Close frees the ring.
func (s *Sender) Close() { s.ring.Close() }
