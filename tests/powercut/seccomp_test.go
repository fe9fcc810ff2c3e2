//go:build powercut

package powercut

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// refuseModernWrites makes this process one on a kernel without RWF_DSYNC and io_uring, for ever: the system calls
// answer that they are not supported, and the engine falls back to pwrite and fdatasync.
func refuseModernWrites() error {
	const (
		load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		ret   = unix.BPF_RET | unix.BPF_K
		// refused and allowed are SECCOMP_RET_ERRNO with EOPNOTSUPP, and SECCOMP_RET_ALLOW.
		refused = 0x00050000 | uint32(unix.EOPNOTSUPP)
		allowed = 0x7fff0000
	)
	filter := []unix.SockFilter{
		{Code: load}, // the number of the system call
		{Code: equal, K: unix.SYS_PWRITEV2, Jt: 2},
		{Code: equal, K: unix.SYS_IO_URING_SETUP, Jt: 1},
		{Code: ret, K: allowed},
		{Code: ret, K: refused},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	return nil
}
