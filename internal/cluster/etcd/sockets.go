package etcd

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The names of the sockets at which etcd listens, by front.
var socketNames = [...]string{peerFront: "peer", clientFront: "client"}

// socketsDir is within the member's directory, while etcd starts.
const socketsDir = "sockets"

// sockets are those at which etcd listens. They have names only while it starts: nobody but this process reaches them,
// and a copy of the directory of a node that was killed has none. The goroutine that has started etcd uses it.
type sockets struct {
	dir  *os.File
	ends []*os.File // by front; none: the sockets have kept their names
}

func openSockets(dir string) (s *sockets, err error) {
	name := filepath.Join(dir, socketsDir)
	if err = os.RemoveAll(name); err == nil { // of a start that was killed
		err = os.Mkdir(name, 0o700)
	}
	s = new(sockets)
	if err == nil {
		s.dir, err = os.Open(name)
	}
	if err != nil {
		return nil, fmt.Errorf("etcd: the embedded member's directory for sockets cannot be made: %w", err)
	}
	return s, nil
}

// path returns the name at which etcd listens. It is short: the kernel takes 107 bytes, and the directory may have a
// longer name.
func (s *sockets) path(front int) string {
	short := ofDescriptor(s.dir)
	if _, err := os.Stat(short); err != nil {
		short = s.dir.Name()
	}
	return filepath.Join(short, socketNames[front])
}

func ofDescriptor(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// hide takes the names away, once etcd listens. A socket is still reached by a descriptor of its file. Without /proc
// the names stay.
func (s *sockets) hide() error {
	if _, err := os.Stat(ofDescriptor(s.dir)); err != nil {
		return nil
	}
	for front := range socketNames {
		fd, err := unix.Open(s.path(front), unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("etcd: the embedded member's socket cannot be kept: %w", err)
		}
		s.ends = append(s.ends, os.NewFile(uintptr(fd), socketNames[front]))
	}
	return os.RemoveAll(s.dir.Name())
}

// address returns where a front reaches etcd.
func (s *sockets) address(front int) string {
	if s.ends == nil {
		return s.path(front)
	}
	return ofDescriptor(s.ends[front])
}

func (s *sockets) close() {
	for _, f := range s.ends {
		_ = f.Close()
	}
	_ = os.RemoveAll(s.dir.Name())
	_ = s.dir.Close()
}
