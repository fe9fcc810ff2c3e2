package harness

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"penstock/tests/support/porttest"
)

// endTimeout bounds the wait for a killed process: one that waits for a slow disk takes its time.
const (
	endTimeout = 10 * time.Second
	readyPoll  = 20 * time.Millisecond
)

// Node is one engine. Its methods are safe for concurrent use.
type Node struct {
	Name      string
	NSQ       string // HOST:PORT, as all of them
	HTTP      string
	Lookup    string
	Native    string
	Args      []string // what starts it again
	Env       []string // more of its environment at the next start, NAME=VALUE
	DataPath  string
	Namespace string // path of its network namespace; empty: this process's
	LogPath   string

	binary string
	mu     sync.Mutex
	proc   *process
	paused bool
}

// held returns the process if it runs.
func (n *Node) held() (*process, error) {
	if n.proc == nil {
		return nil, fmt.Errorf("node %s does not run", n.Name)
	}
	return n.proc, nil
}

// Use makes another program the node's, from its next start on.
func (n *Node) Use(binary string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.binary = binary
}

// Running says whether the node's process is alive, stopped ones included.
func (n *Node) Running() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.proc == nil {
		return false
	}
	ended, err := n.proc.wait(0)
	return err == nil && !ended
}

// Paused says that Pause stopped it.
func (n *Node) Paused() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.paused
}

// PID is the process's number; 0: it does not run.
func (n *Node) PID() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.proc == nil {
		return 0
	}
	return n.proc.pid
}

// Kill ends the process with SIGKILL and returns when it is gone.
func (n *Node) Kill() error { return n.end(syscall.SIGKILL, endTimeout) }

// Terminate asks the process to end and returns when it is gone.
func (n *Node) Terminate(timeout time.Duration) error { return n.end(syscall.SIGTERM, timeout) }

func (n *Node) end(s syscall.Signal, timeout time.Duration) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	p, err := n.held()
	if err != nil {
		return err
	}
	if err := p.signal(s); err != nil {
		return err
	}
	ended, err := p.wait(timeout)
	if err != nil {
		return err
	}
	if !ended {
		return fmt.Errorf("node %s, process %d, did not end within %v after %v", n.Name, p.pid, timeout, s)
	}
	n.proc, n.paused = nil, false
	return p.close()
}

// Pause stops the process where it is (SIGSTOP); Resume lets it go on.
func (n *Node) Pause() error { return n.stop(syscall.SIGSTOP, true) }

// Resume ends Pause.
func (n *Node) Resume() error { return n.stop(syscall.SIGCONT, false) }

func (n *Node) stop(s syscall.Signal, paused bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	p, err := n.held()
	if err != nil {
		return err
	}
	n.paused = paused
	return p.signal(s)
}

// Start runs the node again, or the first time, and returns at once; Ready waits.
func (n *Node) Start() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.proc != nil {
		return fmt.Errorf("node %s runs already", n.Name)
	}
	log, err := os.OpenFile(n.LogPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(n.binary, n.Args...)
	if n.Namespace != "" { // nsenter replaces itself by the engine: the process is the engine's
		cmd = exec.Command("nsenter", append([]string{"--net=" + n.Namespace, n.binary}, n.Args...)...)
	}
	cmd.Env = append(os.Environ(), n.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	n.proc, err = start(cmd)
	return err
}

// Ready waits until the node answers. It fails early when the process ends.
func (n *Node) Ready(ctx context.Context) error {
	for {
		if n.answers(ctx) {
			return nil
		}
		if !n.Running() {
			return fmt.Errorf("node %s ended:\n%s", n.Name, n.LogTail(4<<10))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("node %s is not ready: %w\n%s", n.Name, ctx.Err(), n.LogTail(4<<10))
		case <-time.After(readyPoll):
		}
	}
}

func (n *Node) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.HTTP+"/ping", nil)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
}

// Ended takes note that a process ended by itself and returns its exit code; -1: a signal ended it. The node may be
// started again afterwards.
func (n *Node) Ended() (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p, err := n.held()
	if err != nil {
		return 0, err
	}
	code, err := p.exitCode()
	if err != nil {
		return 0, err
	}
	n.proc, n.paused = nil, false
	return code, p.close()
}

// Twin is a node with the name and the settings of this one, with other ports and perhaps another directory: somebody
// has copied it. It is not started, and a member of the embedded etcd must not have one.
func (n *Node) Twin(dataPath string) (*Node, error) {
	base, err := porttest.Range(5)
	if err != nil {
		return nil, err
	}
	address := func(i int) string { return "127.0.0.1:" + strconv.Itoa(base+i) }
	twin := &Node{
		Name: n.Name, NSQ: address(0), HTTP: address(1), Lookup: address(2), Native: address(3), binary: n.binary,
		DataPath: dataPath, Args: slices.Clone(n.Args), Env: n.Env, LogPath: n.LogPath + ".twin",
	}
	for flag, value := range map[string]string{
		"--data-path": twin.DataPath, "--nsq-address": twin.NSQ, "--http-address": twin.HTTP,
		"--lookup-address": twin.Lookup, "--native-address": twin.Native, "--cluster-address": address(4),
	} {
		if i := slices.Index(twin.Args, flag); i >= 0 && i+1 < len(twin.Args) {
			twin.Args[i+1] = value
		}
	}
	return twin, nil
}

// Restart is Start and Ready.
func (n *Node) Restart(ctx context.Context) error {
	if err := n.Start(); err != nil {
		return err
	}
	return n.Ready(ctx)
}

// Wipe removes everything that a stopped node stored: its disk was replaced.
func (n *Node) Wipe() error {
	if n.Running() {
		return fmt.Errorf("node %s runs: its data stays", n.Name)
	}
	entries, err := os.ReadDir(n.DataPath)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries { // not the directory: it may be a mount
		if e.Name() != "lost+found" {
			errs = append(errs, os.RemoveAll(filepath.Join(n.DataPath, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// LogTail is the end of the node's log.
func (n *Node) LogTail(bytes int64) string { return tail(n.LogPath, bytes) }
