package nsq

import (
	"io"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"penstock/internal/lock"
	"penstock/internal/server/nsq/command"
)

// publisherPoll reads the sockets of many publishers on one goroutine.
//
// A crowd of clients that each wait for the answer to one PUB costs a server most of its time in being woken: for each
// PUB the runtime's poller wakes a thread, which runs a reader, which reads once for the PUB and once to find that
// there is no more. So while a crowd publishes, its readers give their sockets to this poll. It reads whatever has
// arrived, at most every moderationTime while several come at a time (see moderate.go), and the PUBs that it finds
// together go into one group of the commit log.
//
// The poll's goroutine never waits for anything but input. It executes only PUBs that need nothing but room in an inbox
// (conn.executeLight). Whatever else arrives it leaves unread, and gives the connection back to its reader. A
// connection also goes back when the crowd is gone, so that a lone PUB is read, written and answered by its own reader.
//
// While a connection is here, its reader sleeps in poll.serve and the fields of the reader belong to the poll's
// goroutine. mu guards members and the registration of their descriptors; its holder takes no other lock. Any goroutine
// may call recall. A crash leaves nothing of the poll: a PUB without an answer may be stored or not, as with a reader.
type publisherPoll struct {
	srv   *Server
	epoll int // -1: the kernel gave none, and nobody joins
	event int // an eventfd that ends run

	mu      lock.Mutex[lock.NSQPoll]
	members map[int32]*conn // by descriptor
	closed  bool

	size atomic.Int64 // of members, for metrics
}

const (
	// A reader gives its socket away once this many more PUBs were answered together with those of at least crowdSize
	// clients than with fewer.
	answersBeforePoll = 32
	crowdSize         = 8

	// A connection goes back to its reader after this many reads in a row in which it was the only one with input.
	lonelyReads = 32

	maxPolled = 128 // sockets that are read in one round
)

// crowding finds out whether a publisher is one of a crowd. Whoever answers the client calls answered, one goroutine at
// a time; the reader calls the other methods.
type crowding struct{ score atomic.Int32 }

// answered notes that the client was answered together with others, itself included in clients.
func (p *crowding) answered(clients int) {
	score := p.score.Load()
	if clients >= crowdSize {
		p.score.Store(min(score+1, answersBeforePoll))
	} else {
		p.score.Store(max(score-1, 0))
	}
}

func (p *crowding) isOne() bool { return p.score.Load() >= answersBeforePoll }

func (p *crowding) reset() { p.score.Store(0) }

// naps says how long the poll should look for input without sleeping in the kernel. It belongs to the poll's goroutine.
// A round that finds several inputs is followed by at most moderationPatience naps. One that finds a single input earns
// none, so nobody who publishes alone waits for a nap to end more than a few times.
type naps struct{ left int }

// round counts a round that found n inputs, and says whether the poll should nap before the next one.
func (p *naps) round(n int) bool {
	switch {
	case n > 1:
		p.left = moderationPatience
	case n == 0 && p.left > 0:
		p.left--
		return true
	}
	return false
}

// open makes the poll ready for run. Without an epoll instance, connections are read by their own goroutines for ever.
func (p *publisherPoll) open(s *Server) {
	p.srv, p.epoll, p.event = s, -1, -1
	p.members = make(map[int32]*conn)
	var err error
	if p.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		s.opts.Logger.Info("publishers are read one by one", "why", os.NewSyscallError("eventfd", err))
		return
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		e := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(p.event)}
		err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, p.event, &e)
	}
	if err != nil {
		s.opts.Logger.Info("publishers are read one by one", "why", os.NewSyscallError("epoll", err))
		return
	}
	p.epoll = epoll
}

// serve gives the connection to the poll, and returns when the poll has given it back. It returns at once if the socket
// cannot be given away now. err is what reading the socket returned, io.EOF if it has ended. The reader calls it
// between two reads.
func (p *publisherPoll) serve(c *conn) error {
	c.crowding.reset()
	if !c.out.detach() {
		return nil
	}
	c.pollErr = nil
	if p.join(c) {
		if c.stopping.Load() { // stop may have looked for the connection before it joined
			p.recall(c)
		}
		<-c.returned
	}
	err := c.pollErr
	if aerr := c.out.attach(); aerr != nil && err == nil {
		err = aerr
	}
	if put := c.unsent; put != nil {
		c.unsent = nil
		c.send(put, false)
	}
	c.waitRoom()
	return err
}

func (p *publisherPoll) join(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.epoll < 0 {
		return false
	}
	fd := c.out.fd
	e := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
	if unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, &e) != nil { // a limit of the kernel, or too little memory
		return false
	}
	p.members[int32(fd)] = c
	c.pollFD = int32(fd)
	p.size.Add(1)
	return true
}

// recall makes the poll give the connection back, if it is there.
func (p *publisherPoll) recall(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if fd := c.pollFD; fd > 0 {
		// The socket has room for output, so the poll finds it at once, and then sees that the connection stops.
		e := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT, Fd: fd}
		_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_MOD, int(fd), &e)
	}
}

// run is the poll's goroutine.
func (p *publisherPoll) run() {
	var events [maxPolled]unix.EpollEvent
	var n naps
	timeout := 0
	for p.epoll >= 0 {
		found, err := unix.EpollWait(p.epoll, events[:], timeout)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			p.srv.opts.Logger.Error("publishers are read one by one from here on", "why", os.NewSyscallError("epoll_wait", err))
			p.close()
			return
		}
		timeout = 0
		for _, e := range events[:found] {
			if int(e.Fd) == p.event {
				return
			}
			p.read(e.Fd, found == 1)
		}
		if found > 0 {
			n.round(found)
		} else if n.round(0) {
			nap(moderationTime)
		} else {
			timeout = -1
		}
	}
}

// read reads once from a member's socket and executes what came.
func (p *publisherPoll) read(fd int32, only bool) {
	p.mu.Lock()
	c := p.members[fd]
	p.mu.Unlock()
	if c == nil || p.readOnce(c, only) {
		return
	}
	p.giveBack(c)
}

// readOnce says whether the connection stays here.
func (p *publisherPoll) readOnce(c *conn, only bool) bool {
	n, err := c.in.readOnce(uintptr(c.out.fd), c.parser.Need)
	switch {
	case c.stopping.Load():
		return false
	case err == syscall.EAGAIN:
		return true
	case err != nil:
		c.pollErr = os.NewSyscallError("read", err)
		return false
	case n == 0:
		c.pollErr = io.EOF
		return false
	}
	c.lastByte.Store(p.srv.now())
	p.srv.counts.moderated.Add(1)
	if c.lonely++; !only {
		c.lonely = 0
	}
	return c.handleLight() && c.lonely < lonelyReads
}

// giveBack wakes the reader.
func (p *publisherPoll) giveBack(c *conn) {
	p.mu.Lock()
	_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, int(c.pollFD), nil) // cannot fail: it is registered
	delete(p.members, c.pollFD)
	c.pollFD = 0
	p.size.Add(-1)
	p.mu.Unlock()
	c.lonely = 0
	c.returned <- struct{}{}
}

// stop ends run. All connections have ended.
func (p *publisherPoll) stop() {
	_, _ = unix.Write(p.event, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // of a bad descriptor: run has returned
}

// close gives all connections back and accepts no more. It runs on the poll's goroutine, or after that has ended.
func (p *publisherPoll) close() {
	p.mu.Lock()
	p.closed = true
	all := make([]*conn, 0, len(p.members))
	for _, c := range p.members {
		all = append(all, c)
	}
	p.mu.Unlock()
	for _, c := range all {
		p.giveBack(c)
	}
}

// handleLight executes the commands that were read, if they are light, and submits the run. It returns false if the
// reader must go on, with what is still unread, with c.unsent, or because the connection must wait.
func (c *conn) handleLight() bool {
	var cmd command.Command
	light, consumed := true, 0
	for {
		n, f := c.parser.Next(c.in.unread(), &cmd)
		if n == 0 && f == nil {
			break
		}
		if light = f == nil && c.executeLight(&cmd, n); !light {
			break
		}
		c.in.r += n
		consumed += n
	}
	light = c.submitLight() && light
	c.handled(consumed)
	return light && c.parser.Need <= largeInputBytes && !c.full()
}

// executeLight executes a PUB to the topic of the PUB before it, if that cannot wait for anything. Otherwise it returns
// false and has done nothing.
func (c *conn) executeLight(cmd *command.Command, size int) bool {
	t := c.last
	if cmd.Verb != command.VerbPub || cmd.Addressed || t == nil || t.name != string(cmd.Topic) ||
		!c.stillGranted(cmd.Topic) {
		return false
	}
	if c.run == nil {
		c.begin(cmd, t)
	} else if !c.run.takes(cmd, 0) {
		return false
	}
	c.run.add(cmd, size)
	return true
}

// submitLight is submit without waiting. It returns false if the engine has no room, or refused the run: then the
// reader submits it again.
func (c *conn) submitLight() bool {
	p := c.run
	if p == nil {
		return true
	}
	c.run = nil
	c.owe(p)
	p.put.Alone, p.put.NoWait = false, true
	if p.send(p.to.topic) != nil { // otherwise p may be answered and freed by now
		p.put.NoWait = false
		c.unsent = p
		return false
	}
	return true
}

// free closes the descriptors. run has ended.
func (p *publisherPoll) free() {
	for _, fd := range []int{p.epoll, p.event} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}
