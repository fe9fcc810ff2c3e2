package relay

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Probe is a connection between two hosts without an engine. It measures what the network alone costs.
type Probe struct {
	client, server Socket
}

// NewProbe connects host from to host to.
func (r *Relay) NewProbe(from, to int) (*Probe, error) {
	within := func(host int) func(func() error) error {
		return func(do func() error) error { return r.Within(host, do) }
	}
	return connect(r.Address(to), within(to), within(from))
}

// NewLoopbackProbe connects this process with itself.
func NewLoopbackProbe() (*Probe, error) {
	here := func(do func() error) error { return do() }
	return connect("127.0.0.1", here, here)
}

// connect makes a probe, whose two ends may lie in different namespaces.
func connect(address string, there, here func(func() error) error) (*Probe, error) {
	var l net.Listener
	err := there(func() (err error) {
		l, err = net.Listen("tcp4", net.JoinHostPort(address, "0"))
		return err
	})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	var client net.Conn
	err = here(func() (err error) {
		client, err = net.DialTimeout("tcp4", l.Addr().String(), silence)
		return err
	})
	if err != nil {
		return nil, err
	}
	server, err := l.Accept()
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	p := &Probe{}
	var errs [2]error
	p.client, errs[0] = Blocking(client)
	p.server, errs[1] = Blocking(server)
	return p, errors.Join(errs[:]...)
}

// Socket is a connected socket that blocks, outside the runtime's poller: no goroutine is woken for what arrives.
type Socket int

// Blocking makes a Socket of a TCP connection, which is closed.
func Blocking(c net.Conn) (Socket, error) {
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, failed := -1, error(nil)
	err = raw.Control(func(own uintptr) { fd, failed = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(err, failed); err != nil {
		return -1, err
	}
	limit := unix.NsecToTimeval(int64(silence))
	return Socket(fd), errors.Join(c.Close(), unix.SetNonblock(fd, false),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit))
}

// silence is how long a read waits before it fails, so that a lost packet does not hang a run.
const silence = 10 * time.Second

// Read makes one read.
func (s Socket) Read(p []byte) (int, error) {
	n, err := uninterrupted(unix.Read, s, p)
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

// Write makes one write.
func (s Socket) Write(p []byte) (int, error) { return uninterrupted(unix.Write, s, p) }

// Close closes the socket.
func (s Socket) Close() error { return unix.Close(int(s)) }

func uninterrupted(do func(int, []byte) (int, error), s Socket, p []byte) (int, error) {
	for {
		n, err := do(int(s), p)
		if err != unix.EINTR { // the runtime's signals interrupt
			return max(n, 0), err
		}
	}
}

// RoundTrip sends messages of that many bytes to and fro, one at a time, and returns the median time.
func (p *Probe) RoundTrip(bytes, count int) (time.Duration, error) {
	echoed := make(chan error, 1)
	go func() {
		echoed <- onThread(func() error { return exchange(bytes, count, p.server.Read, p.server.Write) })
	}()
	took, start := make([]time.Duration, 0, count), time.Time{}
	err := onThread(func() error {
		return exchange(bytes, count,
			func(b []byte) (int, error) {
				start = time.Now()
				return p.client.Write(b)
			},
			func(b []byte) (int, error) {
				n, err := p.client.Read(b)
				took = append(took, time.Since(start))
				return n, err
			})
	})
	if err := errors.Join(err, <-echoed); err != nil {
		return 0, err
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// exchange does one thing with a message and then another, count times.
func exchange(bytes, count int, first, second func([]byte) (int, error)) error {
	b := make([]byte, bytes)
	for range count {
		for _, do := range []func([]byte) (int, error){first, second} {
			if n, err := do(b); err != nil || n != bytes {
				return fmt.Errorf("a message of %d bytes: %d were taken: %w", bytes, n, err)
			}
		}
	}
	return nil
}

// Bulk sends bytes one way for d, and returns how many a second arrived. Afterwards the probe can only be closed.
func (p *Probe) Bulk(d time.Duration) (float64, error) {
	sent := make(chan error, 1)
	go func() {
		b, err := make([]byte, 256<<10), error(nil)
		for end := time.Now().Add(d); err == nil && time.Now().Before(end); {
			_, err = p.client.Write(b)
		}
		sent <- errors.Join(err, unix.Shutdown(int(p.client), unix.SHUT_WR))
	}()
	b, total, start := make([]byte, 1<<20), 0, time.Now()
	for {
		n, err := p.server.Read(b)
		if err == io.EOF {
			return float64(total) / time.Since(start).Seconds(), <-sent
		}
		if err != nil {
			return 0, err
		}
		total += n
	}
}

// Close ends the connection.
func (p *Probe) Close() error { return errors.Join(p.client.Close(), p.server.Close()) }
