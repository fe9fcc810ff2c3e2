package descriptors

import (
	"io"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Clients that open more and more connections never take the last descriptors, and a connection that ends makes room
// for another one.
func TestGuard(t *testing.T) {
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	const limit = 128
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
			t.Error(err)
		}
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	guarded := Guard(ln)
	var open atomic.Int64
	accepted := make(chan net.Conn, limit)
	go func() {
		for {
			nc, err := guarded.Accept()
			if err != nil {
				return
			}
			open.Add(1)
			accepted <- nc
		}
	}()
	t.Cleanup(func() { _ = ln.Close() })
	// The clients are in this process, too, so that each connection takes two descriptors.
	var clients []net.Conn
	refusedBefore := Refused()
	for Refused() == refusedBefore {
		nc, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatalf("after %d connections: %v", open.Load(), err)
		}
		clients = append(clients, nc)
		for began := time.Now(); int(open.Load()) < len(clients) && Refused() == refusedBefore; {
			if time.Sleep(time.Millisecond); time.Since(began) > 10*time.Second {
				t.Fatalf("connection %d is neither accepted nor refused", len(clients))
			}
		}
	}
	last := clients[len(clients)-1]
	if err := last.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := last.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the refused connection: %v", err)
	}
	var files []*os.File
	for range Reserve(limit) / 2 {
		f, err := os.Open("/dev/null")
		if err != nil {
			t.Fatalf("after %d files: %v", len(files), err)
		}
		files = append(files, f)
	}
	for _, f := range files {
		_ = f.Close()
	}
	for range 2 { // a client's end, and the node's
		_ = clients[0].Close()
		clients = clients[1:]
		_ = (<-accepted).Close()
	}
	before := open.Load()
	nc, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); open.Load() == before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no connection is accepted after two have ended")
		}
	}
	for _, c := range append(clients, nc) {
		_ = c.Close()
	}
}
