package main

import (
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// told returns the socket on which a service manager hears the node, which is in the environment from now on.
func told(t *testing.T) *net.UnixConn {
	t.Helper()
	name := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	must(t, conn.SetReadDeadline(time.Now().Add(30*time.Second)))
	t.Setenv("NOTIFY_SOCKET", name)
	return conn
}

func hear(t *testing.T, conn *net.UnixConn) string {
	t.Helper()
	b := make([]byte, 64)
	n, err := conn.Read(b)
	must(t, err)
	return string(b[:n])
}

func TestServiceManagerIsTold(t *testing.T) {
	conn := told(t)
	p := startNode(t, t.TempDir())
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{"READY=1", "STOPPING=1"} {
		if got := hear(t, conn); got != want {
			t.Errorf("told %q, want %q", got, want)
		}
	}
}

// A unit with WatchdogSec= would be ended again and again if its node said only that it is ready.
func TestWatchdogIsPinged(t *testing.T) {
	conn := told(t)
	t.Setenv("WATCHDOG_USEC", "60000")
	p := startNode(t, t.TempDir())
	if got := hear(t, conn); got != "READY=1" {
		t.Errorf("told %q first", got)
	}
	for range 3 * 3 { // three pings in each period
		if got := hear(t, conn); got != "WATCHDOG=1" {
			t.Errorf("told %q", got)
		}
	}
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for got := hear(t, conn); got != "STOPPING=1"; got = hear(t, conn) {
		if got != "WATCHDOG=1" {
			t.Errorf("told %q", got)
		}
	}
}
