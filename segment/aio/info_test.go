package aio_test

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"penstock/segment/aio"
	"penstock/tests/support/aiotest"
)

func TestInfoTellsWhatIsThere(t *testing.T) {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	d := open(t, mount(t, "tmpfs", "size=1m"), aio.DiskOptions{})
	defer d.Close()
	i := d.Info()
	if i.FileSystem != "tmpfs" || i.Device != "" || i.DeviceCache != "" || i.Kernel != strings.TrimSpace(string(release)) {
		t.Errorf("info is %+v, want tmpfs without a device on %s", i, release)
	}
	if !strings.Contains(i.Transience(), "in memory") {
		t.Errorf("%q does not say that it is in memory", i.Transience())
	}
}

// What does not last is called so, with what ends it, and a disk is not.
func TestTransience(t *testing.T) {
	for _, tc := range []struct {
		fileSystem, device, want string
	}{
		{"tmpfs", "", "in memory (tmpfs): everything in it, also what was answered OK, is lost when the machine restarts"},
		{"ramfs", "", "in memory (ramfs): "},
		{"ext4", "zram0", "in memory (the device zram0): "},
		{"xfs", "ram1", "in memory (the device ram1): "},
		{"overlay", "", "container is: everything in it, also what was answered OK, is lost when the container is removed"},
		{"ext4", "sda1", ""},
		{"ext4", "", ""},
		{"xfs", "nvme0n1p2", ""},
		{"btrfs", "", ""},
		{"nfs", "", ""},
		{"fuse", "", ""},
		{"0x1234", "rbd0", ""},
	} {
		i := aio.Info{FileSystem: tc.fileSystem, Device: tc.device}
		if got := i.Transience(); !strings.Contains(got, tc.want) || (got == "") != (tc.want == "") {
			t.Errorf("%s on %q: %q, want %q", tc.fileSystem, tc.device, got, tc.want)
		}
	}
}

func TestInfoFindsTheDevice(t *testing.T) {
	dir := mountImage(t)
	d := open(t, dir, aio.DiskOptions{})
	defer d.Close()
	i := d.Info()
	if i.FileSystem != "ext4" || !strings.HasPrefix(i.Device, "loop") || !strings.HasPrefix(i.DeviceCache, "write ") {
		t.Errorf("info is %+v, want ext4 on a loop device", i)
	}
	if i.Transience() != "" {
		t.Errorf("a disk is called transient: %s", i.Transience())
	}
}

func TestModesAreTold(t *testing.T) {
	for mode, engine := range map[aio.Mode]string{aio.ModePwrite: "pwrite", aio.ModeUring: "uring"} {
		d := open(t, t.TempDir(), aio.DiskOptions{Mode: mode})
		i := d.Info()
		// A ring may be refused here, with a reason, or may be the other implementation.
		if !strings.HasSuffix(i.Engine, engine) && !strings.Contains(i.Reason, "not usable") {
			t.Errorf("mode %s became %q because of %q", mode, i.Engine, i.Reason)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// resident counts the pages of m that the page cache holds.
func resident(t *testing.T, m aio.Mapping) int {
	t.Helper()
	p := aio.MappedBytes(m)
	pages := make([]byte, len(p)/aio.BlockBytes)
	if _, _, errno := syscall.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)),
		uintptr(unsafe.Pointer(&pages[0]))); errno != 0 {
		t.Fatal(errno)
	}
	n := 0
	for _, page := range pages {
		n += int(page & 1)
	}
	return n
}

// After a disk error the page cache shows bytes that the device never got, so recovery must not read through it.
func TestDirectReadsGoAroundThePageCache(t *testing.T) {
	const size = 64 * aio.BlockBytes
	d := open(t, mountImage(t), aio.DiskOptions{})
	defer d.Close()
	if !d.Info().Direct {
		t.Fatal("ext4 without O_DIRECT")
	}
	f, err := d.Create("a", size)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := f.Map()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Unmap()
	p := aiotest.Fill(t, size, 1)
	if err := errors.Join(f.WriteSyncAt(p, 0), f.ReadAt(p, 0), f.ReadAt(p[1:size-5], 3)); err != nil {
		t.Fatal(err)
	}
	if n := resident(t, m); n != 0 {
		t.Errorf("%d of %d pages are in the page cache after direct writes and reads", n, size/aio.BlockBytes)
	}
	if err := m.Populate(0, size); err != nil {
		t.Fatal(err)
	}
	if n := resident(t, m); n != size/aio.BlockBytes {
		t.Errorf("%d of %d pages are in the page cache after Populate", n, size/aio.BlockBytes)
	}
}

// A channel that catches up must not wait for the device after each piece, and must not fill the device's queue.
func TestPopulateReadsAPieceAndRequestsFourMore(t *testing.T) {
	const piece, ahead, size = 256 << 10, 1 << 20, 4 << 20
	d := open(t, mountImage(t), aio.DiskOptions{})
	defer d.Close()
	f, err := d.Create("a", size)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := f.Map()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Unmap()
	if err := f.WriteSyncAt(aiotest.Fill(t, size, 1), 0); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ from, n, want int64 }{
		{0, aio.BlockBytes, aio.BlockBytes}, // such a reader does not go on
		{0, piece, piece + ahead},
		{piece, piece, 2*piece + ahead},
		{size - piece, piece, 3*piece + ahead},
	} {
		if err := m.Populate(step.from, step.n); err != nil {
			t.Fatal(err)
		}
		for began := time.Now(); resident(t, m) < int(step.want/aio.BlockBytes) && time.Since(began) < 10*time.Second; {
			time.Sleep(time.Millisecond) // the device reads what was requested
		}
		if n := resident(t, m); n != int(step.want/aio.BlockBytes) {
			t.Errorf("after [%d, %d): %d pages are in the page cache, not %d",
				step.from, step.from+step.n, n, step.want/aio.BlockBytes)
		}
	}
}
