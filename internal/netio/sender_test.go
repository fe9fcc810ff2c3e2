package netio

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// sockets is a connected pair, both ends non-blocking and closed at the end of the test.
func sockets(t testing.TB) (here, there int) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Close(pair[0])
		_ = unix.Close(pair[1]) // some tests closed it
	})
	return pair[0], pair[1]
}

func newTestSender(t testing.TB) *Sender {
	t.Helper()
	s, err := newSender()
	if errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EPERM) {
		t.Skipf("this machine refuses io_uring: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func received(t testing.TB, fd int) []byte {
	t.Helper()
	p := make([]byte, 1<<20)
	n, err := unix.Read(fd, p)
	if err != nil {
		t.Fatalf("nothing came: %v", err)
	}
	return p[:n]
}

// The batch is larger than one system call takes. Each socket gets its own bytes, and a socket with two entries gets
// them in order.
func TestSenderSendsToMany(t *testing.T) {
	s := newTestSender(t)
	const count = 2*MaxSendCount + 7
	var batch []Sending
	ends := make([]int, count)
	for round := range 2 {
		for i := range count {
			if round == 0 {
				here, there := sockets(t)
				batch, ends[i] = append(batch, Sending{FD: here}), there
				continue
			}
			batch = append(batch, Sending{FD: batch[i].FD})
		}
	}
	for i := range batch {
		batch[i].Data = fmt.Appendf(nil, "%d for %d;", i/count, i%count)
	}
	if err := s.Send(batch); err != nil {
		t.Fatal(err)
	}
	for i := range batch {
		if b := &batch[i]; b.Err != nil || b.N != len(b.Data) {
			t.Fatalf("entry %d: %d of %d bytes, %v", i, b.N, len(b.Data), b.Err)
		}
	}
	for i, fd := range ends {
		if got, want := string(received(t, fd)), fmt.Sprintf("0 for %d;1 for %d;", i, i); got != want {
			t.Fatalf("socket %d got %q, want %q", i, got, want)
		}
	}
}

// A full socket, a socket whose reader is gone, and a number that is not a socket each get their own result. The
// entries after them are sent, nothing waits, and the process gets no SIGPIPE.
func TestSenderResults(t *testing.T) {
	s := newTestSender(t)
	full, fullEnd := sockets(t)
	gone, goneEnd := sockets(t)
	fine, fineEnd := sockets(t)
	if err := unix.Close(goneEnd); err != nil {
		t.Fatal(err)
	}
	large := bytes.Repeat([]byte("x"), 8<<20)
	batch := []Sending{
		{FD: full, Data: large},
		{FD: full, Data: []byte("more")},
		{FD: gone, Data: []byte("hello")},
		{FD: 1 << 20, Data: []byte("nobody")},
		{FD: fine, Data: []byte("hello")},
	}
	if err := s.Send(batch); err != nil {
		t.Fatal(err)
	}
	if b := batch[0]; b.Err != nil || b.N <= 0 || b.N >= len(large) {
		t.Errorf("a full socket took %d bytes, %v, want a part", b.N, b.Err)
	}
	for i, want := range map[int]error{1: syscall.EAGAIN, 2: syscall.EPIPE, 3: syscall.EBADF, 4: nil} {
		if b := batch[i]; b.Err != want || want != nil && b.N != 0 {
			t.Errorf("entry %d: %d bytes, %v, want %v", i, b.N, b.Err, want)
		}
	}
	if got := string(received(t, fineEnd)); got != "hello" {
		t.Errorf("the last got %q", got)
	}
	if got := received(t, fullEnd); len(got) == 0 || bytes.Contains(got, []byte("m")) {
		t.Errorf("%d bytes came, with what the socket had refused", len(got))
	}
}

func TestSenderAllocatesNothing(t *testing.T) {
	s := newTestSender(t)
	here, there := sockets(t)
	batch := []Sending{{FD: here, Data: []byte("hello")}, {FD: here, Data: []byte("world")}}
	p := make([]byte, 64)
	if n := testing.AllocsPerRun(100, func() {
		if err := s.Send(batch); err != nil {
			t.Fatal(err)
		}
		if n, err := unix.Read(there, p); err != nil || string(p[:n]) != "helloworld" {
			t.Fatalf("got %q, %v", p[:n], err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkSend answers 1, 16 and MaxSendCount clients at once with a frame of 10 bytes each, as the flusher of package
// nsq does. The time includes the reads that empty the sockets again.
func BenchmarkSend(b *testing.B) {
	for _, count := range []int{1, 16, MaxSendCount} {
		b.Run(fmt.Sprintf("clients=%d", count), func(b *testing.B) {
			s := newTestSender(b)
			batch, ends := make([]Sending, count), make([]int, count)
			for i := range batch {
				batch[i].FD, ends[i] = sockets(b)
				batch[i].Data = []byte("0123456789")
			}
			p := make([]byte, 64)
			b.ReportAllocs()
			for b.Loop() {
				if err := s.Send(batch); err != nil {
					b.Fatal(err)
				}
				for _, fd := range ends {
					if n, err := unix.Read(fd, p); n != 10 || err != nil {
						b.Fatal(n, err)
					}
				}
			}
		})
	}
}
