package aio

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Where a directory cannot be locked, as on NFS, LOCK alone keeps others out, and one line says so. A descriptor that
// may not be used for anything but names (O_PATH) is refused in the same way.
func TestDirectoryThatCannotBeLocked(t *testing.T) {
	path := t.TempDir()
	root, err := os.OpenRoot(path)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	var said bytes.Buffer
	log := slog.New(slog.NewTextHandler(&said, nil))
	l, err := takeLocks(root, dir, DiskOptions{}, log)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(said.String(), "level=WARN"); n != 1 || strings.Count(said.String(), "\n") != 1 {
		t.Errorf("the log says %q, want one warning", said.String())
	}
	if l.held || l.file == nil || len(l.fds()) != 1 {
		t.Errorf("locked %+v, want LOCK alone", l)
	}
	if _, err := takeLocks(root, dir, DiskOptions{}, log); !errors.Is(err, ErrLocked) {
		t.Errorf("a second one: %v, want ErrLocked", err)
	}
	if err := l.release(); err != nil {
		t.Fatal(err)
	}
}
