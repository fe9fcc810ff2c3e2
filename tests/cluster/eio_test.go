//go:build cluster

package cluster

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"penstock/tests/cluster/harness"
	"penstock/tests/powercut/volatile"
)

const (
	eioDiskBytes = 512 << 20
	eioTime      = 6 * time.Second
)

// failing is the disk of one node: a file system on a device that fails requests when it is told to.
type failing struct {
	*volatile.FileSystem
	s *scenario
}

func failingDisk(t *testing.T) *failing {
	t.Helper()
	if err := volatile.Missing(); err != nil {
		t.Skipf("this machine cannot make a disk that fails: %v", err)
	}
	if err := volatile.KindMissing("ext4"); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	device, path := filepath.Join(dir, "device"), filepath.Join(dir, "disk")
	for _, d := range []string{device, path} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	server, err := volatile.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	d, err := server.Open(device, eioDiskBytes)
	if err != nil {
		t.Fatal(err)
	}
	made, err := volatile.Make(d, "ext4", path)
	if err != nil {
		t.Fatal(err)
	}
	f := &failing{FileSystem: made}
	t.Cleanup(func() { // the nodes have ended
		_ = f.Fail(false, false)
		if err := f.Unmount(); err != nil {
			t.Error(err)
		}
	})
	if err := f.Mount(); err != nil {
		t.Fatal(err)
	}
	return f
}

// forget takes the segments out of the page cache, as far as nobody has them mapped: what is read from now on comes
// from the device.
func (f *failing) forget() error {
	unix.Sync()
	return filepath.WalkDir(f.Path, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".seg") {
			return nil // the directory changes meanwhile
		}
		file, err := os.Open(path)
		if err != nil {
			return nil
		}
		defer file.Close()
		_ = unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)
		return nil
	})
}

// F8: the device of one of three nodes fails reads, then writes, for some seconds under load. The others go on, the
// node lives or says why it ended, and when the device works again and the node was started anew everything is there.
func TestDiskFails(t *testing.T) {
	needNet(t)
	f := failingDisk(t)
	f.s = begin(t, spread, harness.Options{Volumes: map[int]string{0: f.Path}, Serve: small})
	n := f.s.c.Nodes[0]
	for range rounds(t, 1) {
		f.round(n, "reads fail", true, false)
		f.round(n, "writes fail", false, true)
	}
	f.s.finish()
}

// round lets the node's device fail for a while. After writes that failed the file system has given up: it is
// repaired and mounted anew, as an operator would.
func (f *failing) round(n *harness.Node, kind string, reads, writes bool) {
	s := f.s
	s.t.Helper()
	s.acks(300)
	s.try(f.forget())
	heal := s.fault(kind, n.Name, func() error { return f.Fail(reads, writes) })
	s.acks(300)
	s.pass(eioTime)
	s.acks(300)
	if !n.Running() {
		s.t.Logf("%s: the node ended:\n%s", kind, n.LogTail(2<<10))
	}
	if log := n.LogTail(1 << 20); strings.Contains(log, "SIGBUS") || strings.Contains(log, "fatal error") ||
		strings.Contains(log, "panic:") {
		s.t.Errorf("%s: the process crashed:\n%s", kind, n.LogTail(4<<10))
	}
	if writes && !strings.Contains(n.LogTail(1<<20), "the commit log failed") {
		s.t.Errorf("%s: the node does not say that its disk has failed", kind)
	}
	heal(func() error {
		if n.Running() {
			if err := n.Kill(); err != nil {
				return err
			}
		}
		if err := f.Fail(false, false); err != nil {
			return err
		}
		if err := f.Unmount(); err != nil {
			return err
		}
		if err := errors.Join(f.Repair(), f.Mount()); err != nil {
			return err
		}
		return s.restart(n)()
	})
	s.acks(300)
	s.healthy()
}
