package etcd

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// etcd reads the files of its certificate itself, by name and for each connection, whatever is in them just then. So it
// gets names of files in memory, which have what currentTLS has taken last: half of a new set on the disk cuts no
// member off, and no key is copied to a disk.

// memoryFile is a file that has a name until it is closed. Any goroutine may read it by name; shown serializes the
// rest.
type memoryFile struct{ fd int }

func newMemoryFile(content []byte) (*memoryFile, error) {
	fd, err := unix.MemfdCreate("etcd-tls", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := &memoryFile{fd}
	for len(content) > 0 {
		n, err := unix.Write(fd, content)
		if err != nil {
			f.close()
			return nil, err
		}
		content = content[n:]
	}
	return f, nil
}

func (f *memoryFile) name() string { return fmt.Sprintf("/proc/self/fd/%d", f.fd) }

// replace makes the name that of another content, as a whole. After an error it has the old one.
func (f *memoryFile) replace(content []byte) error {
	next, err := newMemoryFile(content)
	if err != nil {
		return err
	}
	defer next.close()
	return unix.Dup3(next.fd, f.fd, unix.O_CLOEXEC)
}

func (f *memoryFile) close() { _ = unix.Close(f.fd) }

// shown are the files that etcd reads in place of those of TLSFiles.
type shown struct {
	ca, node *memoryFile

	mu     sync.Mutex // held while the files are replaced or closed: another file may get the number of a closed one
	closed bool
}

// show returns nil without TLS, and where files in memory cannot be read by name: then etcd reads the files themselves.
func (c *currentTLS) show() (*shown, error) {
	now := c.now.Load()
	if now == nil {
		return nil, nil
	}
	ca, err := newMemoryFile(now.ca)
	if err != nil {
		return nil, fmt.Errorf("etcd: the certificates cannot be kept in memory: %w", err)
	}
	node, err := newMemoryFile(now.node)
	if err != nil {
		ca.close()
		return nil, fmt.Errorf("etcd: the certificates cannot be kept in memory: %w", err)
	}
	s := &shown{ca: ca, node: node}
	if _, err := os.Stat(node.name()); err != nil {
		s.close()
		return nil, nil
	}
	return s, nil
}

func (s *shown) close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		s.ca.close()
		s.node.close()
	}
}

func (s *shown) replace(node []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	return s.node.replace(node)
}

// ReloadTLS makes the member show the certificate that is in its files now, on new connections; those that are open
// stay. After an error everything is as it was.
func (m *Member) ReloadTLS() error {
	if err := m.tls.reload(); err != nil || m.shown == nil {
		return err
	}
	if err := m.shown.replace(m.tls.now.Load().node); err != nil {
		return fmt.Errorf("etcd: the certificate cannot be kept in memory: %w", err)
	}
	return nil
}

// shownTLS returns the files that etcd reads.
func (m *Member) shownTLS() (ca, cert, key string) {
	if s := m.shown; s != nil {
		return s.ca.name(), s.node.name(), s.node.name()
	}
	return m.o.TLS.CA, m.o.TLS.Cert, m.o.TLS.Key
}
