// Package listen holds what the TCP and HTTP listeners of nsqd and nsqlookupd have in common.
package listen

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// Off is the address of a service that is not served.
const Off = "off"

// Error says what could not be listened for, and where.
func Error(what, address string, err error) error {
	return fmt.Errorf("nsq: cannot listen for %s on %s: %w", what, address, err)
}

// Port is the port of a TCP address, or 0.
func Port(a net.Addr) int {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.Port
	}
	return 0
}

// maxAcceptPause bounds how long Accept rests when the process has no file descriptors left.
const maxAcceptPause = time.Second

// Accept hands each connection to welcome until ln is closed, and returns nil then. Running out of file descriptors or
// memory is no failure of the listener: Accept tells it to failed, waits for retryAfter or until done is closed (then
// it returns nil), and tries again. done may be nil. Any other error is returned.
func Accept(
	ln *net.TCPListener, done <-chan struct{},
	welcome func(*net.TCPConn), failed func(err error, retryAfter time.Duration),
) error {
	pause := time.Duration(0)
	for {
		nc, err := ln.AcceptTCP()
		switch {
		case err == nil:
			pause = 0
			welcome(nc)
		case errors.Is(err, net.ErrClosed):
			return nil
		case transient(err):
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

// transient tells errors of accepting after which the next attempt may succeed.
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

// Bound is ln with at most maxOpen open connections: one more is closed at once.
func Bound(ln net.Listener, maxOpen int) net.Listener {
	return &boundedListener{Listener: ln, maxOpen: int64(maxOpen)}
}

// boundedListener counts the connections that it accepted and that are not closed. Accept is called by the HTTP
// server's goroutine; connections are closed by any.
type boundedListener struct {
	net.Listener
	open    atomic.Int64 // ≤ maxOpen, but for the moment in which Accept refuses one
	maxOpen int64
}

func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= l.maxOpen {
			return &boundedConn{Conn: nc, listener: l}, nil
		}
		l.open.Add(-1)
		_ = nc.Close() // refused: there is nothing to say to it
	}
}

// boundedConn gives its place back when it is closed for the first time.
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
