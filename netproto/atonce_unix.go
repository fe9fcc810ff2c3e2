//go:build unix && (!linux || race || !(amd64 || arm64))

package netproto

import (
	"errors"
	"syscall"
)

// recvAtOnce reads what has arrived, from a socket that does not block.
func recvAtOnce(fd int, p []byte) (int, syscall.Errno) { return atOnce(syscall.Read, fd, p) }

// sendAtOnce writes what the socket takes, which does not block.
func sendAtOnce(fd int, p []byte) (int, syscall.Errno) { return atOnce(syscall.Write, fd, p) }

func atOnce(call func(int, []byte) (int, error), fd int, p []byte) (int, syscall.Errno) {
	for {
		n, err := call(fd, p)
		if err == nil {
			return n, 0
		}
		errno := syscall.EIO
		if errors.As(err, &errno) && errno == syscall.EINTR {
			continue
		}
		return 0, errno
	}
}
