package etcd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"penstock/internal/cluster/kv"
)

// childVariable makes the test binary a process with one member; its value is the member's options as JSON.
const childVariable = "TEST_ETCD_MEMBER"

// runChild says "ready" on its standard output and lives until its standard input ends.
func runChild(options string) int {
	var o MemberOptions
	if err := json.Unmarshal([]byte(options), &o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	o.Fatal = func(err error) {
		fmt.Fprintln(os.Stderr, "last words:", err)
		os.Exit(3)
	}
	m, err := Start(o)
	if err == nil {
		err = m.Ready(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := m.Close(); err != nil {
		return 1
	}
	return 0
}

// child is a member in a process of its own.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	out   *bufio.Reader
	log   string // name of the file with its standard error
}

func startChild(t *testing.T, o MemberOptions) *child {
	t.Helper()
	return startChildWith(t, o, "")
}

// startChildWith starts it after a command of the shell.
func startChildWith(t *testing.T, o MemberOptions, first string) *child {
	t.Helper()
	o.Log = nil
	options, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: exec.Command("/bin/sh", "-c", first+"\nexec \"$0\"", os.Args[0])}
	c.cmd.Env = append(os.Environ(), childVariable+"="+string(options))
	stdin, err1 := c.cmd.StdinPipe()
	stdout, err2 := c.cmd.StdoutPipe()
	log, err3 := os.Create(filepath.Join(t.TempDir(), "log"))
	if err1 != nil || err2 != nil || err3 != nil {
		t.Fatal(err1, err2, err3)
	}
	c.log = log.Name()
	c.cmd.Stderr, c.stdin, c.out = log, stdin, bufio.NewReader(stdout)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.kill()
		_ = log.Close()
		if said, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("process of %s:\n%s", o.Name, said)
		}
	})
	return c
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

func (c *child) ready(t *testing.T) {
	t.Helper()
	if line, err := c.out.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the process says %q, %v", line, err)
	}
}

// The leader is killed, then the next leader is frozen: the others go on within a few election timeouts, and a member
// that comes back catches up.
func TestLeaderIsKilledOrFrozen(t *testing.T) {
	c := newCluster(t, 3)
	children := make([]*child, 3)
	for i := range children {
		o := c.options(i)
		o.UnsafeNoFsync = false // for once with the real flushes
		children[i] = startChild(t, o)
	}
	for _, child := range children {
		child.ready(t)
	}
	s := c.dial(Options{}, 0, 1, 2)
	w := watch(t, s, "k/", 0)
	put(t, s, "k/0", "")

	leader := c.leader()
	children[leader].kill()
	began := time.Now()
	put(t, s, "k/1", "")
	t.Logf("after kill -9 of the leader a change took %v", time.Since(began))
	o := c.options(leader)
	o.UnsafeNoFsync = false
	children[leader] = startChild(t, o)
	children[leader].ready(t)

	leader = c.leader()
	first := c.dial(Options{}, leader, (leader+1)%3) // prefers the member that will freeze
	if err := children[leader].cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	put(t, first, "k/2", "")
	t.Logf("after SIGSTOP of the leader a change took %v", time.Since(began))
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("a client of the frozen leader waited %v", took)
	}
	if err := children[leader].cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	put(t, first, "k/3", "")
	seen := make(map[string]bool)
	for count := 4; len(seen) < 4; count++ {
		// A put whose answer was lost is there twice, the second time perhaps after later puts.
		for _, e := range w.waitFor(t, count) {
			seen[e] = true
		}
	}
	for _, child := range children {
		_ = child.stdin.Close()
		if err := child.cmd.Wait(); err != nil {
			t.Errorf("a member's process ends with %v", err)
		}
	}
}

// Nobody is asked, so an older member starts, and etcd panics on a goroutine of its own when the leader tells it of
// entries that it had acknowledged. The process ends with one sentence in place of that.
func TestPanicOfOlderMember(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	leader := c.leader()
	older := (leader + 1) % 3
	s := c.dial(Options{}, leader)
	put(t, s, "k/a", "before")
	c.stop(older)
	o := c.options(older)
	old := o.Dir + ".old"
	if err := os.CopyFS(old, os.DirFS(o.Dir)); err != nil {
		t.Fatal(err)
	}
	c.start(older)
	c.ready(older)
	put(t, s, "k/a", "later")
	put(t, c.dial(Options{}, older), "k/b", "later") // it has acknowledged the entry before this one
	if leader != c.leader() {
		t.Skip("another member leads by now, and has not heard of what the older one acknowledged")
	}
	c.stop(older)
	if err := errors.Join(os.RemoveAll(o.Dir), os.Rename(old, o.Dir)); err != nil {
		t.Fatal(err)
	}
	child := startChild(t, o)
	_, _ = child.out.ReadString('\n') // it may be ready before it hears of the entries
	ended := make(chan error, 1)
	go func() { ended <- child.cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("the process goes on")
	}
	said, err := os.ReadFile(child.log)
	if err != nil {
		t.Fatal(err)
	}
	text := string(said)
	code := child.cmd.ProcessState.ExitCode()
	if code != 3 || !strings.Contains(text, "last words: "+ErrDirectory.Error()) ||
		!strings.Contains(text, "is out of range") || strings.Contains(text, "goroutine ") {
		t.Errorf("it ends with %d and says:\n%s", code, text)
	}
}

// leader returns the number of the member that leads.
func (c *cluster) leader() int {
	c.t.Helper()
	ctx := within(c.t, enough)
	for {
		for i, v := range c.voters {
			client, err := clientv3.New(clientv3.Config{Endpoints: []string{v.Client}})
			if err != nil {
				c.t.Fatal(err)
			}
			attempt, cancel := context.WithTimeout(ctx, time.Second)
			status, err := client.Status(attempt, v.Client)
			cancel()
			_ = client.Close()
			if err == nil && status.Leader == status.Header.MemberId {
				return i
			}
		}
		if !pause(ctx, probePause) {
			c.t.Fatal("nobody leads")
		}
	}
}

var _ kv.Store = (*store)(nil)

// inChild runs the calling test in a process of its own, with a variable.
func inChild(t *testing.T, variable string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), variable)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
