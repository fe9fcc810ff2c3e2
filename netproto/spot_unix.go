//go:build unix

package netproto

import (
	"io"
	"net"
	"os"
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
	if raw.Control(func(fd uintptr) { s.fd = int(fd) }) != nil {
		return
	}
	s.raw, s.spare = raw, new(drain)
	s.write = func(fd uintptr) bool {
		n, errno := sendAtOnce(int(fd), s.buf)
		s.n, s.err = n, nil
		if errno != 0 && errno != syscall.EAGAIN { // EAGAIN: the socket has no room
			s.err = os.NewSyscallError("send", errno)
		}
		return true
	}
}

// tryRead tries recv once. It returns false if nothing has arrived.
func (in *reader) tryRead(fd uintptr) bool {
	n, errno := recvAtOnce(int(fd), in.into)
	switch {
	case errno == syscall.EAGAIN:
		return false
	case errno != 0:
		in.err = os.NewSyscallError("recv", errno)
	case n == 0:
		in.err = io.EOF
	}
	in.n = n
	return true
}
