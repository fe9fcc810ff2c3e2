// Package descriptors keeps file descriptors free for the files of a node. A process that has used up its limit
// (RLIMIT_NOFILE) can open no segment and sync no directory, and connections are what uses them up: so listeners for
// clients refuse a connection that would take one of the last Reserve descriptors. Connections between nodes, and the
// node's own files, may take them.
package descriptors

import (
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrReserve is why a connection was refused.
var ErrReserve = errors.New("descriptors: only the file descriptors that are reserved for the node's own files are " +
	"left: raise the limit of open files (LimitNOFILE of a unit, ulimit -n) or lower max-connections")

// maxReserve bounds Reserve.
const maxReserve = 1024

var (
	refused     atomic.Uint64
	lastRefused atomic.Int64 // Unix time in nanoseconds; 0: never
)

// Refused returns how many connections this process has refused because of the reserve.
func Refused() uint64 { return refused.Load() }

// RefusedWithin says whether a connection was refused because of the reserve in the last d.
func RefusedWithin(d time.Duration) bool {
	at := lastRefused.Load()
	return at != 0 && time.Now().UnixNano()-at < int64(d)
}

// Limit returns how many descriptors the process may have open. The Go runtime has raised it as far as it may be raised
// without privilege.
func Limit() int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 0
	}
	return int(min(r.Cur, 1<<30))
}

// Reserve returns how many of limit descriptors connections of clients leave to the node's own files.
func Reserve(limit int) int { return min(limit/4, maxReserve) }

// ForClients returns how many of so many connections the process can have at once beside its own files.
func ForClients(connections int) int {
	if limit := Limit(); limit > 0 {
		return min(connections, limit-Reserve(limit))
	}
	return connections
}

// Spare says whether a connection that was just accepted leaves the reserve free, and counts it if it does not. Linux
// gives a new descriptor the lowest free number, so the number says how many are open at least. The caller closes the
// connection if Spare returns false.
func Spare(c syscall.Conn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true // it is closed already
	}
	free := true
	limit := Limit()
	_ = raw.Control(func(fd uintptr) { free = limit == 0 || int(fd) < limit-Reserve(limit) })
	if !free {
		refused.Add(1)
		lastRefused.Store(time.Now().UnixNano())
	}
	return free
}

// Guard returns a listener that closes connections at once which would take a descriptor of the reserve.
func Guard(ln net.Listener) net.Listener { return guarded{ln} }

type guarded struct{ net.Listener }

func (g guarded) Accept() (net.Conn, error) {
	for {
		nc, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c, ok := nc.(syscall.Conn); !ok || Spare(c) {
			return nc, nil
		}
		_ = nc.Close() // there is no protocol yet in which to say why
	}
}
