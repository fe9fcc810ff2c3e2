package main

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Files that change are read once; a half or broken set is said once, and tried again until it can be used. A mounted
// secret is a link that somebody turns.
func TestCredentialsAreLookedAt(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	turn := func(to string) {
		t.Helper()
		_ = os.Remove(filepath.Join(dir, "next"))
		must(t, os.Symlink(to, filepath.Join(dir, "next")))
		must(t, os.Rename(filepath.Join(dir, "next"), filepath.Join(dir, "now")))
	}
	write("one/cert", "1")
	write("one/key", "1")
	write("two/cert", "2")
	write("two/key", "2")
	turn("one")
	var log bytes.Buffer
	reads, stale := 0, false
	cert, key := filepath.Join(dir, "now", "cert"), filepath.Join(dir, "now", "key")
	c := &credentials{
		files: []string{cert, key}, log: slog.New(slog.NewTextHandler(&log, nil)), stale: func(s bool) { stale = s },
		read: func() error {
			reads++
			a, errA := os.ReadFile(cert)
			b, errB := os.ReadFile(key)
			if !bytes.Equal(a, b) {
				return errors.New("the key is not the certificate's")
			}
			return errors.Join(errA, errB)
		},
	}
	c.seen = c.state()
	for _, step := range []struct {
		do    func()
		reads int
		stale bool
		lines int // of the log, so far
	}{
		{func() {}, 0, false, 0},
		{func() { turn("two") }, 1, false, 1},
		{func() {}, 1, false, 1},
		{func() { write("two/cert", "three") }, 2, true, 2},
		{func() {}, 3, true, 2},
		{func() { must(t, os.Remove(key)) }, 4, true, 3},
		{func() { write("two/key", "three") }, 5, false, 4},
		{func() {}, 5, false, 4},
	} {
		step.do()
		c.look()
		if got := strings.Count(log.String(), "\n"); reads != step.reads || stale != step.stale || got != step.lines {
			t.Fatalf("read %d times, stale %v, %d lines; want %d, %v, %d:\n%s",
				reads, stale, got, step.reads, step.stale, step.lines, log.String())
		}
	}
}

// A running node needs no signal.
func TestChangedFilesAreRead(t *testing.T) {
	p, address, dir, tokens := startWithCredentials(t)
	writeCertificate(t, dir, "second")
	writeToken(t, tokens, "second-token")
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		name, old, now := servedName(t, address), p.publishAs(t, "first-token"), p.publishAs(t, "second-token")
		if name == "second" && old == 401 && now == 200 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the certificate is for %s, the old token gives %d, the new one %d", name, old, now)
		}
	}
}
