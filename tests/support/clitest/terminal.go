package clitest

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Typing is terminal, with a function that types.
func Typing(t *testing.T) (tty *os.File, types func(string), next func() string) {
	t.Helper()
	ptmx, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("no terminal can be made here: %v", err)
	}
	t.Cleanup(func() { unix.Close(ptmx) })
	must(t, unix.IoctlSetPointerInt(ptmx, unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(ptmx, unix.TIOCGPTN)
	must(t, err)
	fd, err := unix.Open("/dev/pts/"+strconv.Itoa(number), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	must(t, err)
	must(t, unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 100}))
	tty = os.NewFile(uintptr(fd), "terminal")
	t.Cleanup(func() { tty.Close() })
	types = func(text string) {
		t.Helper()
		_, err := unix.Write(ptmx, []byte(text))
		must(t, err)
	}
	return tty, types, func() string {
		t.Helper()
		if n, err := unix.Poll([]unix.PollFd{{Fd: int32(ptmx), Events: unix.POLLIN}}, 10_000); n != 1 || err != nil {
			t.Fatalf("nothing was written to the terminal: %v", err)
		}
		buf := make([]byte, 64<<10)
		n, err := unix.Read(ptmx, buf)
		must(t, err)
		return string(buf[:n])
	}
}

// OpenTerminal opens a pseudo-terminal. Text written to near is read at far as if it had been typed.
func OpenTerminal(t *testing.T) (near, far *os.File) {
	t.Helper()
	near, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close() })
	if err := unix.IoctlSetPointerInt(int(near.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(near.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	far, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() })
	return near, far
}
