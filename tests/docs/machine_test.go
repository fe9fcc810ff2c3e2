//go:build docs

package docs

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// patience is how long a command may take, and how long one that stays may take to print what the document shows.
	patience = 5 * time.Minute
	// maxOutputBytes is how much of a command's output is kept; the rest is an error.
	maxOutputBytes = 1 << 20
)

// A machine is a namespace of each kind, with a file system that is a throw-away copy of this machine's.
type machine struct {
	name      string
	first     *exec.Cmd // unshare; its only child is the machine's first process
	pid       string    // of that process, seen from outside
	terminal  *terminal
	remaining []*terminal // with commands that stay
}

// A kit is what every machine gets.
type kit struct {
	sources string   // the top of the tree
	tools   string   // directory of NSQ's tools
	kept    []string // directories of this machine that machines share, because filling them takes long
}

func newKit(t *testing.T) kit {
	t.Helper()
	k := kit{sources: mustAbs(t, root), tools: t.TempDir()}
	out, err := exec.Command("go", "env", "GOCACHE", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	k.kept = strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	apps := "github.com/nsqio/nsq/apps/"
	build := exec.Command("go", "build", "-o", k.tools+"/", apps+"nsq_tail", apps+"to_nsq", apps+"nsq_stat")
	build.Dir = filepath.Join(root, "tests/clients/nsqio")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building NSQ's tools: %v\n%s", err, out)
	}
	fetchModules(t, k.sources)
	return k
}

// fetchModules brings into this machine's cache, which the machines share, what a program that imports the engine asks
// for: `go mod tidy` also wants the modules that tests of modules import, and the sums of all.
func fetchModules(t *testing.T, sources string) {
	t.Helper()
	dir := t.TempDir()
	program := "package main\n\nimport _ \"penstock/engine\"\n\nfunc main() {}\n"
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"init", "example.org/program"},
		{"edit", "-require=penstock@v0.0.0", "-replace=penstock=" + sources},
		{"tidy"},
	} {
		cmd := exec.Command("go", append([]string{"mod"}, args...)...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go mod %s: %v\n%s", args[0], err, out)
		}
	}
}

func startMachine(t *testing.T, name, shared, begin string, k kit) *machine {
	t.Helper()
	args := []string{
		"--net", "--mount", "--pid", "--uts", "--fork", "--kill-child=KILL", "bash", "machine.sh",
		t.TempDir(), k.sources, shared, k.tools,
	}
	m := &machine{name: name, first: exec.Command("unshare", append(args, k.kept...)...)}
	var log bytes.Buffer
	m.first.Stderr = &log
	out, err := m.first.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.first.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = m.first.Process.Kill() // and with it all processes of the machine
		_ = m.first.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		_ = m.first.Process.Kill()
		_ = m.first.Wait()
		t.Fatalf("no machine could be made: %v\n%s", err, &log)
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", m.first.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	m.pid = strings.TrimSpace(string(children))
	if name != "" {
		m.must(t, "hostname", name)
	}
	m.terminal = m.open(t, begin)
	return m
}

// inside is a command that runs in the machine.
func (m *machine) inside(args ...string) *exec.Cmd {
	into := []string{"--target", m.pid, "--net", "--mount", "--pid", "--uts", "--root", "--wd", "--"}
	cmd := exec.Command("nsenter", append(into, args...)...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PENSTOCK_") && !strings.HasPrefix(v, "TEST_") && !strings.HasPrefix(v, "MAKE") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	// With -trimpath, programs in the sources are built of what make build has compiled elsewhere.
	cmd.Env = append(cmd.Env, "LC_ALL=C.UTF-8", "TERM=dumb", "no_proxy=*", "GOFLAGS=-trimpath -buildvcs=false")
	return cmd
}

func (m *machine) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := m.inside(args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %s: %v\n%s", m.name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// connect puts the machines on a network: a bridge in a namespace of its own, and an address of each.
func connect(t *testing.T, machines []*machine, addresses []string, k kit) {
	t.Helper()
	hub := startMachine(t, "hub", t.TempDir(), "/", k)
	hub.must(t, "ip", "link", "add", "br0", "type", "bridge")
	hub.must(t, "ip", "link", "set", "br0", "up")
	for i, m := range machines {
		port := fmt.Sprintf("port%d", i)
		ip := func(at *machine, args string) {
			t.Helper()
			out, err := exec.Command("nsenter", append([]string{"--target", at.pid, "--net", "ip"}, strings.Fields(args)...)...).
				CombinedOutput()
			if err != nil {
				t.Fatalf("ip %s: %v\n%s", args, err, out)
			}
		}
		ip(hub, "link add "+port+" type veth peer name eth0 netns "+m.pid)
		ip(hub, "link set "+port+" master br0 up")
		ip(m, "addr add "+addresses[i]+"/24 dev eth0")
		ip(m, "link set eth0 up")
	}
}

func mustAbs(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}

var errEnded = errors.New("the shell has ended")

// A terminal is a shell of a machine that runs one command after the other.
type terminal struct {
	m     *machine
	pid   string         // of the shell, seen from inside
	give  io.WriteCloser // commands, each ended by a zero byte
	mu    sync.Mutex     // guards out, over and ended
	out   []byte         // of the running command
	over  bool           // more than maxOutputBytes came
	ended bool           // the shell has
	grown chan struct{}  // out has grown, or the shell has ended
}

// loop is the shell's program. A byte 1 and an exit code and a byte 1 end the output of a command.
const loop = `set -m; exec {commands}<&3 3<&-; echo $$
while IFS= read -r -d '' -u $commands command; do eval "$command" </dev/null; printf '\1%d\1' $?; done`

// open starts a terminal in a directory.
func (m *machine) open(t *testing.T, dir string) *terminal {
	t.Helper()
	commands, give, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer commands.Close()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	x := &terminal{m: m, give: give, grown: make(chan struct{}, 1)}
	cmd := m.inside("bash", "-c", `cd -- "$1" || exit; `+loop, "bash", dir)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = in, in, []*os.File{commands}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	reader := bufio.NewReader(out)
	line, err := reader.ReadString('\n')
	if x.pid = strings.TrimSpace(line); err != nil {
		t.Fatalf("%s: no shell: %v", m.name, err)
	}
	read := make(chan struct{})
	go func() { x.read(reader); close(read) }()
	t.Cleanup(func() { // runs before the machine's own
		give.Close()
		_ = cmd.Process.Kill()
		_ = m.first.Process.Kill()
		_ = cmd.Wait()
		<-read
		out.Close()
	})
	return x
}

// read collects what the shell prints, until it ends.
func (x *terminal) read(from io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		x.mu.Lock()
		if len(x.out)+n <= maxOutputBytes {
			x.out = append(x.out, buf[:n]...)
		} else {
			x.over = true
		}
		x.ended = err != nil
		x.mu.Unlock()
		select {
		case x.grown <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

// start gives the shell a command.
func (x *terminal) start(command string) error {
	x.mu.Lock()
	x.out = x.out[:0]
	x.mu.Unlock()
	_, err := io.WriteString(x.give, command+"\x00")
	return err
}

// wait returns the output of the running command when it ends, with its exit code, or earlier, with -1, when enough
// says that the output is enough.
func (x *terminal) wait(enough func(string) bool) (string, int, error) {
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		x.mu.Lock()
		over, ended := x.over, x.ended // looked at first: all that it printed is there
		x.mu.Unlock()
		out, code, ok := x.finished()
		if ok {
			return out, code, nil
		}
		switch {
		case over:
			return out, -1, fmt.Errorf("it printed more than %d bytes", maxOutputBytes)
		case enough != nil && enough(out):
			return out, -1, nil
		case ended:
			return out, -1, errEnded
		}
		select {
		case <-x.grown:
		case <-late.C:
			return out, -1, fmt.Errorf("it did not end, or print that, within %s", patience)
		}
	}
}

// finished says how the running command ended, if it has.
func (x *terminal) finished() (out string, code int, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	text, rest, ok := strings.Cut(string(x.out), "\x01")
	if !ok || !strings.HasSuffix(rest, "\x01") {
		return string(x.out), -1, false
	}
	code, err := strconv.Atoi(strings.TrimSuffix(rest, "\x01"))
	return text, code, err == nil
}

// interrupt ends the command in the foreground, as ctrl-C does. The shell itself may end with it. That the command has
// failed before is an error, unless somebody has killed it.
func (x *terminal) interrupt() (string, error) {
	if out, code, ok := x.finished(); ok {
		if code != 0 && code != 128+int(syscall.SIGKILL) {
			return out, fmt.Errorf("it ended with %d", code)
		}
		return out, nil
	}
	script := fmt.Sprintf("for job in $(pgrep -P %s); do kill -INT -- -$job; done", x.pid)
	if out, err := x.m.inside("bash", "-c", script).CombinedOutput(); err != nil {
		return string(out), err
	}
	out, code, err := x.wait(nil)
	switch {
	case errors.Is(err, errEnded):
		return out, nil
	case err == nil && code != 0 && code != 128+int(syscall.SIGINT):
		return out, fmt.Errorf("it ended with %d", code)
	}
	return out, err
}

// directory returns where the terminal is.
func (x *terminal) directory(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(x.m.must(t, "readlink", "/proc/"+x.pid+"/cwd"))
}

// needRoot skips a test where no machine can be made.
func needRoot(t *testing.T) {
	t.Helper()
	if syscall.Geteuid() != 0 {
		t.Skip("the documents' machines are namespaces and mounts, which need root")
	}
	for _, tool := range []string{"unshare", "nsenter", "ip", "pgrep"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatal(err)
		}
	}
}
