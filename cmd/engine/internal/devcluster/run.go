package devcluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"penstock/cmd/engine/internal/cli"
	"penstock/internal/cluster/admin"
)

const (
	readyPoll    = 50 * time.Millisecond
	readyTimeout = 2 * time.Second // for one request
	// A node that keeps ending is started again after a pause, which doubles from firstPause to lastPause. After
	// a node has run for steadyAfter, its pause starts over.
	firstPause  = 200 * time.Millisecond
	lastPause   = 10 * time.Second
	steadyAfter = 30 * time.Second
	// logTailBytes is how much of the end of a log is read to find out why a node did not start.
	logTailBytes = 4 << 10
)

// nodeRunner runs nodes as child processes. One goroutine (keep) runs and watches each node, and the goroutine starter
// creates all processes.
type nodeRunner struct {
	o      *Options
	exe    string
	starts chan startRequest

	mu      sync.Mutex // guards the fields below, and keeps lines whole
	stdout  io.Writer
	stderr  io.Writer
	waiting []string // nodes that have not been ready yet
}

type startRequest struct {
	cmd  *exec.Cmd
	done chan error
}

func newNodeRunner(o *Options, exe string, stdout, stderr io.Writer) *nodeRunner {
	return &nodeRunner{
		o: o, exe: exe, stdout: stdout, stderr: stderr, starts: make(chan startRequest),
	}
}

// run starts all nodes, waits until all of them have been ready once, and then until ctx ends.
func (d *nodeRunner) run(ctx context.Context, nodes []*Node) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go d.starter()
	defer close(d.starts) // after the last node has ended: see starter

	for _, n := range nodes {
		d.waiting = append(d.waiting, n.Node)
	}
	late := time.AfterFunc(d.o.startTimeout, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		cancel(cli.Fail(cli.ExitOther, fmt.Errorf(
			"not ready within %v: node %s; the logs are beside the nodes' data in %s; all nodes were stopped",
			d.o.startTimeout, strings.Join(d.waiting, ", "), d.o.DataPath)))
	})
	defer late.Stop()
	var watched, starting sync.WaitGroup
	for _, n := range nodes {
		starting.Add(1)
		watched.Go(func() {
			ready := sync.OnceFunc(starting.Done)
			defer ready()
			if err := d.keep(ctx, n, ready); err != nil {
				cancel(err)
			}
		})
	}
	starting.Wait()
	late.Stop()
	watched.Wait()
	<-ctx.Done() // even if all nodes have ended: they may be started again by hand
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// starter creates the processes on one thread, which lives as long as they do. The kernel kills a child with PDEATHSIG
// when the thread that created it ends, not only when the process does.
func (d *nodeRunner) starter() {
	runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
	for r := range d.starts {
		r.done <- r.cmd.Start()
	}
}

// start starts a node in its own process group, so that ctrl-C reaches only this process, which then stops the nodes in
// order. If ctrl-C reached a node, too, it would count as a second signal and end the node at once.
func (d *nodeRunner) start(n *Node) (*exec.Cmd, error) {
	log, err := os.OpenFile(n.logName, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, cli.Fail(cli.ExitData, fmt.Errorf("the log of node %s cannot be written: %w", n.Node, err))
	}
	defer log.Close()
	cmd := exec.Command(d.exe, n.Args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	r := startRequest{cmd, make(chan error, 1)}
	d.starts <- r
	if err := <-r.done; err != nil {
		return nil, cli.Fail(cli.ExitOther, fmt.Errorf("node %s cannot be started: %w", n.Node, err))
	}
	return cmd, nil
}

// keep runs one node until ctx ends, or until the node ends and is not to be started again. It calls ready when the
// node is ready for the first time. It returns an error if the node ends without ever having been ready.
func (d *nodeRunner) keep(ctx context.Context, n *Node, ready func()) error {
	pause, wasReady := firstPause, false
	for {
		began := time.Now()
		cmd, err := d.start(n)
		if err != nil {
			return err
		}
		said, err := d.watch(ctx, n, cmd, ready)
		wasReady = wasReady || said
		switch {
		case ctx.Err() != nil:
			return nil
		case !wasReady:
			return d.neverReady(n, cmd, err)
		}
		d.say("node %s (pid %d) ended: %s; its log is %s", n.Node, cmd.Process.Pid, ending(cmd), n.logName)
		if !d.o.restart {
			return nil
		}
		if time.Since(began) >= steadyAfter {
			pause = firstPause
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
		pause = min(2*pause, lastPause)
	}
}

// watch waits until the process has ended, and stops the process when ctx ends. It reports whether the node was ready.
func (d *nodeRunner) watch(ctx context.Context, n *Node, cmd *exec.Cmd, ready func()) (wasReady bool, err error) {
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	poll := time.NewTicker(readyPoll)
	defer poll.Stop()
	for {
		select {
		case err := <-ended:
			return wasReady, err
		case <-ctx.Done():
			return wasReady, d.stop(n, cmd, ended)
		case <-poll.C:
			if wasReady = d.isReady(ctx, n); wasReady {
				poll.Stop()
				d.announce(n, cmd.Process.Pid)
				ready()
			}
		}
	}
}

// stop ends a process. The node gets limited time to finish pending work. SIGCONT is sent in case somebody has stopped
// the process.
func (d *nodeRunner) stop(n *Node, cmd *exec.Cmd, ended <-chan error) error {
	_ = cmd.Process.Signal(syscall.SIGTERM) // an error means that the process has ended, and then ended says so, too
	_ = cmd.Process.Signal(syscall.SIGCONT)
	select {
	case err := <-ended:
		return err
	case <-time.After(d.o.stopTimeout):
		d.say("node %s (pid %d) did not stop within %v and is killed", n.Node, cmd.Process.Pid, d.o.stopTimeout)
		_ = cmd.Process.Kill()
		return <-ended
	}
}

// isReady asks the node itself, since it is not enough that something listens on its port. A node that does not say its
// name without a token is asked for that once: each refusal is in its audit trail.
func (d *nodeRunner) isReady(ctx context.Context, n *Node) bool {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	status, _, err := n.api().Exchange(ctx, http.MethodGet, "/ping", nil, nil)
	if err != nil || status != http.StatusOK {
		return false
	}
	if !n.guarded {
		status, data, err := n.api().Exchange(ctx, http.MethodGet, "/cluster/status", nil, nil)
		n.guarded = err == nil && (status == http.StatusUnauthorized || status == http.StatusForbidden)
		if !n.guarded {
			var st admin.Status
			return err == nil && json.Unmarshal(data, &st) == nil && st.Joined && st.Node == n.Node
		}
	}
	status, _, err = n.api().Exchange(ctx, http.MethodGet, "/readyz", nil, nil)
	return err == nil && status == http.StatusOK
}

// announce prints a line about a node that is ready: for people on a terminal, otherwise for programs.
func (d *nodeRunner) announce(n *Node, pid int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := len(d.waiting)
	d.waiting = slices.DeleteFunc(d.waiting, func(name string) bool { return name == n.Node })
	if d.o.asJSON || !cli.IsTerminal(d.stdout) {
		line := *n
		line.PID = pid
		data, err := json.Marshal(&line)
		if err != nil {
			panic("BUG: " + err.Error()) // it has only strings and numbers
		}
		fmt.Fprintf(d.stdout, "%s\n", data)
		return
	}
	fmt.Fprintf(d.stdout, "%s is ready: NSQ %s, HTTP %s, lookup %s, native %s, pid %d, log %s\n",
		n.Node, n.NSQ, n.HTTP, n.Lookup, n.Native, pid, n.logName)
	if before > 0 && len(d.waiting) == 0 {
		fmt.Fprintf(d.stdout, "all nodes are ready; penstock cluster status --http-address %s shows them, "+
			"Ctrl-C stops them\n", n.HTTP)
	}
}

func (d *nodeRunner) say(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(d.stderr, format+"\n", args...)
}

// neverReady returns the error for a node that ended before it was ready. The error has the node's own exit code and
// the last line of its log.
func (d *nodeRunner) neverReady(n *Node, cmd *exec.Cmd, err error) error {
	code := cmd.ProcessState.ExitCode()
	if code < cli.ExitOther || code > cli.ExitAddress {
		code = cli.ExitOther
	}
	last := lastLine(n.logName)
	if last == "" {
		return cli.Fail(code, fmt.Errorf("node %s ended before it was ready: %w; its log %s is empty; the other nodes were "+
			"stopped", n.Node, err, n.logName))
	}
	return cli.Fail(code, fmt.Errorf("node %s ended before it was ready: %s; its log ends with %q (%s); the other nodes "+
		"were stopped", n.Node, ending(cmd), last, n.logName))
}

// ending describes how a process ended.
func ending(cmd *exec.Cmd) string { return cmd.ProcessState.String() }

func lastLine(name string) string {
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Size() > logTailBytes {
		if _, err := f.Seek(-logTailBytes, io.SeekEnd); err != nil {
			return ""
		}
	}
	data, err := io.ReadAll(io.LimitReader(f, logTailBytes))
	if err != nil {
		return ""
	}
	lines := strings.Split(string(bytes.TrimSpace(data)), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
