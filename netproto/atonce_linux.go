//go:build linux && (amd64 || arm64) && !race

package netproto

import (
	"syscall"
	"unsafe"
)

// recvAtOnce and sendAtOnce are recv(2) and send(2) that never wait, whatever the socket's mode is. They do not tell
// the scheduler of the call, as package net does: the call takes a few µs, less than what the scheduler would do about
// it. In a process that is often idle, such as a client that waits for an answer, package net's calls also wake the
// runtime's monitoring thread each time, which then looks every 20 µs for calls that last. The race detector does not
// see these calls, so that builds with it have others (atonce_unix.go). The caller holds the socket open.

func recvAtOnce(fd int, p []byte) (int, syscall.Errno) {
	return atOnce(syscall.SYS_RECVFROM, fd, p, syscall.MSG_DONTWAIT)
}

func sendAtOnce(fd int, p []byte) (int, syscall.Errno) {
	return atOnce(syscall.SYS_SENDTO, fd, p, syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL)
}

func atOnce(call uintptr, fd int, p []byte, flags uintptr) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall6(call, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))),
			uintptr(len(p)), flags, 0, 0)
		switch errno {
		case 0:
			return int(n), 0
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}
