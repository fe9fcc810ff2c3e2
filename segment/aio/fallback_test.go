package aio_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"penstock/segment/aio"
	"penstock/tests/support/aiotest"
)

// writeAndReport does what a node does: it writes durably through a queue with an arena of 16 MiB and reads back. Then
// it prints the engine.
func writeAndReport(args []string) error {
	d, err := aio.OpenDisk(args[0], aio.DiskOptions{})
	if err != nil {
		return err
	}
	a, err := aio.NewArena(1<<20, 16)
	if err != nil {
		return err
	}
	q, err := d.NewQueue(aio.QueueOptions{Arena: a})
	if err != nil {
		return err
	}
	_ = d.Remove("f") // of an earlier run
	f, err := d.Create("f", aio.BlockBytes)
	if err != nil {
		return err
	}
	b := a.Get()
	copy(b.Bytes(), "stored")
	if err := q.Submit(aio.Op{File: f, Data: b.Bytes()[:aio.BlockBytes]}); err != nil {
		return err
	}
	done, err := q.Wait(nil, true)
	if err != nil || len(done) != 1 || done[0].Err != nil {
		return fmt.Errorf("completions %v, %w", done, err)
	}
	got := make([]byte, 6)
	if err := f.ReadAt(got, 0); err != nil || string(got) != "stored" {
		return fmt.Errorf("read %q, %w", got, err)
	}
	i := d.Info()
	fmt.Printf("engine=%s registered=%v reason=%s\n", i.Engine, i.Registered, i.Reason)
	return errors.Join(q.Close(), f.Close(), d.Close())
}

// underSeccomp refuses io_uring as the default profiles of container runtimes do, and openat2 as older ones did.
func underSeccomp(args []string) error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_IO_URING_SETUP, Jt: 1},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_OPENAT2, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(syscall.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, errno := syscall.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	return writeAndReport(args)
}

// underMemlock gives up root and lowers the limit for locked memory to args[1].
func underMemlock(args []string) error {
	var limit uint64
	if _, err := fmt.Sscan(args[1], &limit); err != nil {
		return err
	}
	if err := unix.Prlimit(0, unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limit, Max: limit}, nil); err != nil {
		return err
	}
	if os.Getuid() == 0 {
		if err := errors.Join(syscall.Setgid(nobody), syscall.Setuid(nobody)); err != nil {
			return err
		}
	}
	return writeAndReport(args)
}

const nobody = 65534

// forNobody makes a directory that the user nobody can use.
func forNobody(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "aio")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if os.Getuid() == 0 {
		if err := os.Chown(dir, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A machine that refuses part of io_uring gets the rest, and always a working queue.
func TestFallsBack(t *testing.T) {
	plain := startChild(t, "write", t.TempDir()).line(t)
	if strings.Contains(plain, "engine=pwrite") {
		t.Skipf("this machine has no io_uring to take away: %s", plain)
	}
	if !strings.Contains(plain, "registered=true") && os.Getuid() == 0 {
		t.Errorf("as root the child said %q, want a registered arena", plain)
	}
	for _, test := range []struct {
		child string
		arg   string
		want  []string
	}{
		{"seccomp", "", []string{"engine=pwrite", "operation not permitted"}},
		{"memlock", fmt.Sprint(8 << 20), []string{"uring registered=false"}}, // the common default; the arena has 16 MiB
		{"memlock", "0", []string{"engine="}},                                // newer kernels charge the ring elsewhere
	} {
		t.Run(test.child+test.arg, func(t *testing.T) {
			got := startChild(t, test.child, forNobody(t), test.arg).line(t)
			for _, want := range test.want {
				if !strings.Contains(got, want) {
					t.Errorf("the child said %q, want %q in it", got, want)
				}
			}
		})
	}
}

// mount mounts a file system for the test.
func mount(t *testing.T, kind, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount(kind, dir, kind, 0, options); err != nil {
		if errors.Is(err, syscall.EPERM) {
			t.Skipf("only root can mount %s: %v", kind, err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// tmpfs is a directory in memory: a mount of its own or, without root, the system's.
func tmpfs(t *testing.T) string {
	t.Helper()
	if os.Getuid() == 0 {
		return mount(t, "tmpfs", "size=32m")
	}
	dir, err := os.MkdirTemp("/dev/shm", "aio")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestConformanceOnTmpfs(t *testing.T) {
	for _, mode := range []aio.Mode{aio.ModeAuto, aio.ModeUring, aio.ModePwrite} {
		t.Run(string(mode), func(t *testing.T) {
			aiotest.Run(t, func(t *testing.T) aio.Disk {
				return open(t, tmpfs(t), aio.DiskOptions{Mode: mode})
			})
		})
	}
}

func TestConformanceOnOverlay(t *testing.T) {
	aiotest.Run(t, func(t *testing.T) aio.Disk {
		base := t.TempDir()
		for _, sub := range []string{"lower", "upper", "work"} {
			if err := os.Mkdir(filepath.Join(base, sub), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		dir := mount(t, "overlay", fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", base))
		d := open(t, dir, aio.DiskOptions{})
		if fsName := d.Info().FileSystem; fsName != "overlay" {
			t.Errorf("the file system is told as %q, want overlay", fsName)
		}
		if i := d.Info(); !strings.Contains(i.Transience(), "the container is removed") {
			t.Errorf("%q does not say what ends it", i.Transience())
		}
		return d
	})
}
