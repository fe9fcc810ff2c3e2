package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"penstock/tests/cluster/harness"
)

// Where cgroups are: those of version 2, or of version 1 that have I/O.
const (
	cgroups      = "/sys/fs/cgroup"
	blockCgroups = "/sys/fs/cgroup/blkio"
)

// limitedGroup is a cgroup whose processes read and write some devices no faster than a limit.
type limitedGroup struct {
	dir string
	v2  bool
}

// newLimitedGroup makes one without processes and limits. It needs root, and a kernel and machine with cgroups for I/O;
// otherwise it skips the test. The group ends with the test, after the processes in it.
func newLimitedGroup(t testing.TB) *limitedGroup {
	t.Helper()
	g := &limitedGroup{dir: blockCgroups}
	if has, err := os.ReadFile(filepath.Join(cgroups, "cgroup.controllers")); err == nil {
		g.dir, g.v2 = cgroups, slices.Contains(strings.Fields(string(has)), "io")
		if err := os.WriteFile(filepath.Join(cgroups, "cgroup.subtree_control"), []byte("+io"), 0); err != nil {
			t.Skipf("no device with a limit: %v", err)
		}
	}
	dir, err := os.MkdirTemp(g.dir, "penstock-bench-")
	if err != nil {
		t.Skipf("no device with a limit: %v", err)
	}
	g.dir = dir
	t.Cleanup(func() {
		err := syscall.Rmdir(dir)
		for end := time.Now().Add(patience); err != nil && time.Now().Before(end); err = syscall.Rmdir(dir) {
			time.Sleep(20 * time.Millisecond) // the kernel has not yet seen the end of a process
		}
		if err != nil {
			t.Errorf("the cgroup %s stays: %v", dir, err)
		}
	})
	return g
}

// take puts processes into the group.
func (g *limitedGroup) take(t testing.TB, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		g.write(t, "cgroup.procs", strconv.Itoa(pid))
	}
}

// limit bounds what the group writes to a device, MAJOR:MINOR, in bytes per second, and what it reads from it; 0: no
// bound.
func (g *limitedGroup) limit(t testing.TB, device string, writes, reads int64) {
	t.Helper()
	for name, line := range limitLines(g.v2, device, writes, reads) {
		g.write(t, name, line)
	}
}

func (g *limitedGroup) write(t testing.TB, name, line string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(g.dir, name), []byte(line), 0); err != nil {
		t.Skipf("no device with a limit: %v", err)
	}
}

// limitLines are what is written to which files of a group.
func limitLines(v2 bool, device string, writes, reads int64) map[string]string {
	if !v2 {
		return map[string]string{ // 0 takes a limit away
			"blkio.throttle.write_bps_device": fmt.Sprintf("%s %d", device, writes),
			"blkio.throttle.read_bps_device":  fmt.Sprintf("%s %d", device, reads),
		}
	}
	bound := func(n int64) string {
		if n == 0 {
			return "max"
		}
		return strconv.FormatInt(n, 10)
	}
	return map[string]string{"io.max": fmt.Sprintf("%s wbps=%s rbps=%s", device, bound(writes), bound(reads))}
}

func TestLimitLines(t *testing.T) {
	for _, tc := range []struct {
		v2            bool
		writes, reads int64
		name, want    string
	}{
		{false, 100e6, 0, "blkio.throttle.write_bps_device", "7:3 100000000"},
		{false, 100e6, 0, "blkio.throttle.read_bps_device", "7:3 0"},
		{true, 100e6, 200e6, "io.max", "7:3 wbps=100000000 rbps=200000000"},
		{true, 0, 0, "io.max", "7:3 wbps=max rbps=max"},
	} {
		if got := limitLines(tc.v2, "7:3", tc.writes, tc.reads)[tc.name]; got != tc.want {
			t.Errorf("%+v: %q", tc, got)
		}
	}
}

// limitedDisk is a file system on a loop device whose blocks were all written before.
type limitedDisk struct {
	path   string // where it is mounted
	number string // of the device, 7:3
}

// newLimitedDisk mounts one until the test ends, and sets no limit yet.
func newLimitedDisk(ctx context.Context, t testing.TB, dir, name string, sizeBytes int64) *limitedDisk {
	t.Helper()
	try := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	v, err := harness.NewVolume(dir, name, sizeBytes)
	try(err)
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	var st unix.Stat_t
	try(unix.Stat(v.Path, &st))
	d := &limitedDisk{v.Path, fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))}
	device, err := os.Readlink("/sys/dev/block/" + d.number)
	try(err)
	out, err := exec.Command("losetup", "--direct-io=on", "/dev/"+filepath.Base(device)).CombinedOutput()
	if err != nil {
		t.Fatalf("no direct I/O: %v: %s", err, out)
	}
	all, err := os.Create(filepath.Join(v.Path, "all"))
	try(err)
	defer all.Close()
	for zeros := make([]byte, 1<<20); err == nil; _, err = all.Write(zeros) {
		try(ctx.Err())
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	try(errors.Join(all.Sync(), os.Remove(all.Name())))
	return d
}

// numberOf is a variable of the environment, a number above 0; usual: it is empty.
func numberOf(t testing.TB, variable string, usual int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%s is no number above 0", variable, text)
	}
	return n
}
