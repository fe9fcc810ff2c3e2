//go:build unix

package netproto

import (
	"net"
	"syscall"
)

// init prepares the connection for writes that do not block. The first of them takes what the socket has room for.
func (s *spot) init(nc net.Conn) {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	s.raw, s.spare = raw, new(drain)
	s.write = func(fd uintptr) bool {
		for {
			n, err := syscall.Write(int(fd), s.buf)
			switch err {
			case syscall.EINTR:
				continue
			case syscall.EAGAIN:
				err = nil // the socket has no room
			}
			s.n, s.err = max(n, 0), err
			return true
		}
	}
}
