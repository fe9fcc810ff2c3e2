package load

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// crowdCount is the number of connections from which on one goroutine serves them all. A goroutine per connection
	// costs the generator a park, a wake-up and a futile read for each answer. That is half as much processor time
	// again, and on a shared machine the node lacks it.
	crowdCount = 8
	// crowdWindowBytes bounds the bytes in flight on such a connection, so that a write always finds room in the
	// socket's buffer.
	crowdWindowBytes = 16 << 10
	// crowdPoll is the longest time between two checks whether the run was ended.
	crowdPoll = 100 * time.Millisecond
)

// crowded reports whether one goroutine should serve all connections of a closed loop, on their bare sockets.
func (c *Config) crowded() bool {
	messageBytes := c.SizeBytes + len(headersJSON(c.Headers))
	return c.TLS == nil && c.Connections >= crowdCount && c.InFlight*max(c.Batch, 1)*messageBytes <= crowdWindowBytes
}

// socket is a connection outside the runtime's poller. Read returns 0 and no error if nothing has arrived yet.
type socket int

// detach removes a connection from the runtime's poller, which would otherwise also wake up for each answer.
func detach(conn net.Conn) (socket, error) {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	var failed error
	if err := raw.Control(func(own uintptr) { fd, failed = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) }); err != nil ||
		failed != nil {
		return -1, errors.Join(err, failed)
	}
	return socket(fd), conn.Close() // the duplicate keeps the connection open, and non-blocking
}

func (s socket) Read(p []byte) (int, error) {
	n, err := syscall.Read(int(s), p)
	switch {
	case err == syscall.EAGAIN || err == syscall.EINTR:
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("reading from the node: %w", err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

func (s socket) Write(p []byte) (int, error) {
	for done := 0; ; {
		n, err := syscall.Write(int(s), p[done:])
		switch {
		case err == syscall.EAGAIN || err == syscall.EINTR:
			fds := []unix.PollFd{{Fd: int32(s), Events: unix.POLLOUT}}
			if _, err := unix.Poll(fds, int(crowdPoll.Milliseconds())); err != nil && err != unix.EINTR {
				return done, err
			}
			continue
		case err != nil:
			return done, fmt.Errorf("writing to the node: %w", err)
		}
		if done += n; done == len(p) {
			return done, nil
		}
	}
}

// crowd runs a closed loop over many connections in one goroutine.
type crowd struct {
	r          *run
	epoll      int
	publishers []*publisher
	sockets    []socket
	left       int // number of publishers that are not idle
}

// publishCrowd prepares a crowd over all connections of the run.
func (r *run) publishCrowd(frames []*frameReader) (*crowd, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	c := &crowd{r: r, epoll: epoll}
	for i, conn := range r.conns {
		s, err := detach(conn)
		if err == nil {
			c.sockets = append(c.sockets, s)
			frames[i].conn = s
			c.publishers = append(c.publishers, newPublisher(r, s, frames[i], r.meters[i]))
			err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, int(s), &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)})
		}
		if err != nil {
			c.close()
			return nil, err
		}
	}
	return c, nil
}

func (c *crowd) close() {
	for _, s := range c.sockets {
		_ = unix.Close(int(s))
	}
	_ = unix.Close(c.epoll)
}

// loop serves the connections until time or messages run out and the last answers have arrived.
func (c *crowd) loop() error {
	defer c.close()
	for _, p := range c.publishers {
		c.left++
		c.settle(p, p.refill())
	}
	events := make([]unix.EpollEvent, len(c.publishers))
	for c.left > 0 {
		n, err := unix.EpollWait(c.epoll, events, int(crowdPoll.Milliseconds()))
		switch {
		case c.r.ended.Load():
			return net.ErrClosed
		case err == unix.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("waiting for answers: %w", err)
		}
		for i := range n {
			p := c.publishers[events[i].Fd]
			if err = p.receive(); err == nil {
				err = p.refill()
			}
			c.settle(p, err)
		}
	}
	return nil
}

// settle marks a publisher as idle when it has its last answer or has failed. A failure does not affect the others.
func (c *crowd) settle(p *publisher, err error) {
	if err != nil {
		c.r.faults.add(err)
		_ = unix.EpollCtl(c.epoll, unix.EPOLL_CTL_DEL, int(p.conn.(socket)), nil)
		p.stopped, p.outstanding = true, 0
	}
	if p.outstanding == 0 && !p.idle {
		p.idle = true
		c.left--
	}
}

// goCrowd runs the loop in a goroutine, beside await.
func (r *run) goCrowd(wg *sync.WaitGroup, frames []*frameReader) {
	wg.Go(func() {
		c, err := r.publishCrowd(frames)
		if err == nil {
			err = c.loop()
		}
		if err != nil {
			r.faults.add(err)
		}
	})
}
