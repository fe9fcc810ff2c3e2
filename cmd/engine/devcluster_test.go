package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/devcluster"
	"penstock/cmd/engine/internal/settings"
	"penstock/internal/cluster/admin"
	"penstock/tests/support/patience"
	"penstock/tests/support/porttest"
)

// standInEnv makes the test binary run as the engine program, except that its command serve is a stand-in that stores
// nothing. So the processes in these tests are real, and the tests check how they are started, watched and ended.
const standInEnv = "TEST_STAND_IN"

// Values of standInEnv.
const (
	standIns  = "1"
	realNodes = "no" // the real serve
)

func init() {
	if os.Getenv(standInEnv) == "" {
		return
	}
	if os.Args[1] == "serve" && os.Getenv(standInEnv) == standIns {
		os.Exit(standIn(os.Args[2:]))
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// Files in a stand-in's data directory that make it misbehave.
const (
	standInFails    = "fails"    // exits at once, as if it could not use its directory
	standInStubborn = "stubborn" // ignores SIGTERM
	standInForeign  = "foreign"  // answers on its port like another program
)

func standIn(args []string) int {
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	c := settings.New(flags)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	if err := flags.Parse(args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return cli.ExitUsage
	}
	told := func(name string) bool {
		_, err := os.Stat(filepath.Join(c.Node.Engine.DataPath, name))
		return err == nil
	}
	if told(standInFails) {
		fmt.Fprintln(os.Stderr, "starting\npenstock: the data directory is on fire")
		return cli.ExitData
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	mux := http.NewServeMux()
	mux.HandleFunc("/ping", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/cluster/status", func(w http.ResponseWriter, _ *http.Request) {
		st := admin.Status{Node: c.Node.Engine.NodeID, Joined: true}
		if told(standInForeign) {
			st.Node = "somebody"
		}
		_ = json.NewEncoder(w).Encode(&st)
	})
	l, err := net.Listen("tcp", c.Node.NSQ.HTTPAddress)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return cli.ExitAddress
	}
	go func() { _ = http.Serve(l, mux) }()
	for sig := range signals {
		fmt.Fprintln(os.Stderr, "signal:", sig)
		if !told(standInStubborn) {
			return 0
		}
	}
	return cli.ExitOther
}

// devProcess is a running `penstock dev-cluster`.
type devProcess struct {
	t      *testing.T
	cmd    *exec.Cmd
	dir    string
	lines  chan devcluster.Node // the lines of stdout
	stderr *logBuffer
	exited chan error
}

func devCommand(args ...string) *exec.Cmd { return devCommandAs(standIns, args...) }

func devCommandAs(nodes string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), standInEnv+"="+nodes)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its own process group, as a shell would give it
	return cmd
}

// startDev runs `penstock dev-cluster` in dir on free ports.
func startDev(t *testing.T, dir string, args ...string) *devProcess {
	t.Helper()
	return startDevAs(t, standIns, dir, args...)
}

func startDevAs(t *testing.T, nodes, dir string, args ...string) *devProcess {
	t.Helper()
	p := &devProcess{
		t: t, dir: dir, lines: make(chan devcluster.Node, 64), stderr: &logBuffer{more: make(chan struct{}, 1)},
		exited: make(chan error, 1),
	}
	p.cmd = devCommandAs(nodes, append([]string{
		"dev-cluster", "--data-path", dir, "--base-port", fmt.Sprint(freeBasePort(t)),
	}, args...)...)
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stderr = p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() }) // also kills the nodes
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			var n devcluster.Node
			if err := json.Unmarshal(s.Bytes(), &n); err != nil {
				t.Errorf("stdout has %q: %v", s.Text(), err)
			}
			p.lines <- n
		}
	}()
	return p
}

// ready waits for the lines of n nodes.
func (p *devProcess) ready(n int) map[string]devcluster.Node {
	p.t.Helper()
	nodes := map[string]devcluster.Node{}
	deadline := time.After(patience.Or(120 * time.Second))
	for len(nodes) < n {
		select {
		case l, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("it ended:\n%s", p.stderr)
			}
			nodes[l.Node] = l
		case <-deadline:
			p.t.Fatalf("%d of %d nodes are ready:\n%s", len(nodes), n, p.stderr)
		}
	}
	return nodes
}

// wait returns the exit code. Only after that are the lines of stdout complete.
func (p *devProcess) wait() int {
	p.t.Helper()
	deadline := time.After(patience.Or(90 * time.Second))
	for open := true; open; {
		select {
		case _, open = <-p.lines:
		case <-deadline:
			p.t.Fatalf("it does not end:\n%s", p.stderr)
		}
	}
	_ = p.cmd.Wait()
	return p.cmd.ProcessState.ExitCode()
}

func (p *devProcess) signal(pid int, sig syscall.Signal) {
	p.t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		p.t.Fatal(err)
	}
}

// says waits for a text on stderr.
func (p *devProcess) says(text string) {
	p.t.Helper()
	deadline := time.After(patience.Or(90 * time.Second))
	for !strings.Contains(p.stderr.String(), text) {
		select {
		case <-p.stderr.more:
		case <-deadline:
			p.t.Fatalf("stderr does not say %q:\n%s", text, p.stderr)
		}
	}
}

func (p *devProcess) log(node string) string {
	p.t.Helper()
	b, err := os.ReadFile(filepath.Join(p.dir, node+".log"))
	if err != nil {
		p.t.Fatal(err)
	}
	return string(b)
}

// tell creates a file in the data directory of a stand-in.
func tell(t *testing.T, dir, node, what string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, node), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, node, what), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// freeBasePort returns a base port for three nodes.
func freeBasePort(t *testing.T) int {
	t.Helper()
	base, err := porttest.Range(devcluster.PortStep * 3)
	must(t, err)
	return base
}

// processes watches processes that are not children of this one.
type processes struct {
	t   *testing.T
	fds []int
}

func watchProcesses(t *testing.T, nodes map[string]devcluster.Node) *processes {
	t.Helper()
	p := &processes{t: t}
	for _, n := range nodes {
		fd, err := unix.PidfdOpen(n.PID, 0)
		if err != nil {
			t.Fatalf("node %s (pid %d): %v", n.Node, n.PID, err)
		}
		p.fds = append(p.fds, fd)
	}
	t.Cleanup(func() {
		for _, fd := range p.fds {
			unix.Close(fd)
		}
	})
	return p
}

// ended waits until all processes have ended.
func (p *processes) ended() {
	p.t.Helper()
	for _, fd := range p.fds {
		for {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 30_000)
			if err == unix.EINTR {
				continue
			}
			if n != 1 || err != nil {
				p.t.Fatalf("a node is still there (%v)", err)
			}
			break
		}
	}
}

func (p *processes) running() (count int) {
	for _, fd := range p.fds {
		if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0); err == nil && n == 0 {
			count++
		}
	}
	return count
}

func TestDevClusterRuns(t *testing.T) {
	t.Parallel()
	p := startDev(t, t.TempDir())
	nodes := p.ready(3)
	base := 0
	if _, err := fmt.Sscanf(nodes["n1"].NSQ, "127.0.0.1:%d", &base); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"n1", "n2", "n3"} {
		n := nodes[name]
		for j, got := range []string{n.NSQ, n.HTTP, n.Lookup} {
			if want := fmt.Sprintf("127.0.0.1:%d", base+10*i+j); got != want {
				t.Errorf("%s: address %d is %s, want %s", name, j, got, want)
			}
		}
	}
	children := watchProcesses(t, nodes)
	p.signal(p.cmd.Process.Pid, syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d:\n%s", code, p.stderr)
	}
	children.ended()
	for name := range nodes {
		if log := p.log(name); log != "signal: terminated\n" {
			t.Errorf("%s logged %q, want one SIGTERM", name, log)
		}
	}
	if s := p.stderr.String(); s != "" {
		t.Errorf("stderr: %s", s)
	}
}

// Ctrl-C sends SIGINT to the whole foreground process group. A node that got it in addition to dev-cluster's SIGTERM
// would count two signals and end at once.
func TestDevClusterInterrupt(t *testing.T) {
	t.Parallel()
	p := startDev(t, t.TempDir())
	nodes := p.ready(3)
	children := watchProcesses(t, nodes)
	p.signal(-p.cmd.Process.Pid, syscall.SIGINT)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d:\n%s", code, p.stderr)
	}
	children.ended()
	for name := range nodes {
		if log := p.log(name); log != "signal: terminated\n" {
			t.Errorf("%s logged %q, want one SIGTERM", name, log)
		}
	}
}

// kill -9 of dev-cluster leaves no orphans, so the next start finds its ports free.
func TestDevClusterKilled(t *testing.T) {
	t.Parallel()
	p := startDev(t, t.TempDir(), "--restart")
	nodes := p.ready(3)
	p.signal(nodes["n2"].PID, syscall.SIGKILL) // a node that was started again must end, too
	again := p.ready(1)
	if again["n2"].PID == nodes["n2"].PID {
		t.Errorf("the line of the new n2: %+v", again)
	}
	nodes["n2"] = again["n2"]
	children := watchProcesses(t, nodes)
	p.signal(p.cmd.Process.Pid, syscall.SIGKILL)
	children.ended()
}

func TestDevClusterNodeKilled(t *testing.T) {
	t.Parallel()
	p := startDev(t, t.TempDir())
	nodes := p.ready(3)
	p.signal(nodes["n2"].PID, syscall.SIGKILL)
	p.says(fmt.Sprintf("node n2 (pid %d) ended: signal: killed", nodes["n2"].PID))

	// Its args start the node again by hand.
	hand := devCommand(nodes["n2"].Args...)
	if err := hand.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hand.Process.Kill() })
	for deadline := time.Now().Add(30 * time.Second); ; {
		var st admin.Status
		_, text := ask(t, nodes["n2"].HTTP, "/cluster/status")
		if json.Unmarshal([]byte(text), &st) == nil && st.Joined && st.Node == "n2" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("started by hand it is not ready")
		}
	}

	// The restarted node no longer belongs to dev-cluster; the others still do.
	delete(nodes, "n2")
	children := watchProcesses(t, nodes)
	if n := children.running(); n != 2 {
		t.Errorf("%d of the 2 others run", n)
	}
	p.signal(p.cmd.Process.Pid, syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	children.ended()
	if err := hand.Process.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("the node that was started by hand is gone: %v", err)
	}
	_ = hand.Wait()
}

// When all nodes have been killed by hand, dev-cluster waits until it is told to stop.
func TestDevClusterAllNodesKilled(t *testing.T) {
	t.Parallel()
	p := startDev(t, t.TempDir(), "--nodes", "2")
	for _, n := range p.ready(2) {
		p.signal(n.PID, syscall.SIGKILL)
		p.says(fmt.Sprintf("node %s (pid %d) ended", n.Node, n.PID))
	}
	p.signal(p.cmd.Process.Pid, syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestDevClusterRestart(t *testing.T) {
	t.Parallel()
	p := startDev(t, t.TempDir(), "--restart", "--nodes", "1")
	n := p.ready(1)["n1"]
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		p.signal(n.PID, sig)
		again := p.ready(1)["n1"]
		if again.PID == n.PID || fmt.Sprint(again.Args) != fmt.Sprint(n.Args) {
			t.Errorf("started again: %+v, before: %+v", again, n)
		}
		n = again
	}
	p.signal(p.cmd.Process.Pid, syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// A node that was suspended with SIGSTOP is resumed and can stop in order. One that ignores SIGTERM is killed.
func TestDevClusterDifficultNodes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tell(t, dir, "n1", standInStubborn)
	p := startDev(t, dir, "--nodes", "2", "--", "--shutdown-timeout", "1ms")
	nodes := p.ready(2)
	children := watchProcesses(t, nodes)
	p.signal(nodes["n2"].PID, syscall.SIGSTOP)
	p.signal(p.cmd.Process.Pid, syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	children.ended()
	if log := p.log("n2"); log != "signal: terminated\n" {
		t.Errorf("n2 logged %q", log)
	}
	if s := p.stderr.String(); !strings.Contains(s, "node n1 (pid ") || strings.Contains(s, "node n2") {
		t.Errorf("stderr: %s", s)
	}
}

// A node that cannot start ends the whole start, with the node's exit code and reason. --restart must not retry for
// ever.
func TestDevClusterNodeFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tell(t, dir, "n3", standInFails)
	p := startDev(t, dir, "--restart")
	if code := p.wait(); code != cli.ExitData {
		t.Errorf("exit code %d", code)
	}
	if s := p.stderr.String(); !strings.HasPrefix(s, "penstock: node n3 ended before it was ready: exit status 3; its "+
		"log ends with \"penstock: the data directory is on fire\"") {
		t.Errorf("stderr: %s", s)
	}
}

// Nodes that ask for tokens say without one only whether they are ready.
func TestDevClusterWithTokens(t *testing.T) {
	t.Setenv("PENSTOCK_TOKEN", "") // no t.Parallel: the nodes inherit it
	dir := t.TempDir()
	tokens := filepath.Join(dir, "tokens.toml")
	must(t, os.WriteFile(tokens, fmt.Appendf(nil, "[[token]]\nname = \"ops\"\nsha256 = \"%x\"\n[[token.grant]]\n"+
		"topics = [\"*\"]\npermissions = [\"admin\"]\n", sha256.Sum256([]byte("s3cret"))), 0o600))
	p := startDevAs(t, realNodes, dir, "--nodes", "1", "--start-timeout", "30s", "--", "--auth-file", tokens)
	n := p.ready(1)["n1"]
	if log := p.log("n1"); strings.Count(log, "AUTH_FIRST") > 1 {
		t.Errorf("it goes on to ask for what it may not see:\n%s", log)
	}
	t.Setenv("PENSTOCK_SERVER", n.HTTP)
	t.Setenv("PENSTOCK_TOKEN", "s3cret")
	steer(t, "cluster", "health", "--wait", "10s")
	p.signal(p.cmd.Process.Pid, syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// Another program that answers on a node's port does not count as the node being ready.
func TestDevClusterNeverReady(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tell(t, dir, "n2", standInForeign)
	p := startDev(t, dir, "--nodes", "2", "--start-timeout", "5s") // enough for n1 on a busy machine
	if code := p.wait(); code != cli.ExitOther {
		t.Errorf("exit code %d", code)
	}
	if s := p.stderr.String(); !strings.Contains(s, "not ready within 5s: node n2; the logs") {
		t.Errorf("stderr: %s", s)
	}
	if log := p.log("n2"); log != "signal: terminated\n" {
		t.Errorf("n2 logged %q", log)
	}
}

func TestDevClusterPortTaken(t *testing.T) {
	t.Parallel()
	base := freeBasePort(t)
	for _, port := range []int{base, base + 26} { // NSQ of n1, etcd of n3
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(t.TempDir(), "cluster")
		cmd := devCommand("dev-cluster", "--data-path", dir, "--base-port", fmt.Sprint(base))
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		_ = cmd.Run()
		if code := cmd.ProcessState.ExitCode(); code != cli.ExitAddress ||
			!strings.Contains(stderr.String(), fmt.Sprintf("the port %d (", port)) {
			t.Errorf("exit code %d, %s", code, &stderr)
		}
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("something was started: %v", err)
		}
		l.Close()
	}
}
