package nsq

import (
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"penstock/internal/server/nsq/command"
)

// Moderation is what network cards do with interrupts: while much arrives, they gather for a moment and interrupt once.
//
// A client that finishes its messages one by one writes to its socket for each of them. Each write wakes a thread of
// this server, at the client's cost; the server reads one FIN, delivers one message, and wakes the client for it. So
// when a consumer finishes messages quickly and has many in flight, its reader takes the socket away from the runtime's
// poller and looks at the socket every moderationTime. Nobody is woken meanwhile, and the messages that replace the
// finished ones go out together. A consumer with few messages in flight waits for the next one, and is never moderated.
const (
	moderationTime = 50 * time.Microsecond

	// A reader begins when this many reads in a row each brought a FIN or the like, came within moderationPace of the
	// one before, and left at least moderatedInFlight messages in flight.
	readsBeforeModeration = 32
	moderationPace        = 200 * time.Microsecond
	moderatedInFlight     = 16

	// A reader ends when it found nothing this many times in a row.
	moderationPatience = 8
)

// pace counts the reads of a consumer that came quickly. It belongs to the reader.
type pace struct {
	within int64 // ns: what is quick
	quick  int   // in a row
	last   int64 // Server.now of the last read
}

// read counts a read at now, and says whether the reader should moderate. busy says that the read brought a FIN or the
// like and left enough messages in flight.
func (p *pace) read(now int64, busy bool) bool {
	if !busy || now-p.last > p.within {
		p.quick = 0
	} else {
		p.quick++
	}
	p.last = now
	return p.quick >= readsBeforeModeration
}

// busy says whether so many messages are in flight to the client that it has work while others are gathered. Messages
// that timed out count until the client's RDY count shows that they cannot be in flight.
func (c *conn) busy() bool {
	return min(int64(c.delivered.Load()-c.settled), int64(c.ready)) >= moderatedInFlight
}

// moderate reads and handles commands every moderationTime until the client is not busy any more. It returns errors
// and faults as read and handle do. The reader calls it between two commands.
func (c *conn) moderate() (*command.Fault, error) {
	c.pace.quick = 0
	if !c.out.detach() {
		return nil, nil
	}
	var f *command.Fault
	var err error
	more := func() bool { return f == nil && err == nil && c.parser.Need <= largeInputBytes && !c.stopping.Load() }
	for empty := 0; empty < moderationPatience && more() && c.busy(); {
		nap(moderationTime)
		n, rerr := c.in.readOnce(uintptr(c.out.fd), c.parser.Need)
		switch {
		case rerr == syscall.EAGAIN:
			empty++
			continue
		case rerr != nil:
			err = os.NewSyscallError("read", rerr)
			continue
		case n == 0:
			err = io.EOF
			continue
		}
		empty = 0
		c.lastByte.Store(c.srv.now())
		c.srv.counts.moderated.Add(1)
		f = c.handle()
	}
	if aerr := c.out.attach(); aerr != nil && err == nil {
		err = aerr
	}
	return f, err
}

// nap sleeps for a time that is too short for the runtime's timers, which round up to a millisecond on an idle machine.
func nap(d time.Duration) {
	// By default the kernel may prolong a sleep by 50 µs, to wake several threads at once.
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, unix.PR_SET_TIMERSLACK, 1000, 0)
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil) // interrupted by a signal: a shorter sleep is good, too
}

// detach takes the socket away from the runtime's poller, so that arriving bytes wake nobody. It does so only while
// nobody else writes to the socket, and otherwise returns false. Until attach only fd can be used, with calls that do
// not block. The reader calls it.
//
// The runtime gives up a descriptor only by closing it. So from the first detach on, the output has a descriptor of its
// own, and nc is another one for the same socket that is made when it is needed.
func (o *output) detach() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.busy || o.failed != nil || o.nc == nil {
		return false
	}
	if !o.owns {
		fd, err := unix.FcntlInt(uintptr(o.fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return false
		}
		o.fd, o.owns = fd, true
	}
	_ = o.nc.Close() // the socket stays open through fd
	o.nc, o.raw = nil, nil
	return true
}

// attach gives the socket back to the runtime's poller. The reader calls it.
func (o *output) attach() error {
	nc, raw, err := o.another()
	if err != nil {
		return err
	}
	o.mu.Lock()
	o.nc, o.raw = nc, raw
	o.mu.Unlock()
	return nil
}

// another makes another descriptor for the socket, which the runtime's poller watches. fd must be the output's own.
func (o *output) another() (*net.TCPConn, syscall.RawConn, error) {
	fd, err := unix.FcntlInt(uintptr(o.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("dup", err)
	}
	f := os.NewFile(uintptr(fd), "")
	defer f.Close() // FileConn makes a descriptor of its own
	any, err := net.FileConn(f)
	if err != nil {
		return nil, nil, err
	}
	nc := any.(*net.TCPConn)
	raw, err := nc.SyscallConn()
	if err != nil {
		_ = nc.Close()
		return nil, nil, err
	}
	return nc, raw, nil
}
