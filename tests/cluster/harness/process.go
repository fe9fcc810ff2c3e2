package harness

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is a running or ended process, ours or one that dev-cluster runs.
type process struct {
	pid  int
	fd   int           // pidfd: names this process for ever
	cmd  *exec.Cmd     // nil: another process's child
	done chan struct{} // closed when cmd was reaped; nil without cmd
}

// adopt takes hold of a process by its number. The caller knows that it is alive and which one it is.
func adopt(pid int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	return &process{pid: pid, fd: fd}, nil
}

// signal sends it; a process that has ended is no error.
func (p *process) signal(s syscall.Signal) error {
	err := unix.PidfdSendSignal(p.fd, s, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// wait says whether the process has ended within d.
func (p *process) wait(d time.Duration) (bool, error) {
	deadline := time.Now().Add(d)
	for {
		fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, max(0, int(time.Until(deadline).Milliseconds())))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return n > 0, err
	}
}

func (p *process) close() error { return unix.Close(p.fd) }

// starts is where processes are made: on one thread that lives as long as this process, because the kernel kills a
// child with Pdeathsig when the thread that made it ends.
var starts struct {
	once sync.Once
	ask  chan startRequest
}

type startRequest struct {
	cmd  *exec.Cmd
	done chan error
}

// start runs a command that dies with this process, and takes hold of it. It is reaped in the background.
func start(cmd *exec.Cmd) (*process, error) {
	starts.once.Do(func() {
		starts.ask = make(chan startRequest)
		go func() {
			runtime.LockOSThread() // and never unlock
			for r := range starts.ask {
				r.done <- r.cmd.Start()
			}
		}()
	})
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	r := startRequest{cmd, make(chan error, 1)}
	starts.ask <- r
	if err := <-r.done; err != nil {
		return nil, err
	}
	p, err := adopt(cmd.Process.Pid)
	if err != nil {
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	p.cmd, p.done = cmd, make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended is in its log, and exitCode tells
		close(p.done)
	}()
	return p, nil
}

// exitCode waits for the end of a process of ours and returns its exit code; -1: a signal ended it.
func (p *process) exitCode() (int, error) {
	if p.cmd == nil {
		return 0, fmt.Errorf("process %d is another one's child", p.pid)
	}
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-time.After(endTimeout):
		return 0, fmt.Errorf("process %d has not ended within %v", p.pid, endTimeout)
	}
}

// tail returns the last bytes of a file; a file that is not there is empty.
func tail(path string, bytes int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Size() > bytes {
		if _, err := f.Seek(-bytes, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	return string(data)
}
