// Package volatile makes block devices with a volatile write cache, for tests that cut the power: what was written and
// not flushed is lost, as it is with a disk, and as it is not with a plain loop device, whose backing file keeps
// everything that was written.
//
// A device is a loop device on a file that a FUSE server serves. The loop driver turns a flush of the block device into
// an fsync of the file; until it comes, what was written is only in the cache.
//
// The server is a process of its own in a mount namespace of its own, and touches nothing but its memory: one that
// waits for a file system on its own device, or unmounts it when it ends as the last one of a namespace, waits for
// ever, and the kernel with it.
package volatile

import (
	"errors"
	"fmt"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// SectorBytes is what a device writes whole or not at all.
	SectorBytes = 512
	maxIOBytes  = 1 << 20

	serverVariable = "TEST_VOLATILE_SERVER"
)

// Main is what a program that calls Start does first: in the process that Start runs it serves the devices and does not
// return.
func Main() {
	if os.Getenv(serverVariable) == "" {
		return
	}
	if err := serveDisks(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Server is the process that has the devices. One goroutine uses it and its devices.
type Server struct {
	cmd   *exec.Cmd
	calls *rpc.Client
}

// pipes are the ends of the server's pipes as a connection.
type pipes struct{ in, out *os.File }

func (p pipes) Read(b []byte) (int, error)  { return p.in.Read(b) }
func (p pipes) Write(b []byte) (int, error) { return p.out.Write(b) }
func (p pipes) Close() error                { return errors.Join(p.in.Close(), p.out.Close()) }

// Start runs the program again as a server, which ends with this process.
func Start() (*Server, error) {
	in, stdout, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	stdin, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), serverVariable+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, os.Stderr
	// it ends when its standard input does
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Unshareflags: syscall.CLONE_NEWNS}
	err = cmd.Start()
	stdin.Close()
	stdout.Close()
	if err != nil {
		return nil, err
	}
	return &Server{cmd: cmd, calls: rpc.NewClient(pipes{in, out})}, nil
}

// Close ends the process; what is still mounted on its devices gets errors.
func (s *Server) Close() error {
	return errors.Join(s.calls.Close(), s.cmd.Wait())
}

// Device is one disk.
type Device struct {
	server *Server
	number int
	dir    string
	loop   *os.File // keeps the loop device, which detaches itself when nobody has it open; nil: detached
}

// Missing says why this machine cannot have such devices; nil: it can.
func Missing() error {
	if os.Geteuid() != 0 {
		return errors.New("devices and mounts need root")
	}
	for _, path := range []string{"/dev/fuse", "/dev/loop-control"} {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("this machine has no %s", path)
		}
	}
	return nil
}

// Open makes an empty device of that size. dir must exist and is mounted over, in the server's eyes only.
func (s *Server) Open(dir string, sizeBytes int) (*Device, error) {
	d := &Device{server: s, dir: dir}
	return d, s.calls.Call("Disks.Open", OpenArgs{dir, sizeBytes}, &d.number)
}

// Close lets go of the device, which ends with its server. Nothing of it is mounted any more.
func (d *Device) Close() error { return d.Detach() }

// Attach makes it a block device and returns its path. The caller mounts it, then lets go of it with Detach after the
// unmount.
func (d *Device) Attach() (string, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer control.Close()
	file, err := os.OpenFile(filepath.Join("/proc", strconv.Itoa(d.server.cmd.Process.Pid), "root", d.dir, fileName),
		os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer file.Close()
	for range 100 { // others may take the free one first
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", fmt.Errorf("a free loop device: %w", err)
		}
		path := fmt.Sprintf("/dev/loop%d", n)
		loop, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return "", err
		}
		config := unix.LoopConfig{Fd: uint32(file.Fd()), Size: SectorBytes}
		config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &config)
		if err == nil {
			d.loop = loop
			return path, nil
		}
		loop.Close()
		if !errors.Is(err, unix.EBUSY) {
			return "", fmt.Errorf("%s: %w", path, err)
		}
	}
	return "", errors.New("no free loop device")
}

// Detach ends what Attach began.
func (d *Device) Detach() error {
	if d.loop == nil {
		return nil
	}
	err := d.loop.Close()
	d.loop = nil
	return err
}

// Cut takes the power of some devices at one moment. Of the sectors that are not flushed a share survives, chosen with
// the seed, the others are lost; from then on the devices fail every request, until Revive. It returns the number of
// those that were lost.
func (s *Server) Cut(share float64, seed uint64, all ...*Device) (lost int, err error) {
	a := CutArgs{Share: share, Seed: seed}
	for _, d := range all {
		a.Disks = append(a.Disks, d.number)
	}
	return lost, s.calls.Call("Disks.Cut", a, &lost)
}

// Fail lets reads, or writes and flushes, of the device fail with EIO, until it is called again. What was written
// before stays.
func (d *Device) Fail(reads, writes bool) error {
	return d.server.calls.Call("Disks.Fail", FailArgs{d.number, reads, writes}, &Nothing{})
}

// Revive gives the power back. Nothing has the device attached.
func (d *Device) Revive() error { return d.server.calls.Call("Disks.Revive", d.number, &Nothing{}) }
