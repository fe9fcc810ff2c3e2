//go:build packages

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long a test waits for what should happen at once on a machine that has nothing else to do.
const patience = 90 * time.Second

// machine is a throw-away copy of this machine, which systemd-nspawn boots: an overlay over its root, with processes, a
// network of its own (loopback only), and a systemd that starts nothing but what a test tells it to. Nothing that
// happens in it changes this machine.
type machine struct {
	t     *testing.T
	dir   string // has the overlay and the log
	pid   int    // systemd's, seen from here
	netns int    // a file descriptor
	cmd   *exec.Cmd
	ended chan error
}

// bootScript mounts the overlay in a mount namespace of its own, and boots it in a cgroup of its own. Services of this
// machine are left out, and so are its generators of units.
const bootScript = `set -e
mount -t overlay overlay -o "lowerdir=/,upperdir=$DIR/upper,workdir=$DIR/work" "$DIR/root"
cd "$DIR/root"
rm -rf etc/systemd/system/*.wants usr/lib/systemd/system/*.wants usr/lib/systemd/system-generators/*
rm -rf var/lib/penstock etc/penstock usr/sbin/policy-rc.d # the last one forbids services in images of containers
rm -f var/lib/man-db/auto-update
echo force-unsafe-io >etc/dpkg/dpkg.cfg.d/penstock-test
systemd-id128 new >etc/machine-id # without one systemd would enable everything that is installed
cat >usr/lib/systemd/system/penstock-test.target <<UNIT
[Unit]
Requires=basic.target systemd-journald.service
After=basic.target
UNIT
for group in /sys/fs/cgroup/systemd /sys/fs/cgroup/unified /sys/fs/cgroup; do
	[ -e $group/cgroup.procs ] || continue
	mkdir -p $group/$GROUP
	echo $$ >$group/$GROUP/cgroup.procs
done
exec systemd-nspawn --quiet --directory=. --boot --register=no --keep-unit --link-journal=no --console=pipe \
	--private-network --bind-ro="$DIST:/packages" systemd.unit=penstock-test.target
`

// mustHaveMachine skips a test where no machine can be booted, and says why.
func mustHaveMachine(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("not run: installing packages on a copy of this machine needs root")
	}
	for _, program := range []string{"systemd-nspawn", "dpkg", "nsenter", "unshare"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("not run: %v (apt-get install systemd-container)", err)
		}
	}
	dir := t.TempDir()
	try := exec.Command("unshare", "--mount", "sh", "-c",
		`cd "$1" && mkdir u w r && mount -t overlay overlay -o lowerdir=/,upperdir=u,workdir=w r`, "sh", dir)
	if out, err := try.CombinedOutput(); err != nil {
		t.Skipf("not run: this machine may not mount an overlay over its root: %v: %s", err, out)
	}
}

// boot starts a machine that sees the packages of dist in /packages. It is gone at the end of the test.
func boot(t *testing.T, dist string) *machine {
	t.Helper()
	mustHaveMachine(t)
	m := &machine{t: t, dir: t.TempDir(), ended: make(chan error, 1)}
	for _, name := range []string{"upper", "work", "root"} {
		must(t, os.Mkdir(filepath.Join(m.dir, name), 0o755))
	}
	group := fmt.Sprintf("penstock-test-%d", os.Getpid())
	log, err := os.Create(filepath.Join(m.dir, "log"))
	must(t, err)
	defer log.Close()
	m.cmd = exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", bootScript)
	m.cmd.Env = append(os.Environ(), "DIR="+m.dir, "DIST="+dist, "GROUP="+group)
	m.cmd.Stdout, m.cmd.Stderr = log, log
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	started := make(chan error)
	go func() { // Pdeathsig comes when this thread ends
		runtime.LockOSThread()
		started <- m.cmd.Start()
		m.ended <- m.cmd.Wait()
	}()
	must(t, <-started)
	t.Cleanup(func() { m.halt(group) })
	m.await("systemd is up", func() bool {
		m.pid = childOf(m.cmd.Process.Pid)
		out, _ := m.try("systemctl is-system-running")
		return strings.HasPrefix(out, "running")
	})
	m.netns, err = unix.Open(fmt.Sprintf("/proc/%d/ns/net", m.pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must(t, err)
	return m
}

// halt ends the machine, and removes the cgroups that it leaves.
func (m *machine) halt(group string) {
	if m.t.Failed() {
		if m.pid != 0 {
			out, _ := m.try("journalctl --no-pager -u penstock | tail -40")
			m.t.Logf("the journal of penstock:\n%s", out)
		}
		log, _ := os.ReadFile(filepath.Join(m.dir, "log"))
		m.t.Logf("the machine's console:\n%s", log)
	}
	if m.netns != 0 {
		unix.Close(m.netns)
	}
	_ = m.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-m.ended:
	case <-time.After(patience):
		_ = syscall.Kill(m.pid, syscall.SIGKILL)
		_ = m.cmd.Process.Kill()
		<-m.ended
	}
	for _, top := range []string{"/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		_ = exec.Command("find", filepath.Join(top, group), "-depth", "-type", "d", "-exec", "rmdir", "{}", ";").Run()
	}
}

// childOf returns the process whose parent is pid, or 0.
func childOf(pid int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	first, _, _ := strings.Cut(string(text), " ")
	child, _ := strconv.Atoi(first)
	return child
}

// try runs a script in the machine and returns what it printed on both streams.
func (m *machine) try(script string) (string, error) {
	if m.pid == 0 {
		return "", errors.New("not booted")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nsenter", "-t", strconv.Itoa(m.pid), "-m", "-u", "-i", "-n", "-p", "-C",
		"env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "HOME=/root",
		"DEBIAN_FRONTEND=noninteractive", "TERM=dumb", "sh", "-c", "cd /root; "+script)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// run is try for what must succeed.
func (m *machine) run(script string) string {
	m.t.Helper()
	out, err := m.try(script)
	if err != nil {
		m.t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return out
}

// says fails the test if a script does not print want.
func (m *machine) says(script, want string) {
	m.t.Helper()
	if out, err := m.try(script); !strings.Contains(out, want) {
		m.t.Errorf("%s: %v, prints\n%s\nand not %q", script, err, out, want)
	}
}

func (m *machine) await(what string, is func() bool) {
	m.t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			m.t.Fatalf("waited %v until %s", patience, what)
		}
	}
}

// client returns an HTTP client whose connections begin in the machine's network.
func (m *machine) client() *http.Client {
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		type result struct {
			conn net.Conn
			err  error
		}
		done := make(chan result, 1)
		go func() { // its thread stays in the machine's network, and ends with this goroutine
			runtime.LockOSThread()
			if err := unix.Setns(m.netns, unix.CLONE_NEWNET); err != nil {
				done <- result{err: err}
				return
			}
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			done <- result{conn, err}
		}()
		r := <-done
		return r.conn, r.err
	}
	return &http.Client{Transport: &http.Transport{DialContext: dial}, Timeout: 30 * time.Second}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
