package netproto

import (
	"syscall"

	"golang.org/x/sys/unix"
)

const canSample = true

// take asks the kernel about a connection.
func take(raw syscall.RawConn) (s sample, ok bool) {
	_ = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return
		}
		waits, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
		s, ok = sample{info.Bytes_acked, info.Bytes_acked + uint64(max(waits, 0))}, err == nil
	})
	return s, ok
}

// shorten limits how many unsent bytes the kernel queues for the connection. 0 restores the limit of the system.
func shorten(raw syscall.RawConn, bytes int) {
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, bytes)
	})
}
