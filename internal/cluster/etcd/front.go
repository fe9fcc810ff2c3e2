package etcd

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// etcd takes every connection that comes, lets it be silent for ever, and gives its port for members up for good at the
// first one for which there is no descriptor. So it listens on sockets that only this process reaches (sockets), and a
// front of ours stands at each port: it lets in who has proved something (gate), and carries the bytes. TLS ends in the
// front, since only who computes the handshake sees that it is over. See decisions.md.

// front is one port of the member. Member.fronts holds it while etcd runs.
type front struct {
	gate       *gate
	socket     string        // etcd's
	writeLimit time.Duration // of one write to the other side; 0: none

	mu     sync.Mutex // a leaf
	open   map[net.Conn]struct{}
	closed bool
	all    sync.WaitGroup
}

func newFront(g *gate, socket string, writeLimit time.Duration) *front {
	f := &front{gate: g, socket: socket, writeLimit: writeLimit, open: make(map[net.Conn]struct{})}
	f.all.Go(func() {
		for {
			nc, err := g.Accept()
			if err != nil {
				return
			}
			f.all.Go(func() { f.carry(nc) })
		}
	})
	return f
}

// refuse lets no connection in any more. Those that were let in go on.
func (f *front) refuse() { _ = f.gate.Close() }

// close ends all connections.
func (f *front) close() {
	f.refuse()
	waitFor(&f.all, goodbyeTime) // what etcd has said and closed is still on its way
	f.mu.Lock()
	f.closed = true
	for nc := range f.open {
		if g, ok := nc.(*guest); ok {
			nc = g.raw
		}
		_ = nc.Close()
	}
	f.mu.Unlock()
	f.all.Wait()
}

// carry passes the bytes of a connection on, in both directions, until one side ends.
func (f *front) carry(nc net.Conn) {
	defer nc.Close()
	to, err := net.Dial("unix", f.socket)
	if err != nil {
		f.gate.refused(nc.RemoteAddr(), fmt.Errorf("the embedded etcd does not take it: %w", err))
		return
	}
	defer to.Close()
	defer f.drop(nc, to)
	if !f.keep(nc, to) {
		return
	}
	var back sync.WaitGroup
	back.Go(func() {
		transfer(nc, to, f.writeLimit)
		_ = nc.Close()
		_ = to.Close()
	})
	transfer(to, nc, 0)
	_ = to.Close()
	_ = nc.Close()
	back.Wait()
}

func (f *front) keep(all ...net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, nc := range all {
		f.open[nc] = struct{}{}
	}
	return !f.closed
}

func (f *front) drop(all ...net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, nc := range all {
		delete(f.open, nc)
	}
}

// transfer copies until one of the two ends. limit bounds each write; 0: not.
func transfer(to, from net.Conn, limit time.Duration) {
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		if limit > 0 {
			_ = to.SetWriteDeadline(time.Now().Add(limit))
		}
		if _, failed := to.Write(buf[:n]); err != nil || failed != nil {
			return
		}
	}
}
