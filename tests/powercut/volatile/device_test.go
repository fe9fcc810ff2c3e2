//go:build powercut

package volatile_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"penstock/tests/powercut/volatile"
)

func TestMain(m *testing.M) {
	volatile.Main()
	os.Exit(m.Run())
}

// A write with O_DIRECT alone is lost when the power is cut; with RWF_DSYNC, with fdatasync it is not. Without that the
// oracle could not fail.
func TestDeviceLosesWhatIsNotFlushed(t *testing.T) {
	if err := volatile.Missing(); err != nil {
		t.Skip(err)
	}
	for _, kind := range []string{"ext4", "xfs"} {
		t.Run(kind, func(t *testing.T) {
			if err := volatile.KindMissing(kind); err != nil {
				t.Skip(err)
			}
			server, f := fileSystem(t, kind)
			for _, c := range []struct {
				how   string
				write func(fd int, p []byte) error
				kept  bool
			}{
				{"written", func(fd int, p []byte) error { _, err := unix.Pwrite(fd, p, 0); return err }, false},
				{
					"RWF_DSYNC",
					func(fd int, p []byte) error { _, err := unix.Pwritev2(fd, [][]byte{p}, 0, unix.RWF_DSYNC); return err }, true,
				},
				{"fdatasync", func(fd int, p []byte) error {
					if _, err := unix.Pwrite(fd, p, 0); err != nil {
						return err
					}
					return unix.Fdatasync(fd)
				}, true},
			} {
				if kept := survives(t, server, f, c.write); kept != c.kept {
					t.Errorf("%s: kept after the cut: %v, want %v", c.how, kept, c.kept)
				}
			}
		})
	}
}

func fileSystem(t *testing.T, kind string) (*volatile.Server, *volatile.FileSystem) {
	t.Helper()
	file, path := filepath.Join(t.TempDir(), "file"), filepath.Join(t.TempDir(), "mnt")
	check(t, os.Mkdir(file, 0o700))
	check(t, os.Mkdir(path, 0o700))
	server, err := volatile.Start()
	check(t, err)
	t.Cleanup(func() { check(t, server.Close()) })
	d, err := server.Open(file, 320<<20)
	check(t, err)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	f, err := volatile.Make(d, kind, path)
	check(t, err)
	t.Cleanup(func() {
		if err := f.Unmount(); err != nil {
			t.Error(err)
		}
	})
	return server, f
}

// survives overwrites a block of a file that was prewritten, as the commit log's files are, cuts the power, and says
// whether the block is there.
func survives(t *testing.T, server *volatile.Server, f *volatile.FileSystem, write func(int, []byte) error) bool {
	t.Helper()
	check(t, f.Mount())
	name := filepath.Join(f.Path, "log")
	mem, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	check(t, err)
	defer unix.Munmap(mem)
	check(t, os.WriteFile(name, make([]byte, 1<<20), 0o600))
	file, err := os.OpenFile(name, os.O_RDWR|unix.O_DIRECT, 0)
	check(t, err)
	check(t, file.Sync())
	copy(mem, bytes.Repeat([]byte("new."), 1024))
	check(t, write(int(file.Fd()), mem))
	_, err = server.Cut(0, 0, f.Device)
	check(t, err)
	check(t, f.Shutdown())
	check(t, file.Close())
	check(t, f.Unmount())
	check(t, f.Revive())
	check(t, f.Mount())
	data, err := os.ReadFile(name)
	check(t, err)
	check(t, f.Unmount())
	return bytes.HasPrefix(data, []byte("new."))
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
