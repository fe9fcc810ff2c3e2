package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	startLimit = 60 * time.Second // for a server to answer
	stopLimit  = 5 * time.Second  // after SIGTERM; then SIGKILL
	pollEvery  = 20 * time.Millisecond
	tick       = time.Second / 100 // the unit of /proc/PID/stat: USER_HZ is 100 on Linux
)

// process is a server's process that this program started. It ends with this program: by stop, or by the kernel when
// this program dies.
type process struct {
	cmd   *exec.Cmd
	log   string
	ended chan struct{} // closed when the process was waited for
}

// spawn starts a process whose output goes to NAME.log in dir.
func spawn(dir, name string, env []string, bin string, args ...string) (*process, error) {
	p := &process{log: filepath.Join(dir, name+".log"), ended: make(chan struct{})}
	out, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p.cmd = exec.Command(bin, args...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, out, out
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// await calls ready until it returns nil. A process that ends before is an error that quotes its log.
func (p *process) await(ready func() error) error {
	var err error
	for end := time.Now().Add(startLimit); time.Now().Before(end); time.Sleep(pollEvery) {
		if err = ready(); err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended while it started: %s", filepath.Base(p.cmd.Path), p.tail())
		default:
		}
	}
	return fmt.Errorf("%s was not ready within %v: %w: %s", filepath.Base(p.cmd.Path), startLimit, err, p.tail())
}

// tail is the end of the process's log on one line.
func (p *process) tail() string {
	const enough = 600
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	text = bytes.TrimSpace(text)
	return strings.ReplaceAll(string(text[max(0, len(text)-enough):]), "\n", " | ")
}

func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(stopLimit):
		p.kill()
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// freePorts asks the kernel for ports that nobody listens on now.
func freePorts(n int) ([]int, error) {
	ports := make([]int, 0, n)
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // after the last one was found, so that all differ
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// answers says whether somebody listens at an address.
func answers(address string) error {
	c, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return err
	}
	return c.Close()
}

// cpuOf is the processor time that the processes have used, in user and kernel mode, with all their threads.
func cpuOf(pids []int) (time.Duration, error) {
	var sum time.Duration
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, err
		}
		used, err := parseStat(string(stat))
		if err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, nil
}

// parseStat returns utime + stime. The command's name, which may have spaces and brackets, ends at the last bracket.
func parseStat(stat string) (time.Duration, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	const user, system = 11, 12 // fields 14 and 15 of the line; the first one here is the third
	if len(fields) <= system {
		return 0, errors.New("/proc/PID/stat has too few fields")
	}
	u, err := strconv.ParseInt(fields[user], 10, 64)
	if err != nil {
		return 0, err
	}
	s, err := strconv.ParseInt(fields[system], 10, 64)
	return time.Duration(u+s) * tick, err
}

// ownCPU is the processor time of this process: of all clients and the measuring.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic("BUG: peers: getrusage: " + err.Error())
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// goTool builds a tool that go.mod pins and returns the path of its binary in Go's build cache.
func goTool(name string) (string, error) {
	out, err := exec.Command("go", "tool", "-n", name).Output()
	if err != nil {
		if e := new(exec.ExitError); errors.As(err, &e) {
			return "", fmt.Errorf("go tool -n %s: %s", name, bytes.TrimSpace(e.Stderr))
		}
		return "", err
	}
	return strings.TrimSpace(string(out)), nil
}
