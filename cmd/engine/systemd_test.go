package main

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
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
	for range 3 * pingsPerPeriod {
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

// The watchdog of a node that needs a restart gets no pings; one log line says why.
func TestWatchdogFallsSilent(t *testing.T) {
	const period = 30 * time.Second
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		var pings atomic.Int64
		var lives atomic.Bool
		lives.Store(true)
		live := func() (bool, string) { return lives.Load(), "the commit log failed" }
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			watchdog(ctx, period, live, func(string) { pings.Add(1) }, slog.New(slog.NewTextHandler(&log, nil)))
		}()
		during := func(d time.Duration) int64 {
			before := pings.Load()
			time.Sleep(d)
			synctest.Wait()
			return pings.Load() - before
		}
		if n := during(10 * period); n < 10*pingsPerPeriod {
			t.Errorf("%d pings in ten periods", n)
		}
		lives.Store(false)
		if n := during(10 * period); n != 0 || strings.Count(log.String(), "the commit log failed") != 1 {
			t.Errorf("%d pings although a restart is needed; the log says\n%s", n, log.String())
		}
		lives.Store(true)
		if n := during(period); n == 0 {
			t.Error("no pings after the node lives again")
		}
		cancel()
		<-ended
	})
}
