package aiotest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// MountImage mounts a new file system from an image file, until the end of the test. It skips the test where it cannot.
func MountImage(t testing.TB, kind string, size int64) string {
	t.Helper()
	mkfs, force := "mkfs."+kind, "-F"
	if kind == "btrfs" {
		force = "-f"
	}
	for _, tool := range []string{mkfs, "mount", "umount"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the machine has no %s", tool)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("only root can mount an image")
	}
	base := t.TempDir()
	image, dir := filepath.Join(base, "image"), filepath.Join(base, "mnt")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, size), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Skipf("%s does not work here: %v: %s", name, err, out)
		}
	}
	run(mkfs, "-q", force, image)
	run("mount", "-o", "loop", image, dir)
	t.Cleanup(func() { // lazily, because the kernel frees rings, and what they hold of the file system, a little later
		if out, err := exec.Command("umount", "-l", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return dir
}

// FillUp takes all the space of a file system, and returns the file that has it.
func FillUp(t testing.TB, name string) string {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	random, err := os.Open("/dev/urandom")
	if err != nil {
		t.Fatal(err)
	}
	defer random.Close()
	for chunk := make([]byte, 1<<20); ; {
		if _, err := random.Read(chunk); err != nil {
			t.Fatal(err)
		}
		_, err := f.Write(chunk)
		if err == nil && len(chunk) == 4096 {
			err = f.Sync()
		}
		switch {
		case errors.Is(err, syscall.ENOSPC) && len(chunk) == 4096:
			return name
		case errors.Is(err, syscall.ENOSPC):
			_ = f.Sync() // some of it may become free again
			chunk = chunk[:4096]
		case err != nil:
			t.Fatal(err)
		}
	}
}
