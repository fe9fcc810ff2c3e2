package harness

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func needNet(t *testing.T) {
	t.Helper()
	if err := NetMissing(); err != nil {
		t.Skipf("this machine cannot cut networks: %v", err)
	}
}

// within runs do in a network namespace. What it opens stays there.
func within(t *testing.T, namespace string, do func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine: it is in the wrong namespace for anything else
		fd, err := unix.Open(namespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = errors.Join(unix.Setns(fd, unix.CLONE_NEWNET), unix.Close(fd))
		}
		if err == nil {
			err = do()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// echo answers in node 1's namespace; the client in node 0's gets its connection.
func echo(t *testing.T, n *Net, plane Plane) net.Conn {
	t.Helper()
	var l net.Listener
	within(t, n.Namespace(1), func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(n.Address(1, plane), "7"))
		return err
	})
	t.Cleanup(func() { l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.Copy(c, c)
	}()
	var c net.Conn
	within(t, n.Namespace(0), func() (err error) {
		c, err = net.DialTimeout("tcp", l.Addr().String(), 5*time.Second)
		return err
	})
	t.Cleanup(func() { c.Close() })
	return c
}

// passes says whether a byte comes back in time.
func passes(t *testing.T, c net.Conn, wait time.Duration) bool {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(wait)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the cut shows: %v", err)
	}
	return err == nil
}

func TestCutAndHeal(t *testing.T) {
	needNet(t)
	n, err := NewNet(3)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		left, err := filepath.Glob("/run/netns/" + n.prefix + "*")
		if err != nil || len(left) > 0 {
			t.Errorf("namespaces are left: %v, %v", left, err)
		}
		if _, err := net.InterfaceByName(n.bridge()); err == nil {
			t.Error("the bridge is left")
		}
	}()
	data, metadata := echo(t, n, Data), echo(t, n, Metadata)
	const soon, long = 300 * time.Millisecond, 10 * time.Second
	for _, tc := range []struct {
		name           string
		cut            func() error
		data, metadata bool
	}{
		{"there", func() error { return n.Cut(0, 1, Data) }, false, true},
		{"back", func() error { return n.Cut(1, 0, Data) }, false, true},
		{"others", func() error { return errors.Join(n.Cut(0, 2, All), n.Cut(2, 1, All)) }, true, true},
		{"metadata", func() error { return n.Split([]int{0}, []int{1, 2}, Metadata) }, true, false},
		{"all", func() error { return n.Split([]int{0, 2}, []int{1}, All) }, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := tc.cut(); err != nil {
				t.Fatal(err)
			}
			for plane, want := range map[net.Conn]bool{data: tc.data, metadata: tc.metadata} {
				wait := soon
				if want {
					wait = long
				}
				if passes(t, plane, wait) != want {
					t.Errorf("data passes: want %v, metadata passes: want %v; one does not", tc.data, tc.metadata)
				}
			}
			if err := n.Heal(); err != nil {
				t.Fatal(err)
			}
			drain(t, data, metadata)
		})
	}
}

// What NetMissing makes can be taken away. If it cannot, that is a defect and no reason to skip tests: NetMissing would
// say that the machine has no namespaces.
func TestCloseOfANet(t *testing.T) {
	n, err := NewNet(1)
	if err != nil {
		t.Skipf("this machine cannot have network namespaces: %v", err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob("/run/netns/" + n.prefix + "*"); err != nil || len(left) > 0 {
		t.Errorf("namespaces are left: %v, %v", left, err)
	}
}

// drain waits until both connections work again and reads what was late.
func drain(t *testing.T, conns ...net.Conn) {
	t.Helper()
	for _, c := range conns {
		mark := []byte(fmt.Sprintf("|%s|", t.Name()))
		if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(mark); err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		for one := make([]byte, 1); !strings.HasSuffix(got.String(), string(mark)); {
			if _, err := io.ReadFull(c, one); err != nil {
				t.Fatalf("it is not healed: %v", err)
			}
			got.WriteByte(one[0])
		}
	}
}
