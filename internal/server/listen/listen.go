// Package listen holds the code that the TCP and HTTP listeners of nsqd and nsqlookupd share.
package listen

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"penstock/internal/descriptors"
)

// Off is the address that disables a service.
const Off = "off"

// Failure is an error of listening, with the name of the service and its address.
type Failure struct {
	What, Address string
	err           error
}

func (f *Failure) Error() string {
	return fmt.Sprintf("nsq: cannot listen for %s on %s: %v", f.What, f.Address, f.err)
}

func (f *Failure) Unwrap() error { return f.err }

// Error makes a Failure.
func Error(what, address string, err error) error { return &Failure{what, address, err} }

// TCP listens on a TCP address. what is the service that an error names.
func TCP(what, address string) (net.Listener, error) {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, Error(what, address, err)
	}
	return ln, nil
}

// busyPause is the pause between two attempts to listen on an address that is in use.
const busyPause = 50 * time.Millisecond

// Patiently listens on a TCP address. While the address is in use, it tries again for at most wait.
func Patiently(address string, wait time.Duration) (net.Listener, error) {
	for began := time.Now(); ; time.Sleep(busyPause) {
		ln, err := net.Listen("tcp", address)
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) || time.Since(began) >= wait {
			return ln, err
		}
	}
}

// Addr returns the address of a listener; nil: there is none.
func Addr(ln net.Listener) net.Addr {
	if ln == nil {
		return nil
	}
	return ln.Addr()
}

// Port returns the port of a TCP address, or 0 for another kind of address.
func Port(a net.Addr) int {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.Port
	}
	return 0
}

// maxAcceptPause bounds the pause between attempts while the process has no file descriptors left.
const maxAcceptPause = time.Second

// Accept calls welcome with each new connection until ln is closed, and then returns nil. Running out of memory or file
// descriptors, apart from those that are reserved for the node's own files, does not end it: Accept calls failed with
// the error, waits for retryAfter, and tries again. It returns nil if done is closed during that wait; done may be nil.
// Any other error is returned.
func Accept(
	ln *net.TCPListener, done <-chan struct{},
	welcome func(*net.TCPConn), failed func(err error, retryAfter time.Duration),
) error {
	pause := time.Duration(0)
	for {
		nc, err := ln.AcceptTCP()
		if err == nil && !descriptors.Spare(nc) {
			_ = nc.Close()
			err = descriptors.ErrReserve
		}
		switch {
		case err == nil:
			pause = 0
			welcome(nc)
		case errors.Is(err, net.ErrClosed):
			return nil
		case transient(err), errors.Is(err, descriptors.ErrReserve):
			pause = min(max(2*pause, 5*time.Millisecond), maxAcceptPause)
			failed(err, pause)
			select {
			case <-time.After(pause):
			case <-done:
				return nil
			}
		default:
			return err
		}
	}
}

// transient reports whether accepting may succeed on the next attempt after this error.
func transient(err error) bool {
	for _, e := range []syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, syscall.EINTR,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Bound limits ln to maxOpen open connections, and to what leaves file descriptors for the node's own files. A
// connection beyond the limit is closed at once. Limit changes the limit.
func Bound(ln net.Listener, maxOpen int) net.Listener {
	l := &boundedListener{Listener: descriptors.Guard(ln)}
	l.maxOpen.Store(int64(maxOpen))
	return l
}

// Limit changes the limit of a listener from Bound; connections that are open stay. nil has no limit.
func Limit(ln net.Listener, maxOpen int) {
	if l, ok := ln.(*boundedListener); ok {
		l.maxOpen.Store(int64(maxOpen))
	}
}

// Open returns how many connections of a listener from Bound are open; 0 for nil.
func Open(ln net.Listener) int {
	if l, ok := ln.(*boundedListener); ok {
		return int(l.open.Load())
	}
	return 0
}

// boundedListener counts the connections that were accepted and are still open. The HTTP server's goroutine calls
// Accept; any goroutine may close a connection.
type boundedListener struct {
	net.Listener
	open    atomic.Int64 // ≤ maxOpen, except briefly while Accept refuses a connection
	maxOpen atomic.Int64
}

func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= l.maxOpen.Load() {
			return &boundedConn{Conn: nc, listener: l}, nil
		}
		l.open.Add(-1)
		_ = nc.Close() // refused: there is no protocol yet in which to say so
	}
}

// boundedConn frees its place in the listener's count when it is first closed.
type boundedConn struct {
	net.Conn
	listener *boundedListener
	closed   atomic.Bool
}

func (c *boundedConn) Close() error {
	if c.closed.CompareAndSwap(false, true) {
		c.listener.open.Add(-1)
	}
	return c.Conn.Close()
}
