//go:build linux && (amd64 || arm64) && !race

package netproto

import (
	"os"
	"syscall"
	"testing"
	"time"
)

// recvAtOnce and sendAtOnce hold up a whole thread of the scheduler, so they never wait, even on a socket that blocks.
func TestAtOnceNeverWaits(t *testing.T) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	here, there := pair[0], pair[1]
	t.Cleanup(func() { _ = syscall.Close(here) })
	const most = 10 * time.Second
	limit := syscall.NsecToTimeval(int64(most)) // ends the test if a call waits
	for _, option := range []int{syscall.SO_RCVTIMEO, syscall.SO_SNDTIMEO} {
		if err := syscall.SetsockoptTimeval(here, syscall.SOL_SOCKET, option, &limit); err != nil {
			t.Fatal(os.NewSyscallError("setsockopt", err))
		}
	}
	check := func(what string, n int, errno syscall.Errno, wantN int, want syscall.Errno) {
		t.Helper()
		if n != wantN || errno != want {
			t.Fatalf("%s: %d, %v; want %d, %v", what, n, errno, wantN, want)
		}
	}
	began := time.Now()
	p := make([]byte, 64<<10)
	n, errno := recvAtOnce(here, p)
	check("nothing has arrived", n, errno, 0, syscall.EAGAIN)
	n, errno = sendAtOnce(there, []byte("hello"))
	check("five bytes", n, errno, 5, 0)
	n, errno = recvAtOnce(here, p)
	check("five bytes have arrived", n, errno, 5, 0)
	for errno == 0 {
		n, errno = sendAtOnce(here, p)
	}
	check("the socket is full", n, errno, 0, syscall.EAGAIN)
	if took := time.Since(began); took > most/2 {
		t.Errorf("it took %v", took)
	}
	_ = syscall.Close(there)
	if n, errno = sendAtOnce(here, p); errno != syscall.EPIPE && errno != syscall.ECONNRESET {
		t.Errorf("the peer has closed: %d, %v", n, errno)
	}
	_, _ = recvAtOnce(here, p) // may tell of what the peer did not read
	n, errno = recvAtOnce(here, p)
	check("the end", n, errno, 0, 0)
}
