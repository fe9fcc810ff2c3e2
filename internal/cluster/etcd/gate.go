package etcd

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"penstock/internal/descriptors"
	"penstock/internal/sparing"
	"penstock/internal/strangers"
)

const (
	proofTime       = 10 * time.Second // for a connection to prove something
	maxHeadBytes    = 16 << 10         // of a request that proves something where there is no TLS
	gateRetryPause  = 50 * time.Millisecond
	unansweredLimit = 20 * time.Second // until a connection ends whose peer acknowledges nothing; gRPC's own is the same
)

// The bounds of one port. A connection that was let in takes three descriptors: see front.
const (
	minUnproven, maxUnproven = 16, 256
	minGuests, maxGuests     = 16, 1024
)

// places returns how many connections a gate holds that have proved nothing, and how many that were let in. At both
// ports together, strangers take a quarter of the descriptors that are kept for the node's own files at most, and who
// was let in half of the others.
func places(limit int) (unproven, guests int) {
	if limit == 0 { // it is not known
		limit = 1 << 20
	}
	reserve := descriptors.Reserve(limit)
	return min(max(reserve/8, minUnproven), maxUnproven), min(max((limit-reserve)/12, minGuests), maxGuests)
}

// gate is a listener whose Accept returns only connections that have proved something: the TLS handshake is over, with
// a certificate of the cluster, or without TLS a request has begun. A connection that has not done so by proofTime is
// closed; of too many, the oldest of the address that has the most, before and after the proof. front and showEmpty
// have gates.
type gate struct {
	ln     net.Listener
	config *tls.Config // nil: no TLS
	log    *sparing.Log

	unproven, guests *strangers.Room
	in               chan net.Conn
	shut             chan struct{} // closed by Close
	all              sync.WaitGroup

	mu     sync.Mutex            // a leaf
	open   map[net.Conn]struct{} // the sockets of those that have proved nothing; nil after Close
	closed bool
}

// newGate takes connections of ln, which it owns, from now on. limit is how many descriptors the process may have.
func newGate(ln net.Listener, config *tls.Config, log *slog.Logger, limit int) *gate {
	unproven, guests := places(limit)
	g := &gate{
		ln: ln, config: config, log: sparing.New(log), unproven: strangers.New(unproven), guests: strangers.New(guests),
		in: make(chan net.Conn), shut: make(chan struct{}), open: make(map[net.Conn]struct{}),
	}
	g.all.Go(g.accept)
	return g
}

func (g *gate) Accept() (net.Conn, error) {
	select {
	case nc := <-g.in:
		return nc, nil
	case <-g.shut:
		return nil, net.ErrClosed
	}
}

func (g *gate) Addr() net.Addr { return g.ln.Addr() }

// Close lets nobody in any more, and ends connections that have proved nothing. Those that Accept has returned stay.
func (g *gate) Close() error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return nil
	}
	g.closed = true
	open := g.open
	g.open = nil
	g.mu.Unlock()
	close(g.shut)
	err := g.ln.Close()
	for nc := range open {
		_ = nc.Close()
	}
	g.all.Wait()
	g.log.Close() // it tells what it has only counted
	return err
}

// accept goes on when no descriptor is left: if it gave up, the member would be cut off.
func (g *gate) accept() {
	for {
		nc, err := g.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			g.refused(g.ln.Addr(), err)
			select {
			case <-time.After(gateRetryPause):
			case <-g.shut:
				return
			}
			continue
		}
		member := g.unproven.Stranger(nc.RemoteAddr(), func() { _ = nc.Close() }) // a node will dial again
		if !g.note(nc) || !member.Enter() {
			_ = nc.Close()
			continue
		}
		g.all.Go(func() { g.take(nc, member) })
	}
}

// note remembers the socket for Close. It returns false after that.
func (g *gate) note(nc net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.open[nc] = struct{}{}
	return true
}

func (g *gate) forget(nc net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.open, nc)
}

// take lets a connection in that proves something in time.
func (g *gate) take(nc net.Conn, member *strangers.Stranger) {
	_ = nc.SetDeadline(time.Now().Add(proofTime))
	proven, err := g.prove(nc)
	g.forget(nc)
	if !member.Leave() || err != nil {
		_ = nc.Close()
		if err != nil {
			g.refused(nc.RemoteAddr(), err)
		}
		return
	}
	_ = nc.SetDeadline(time.Time{})
	hangUpOnSilence(nc)
	in := &guest{Conn: proven, raw: nc}
	in.member = g.guests.Stranger(nc.RemoteAddr(), func() { _ = nc.Close() })
	in.member.Enter()
	select {
	case g.in <- in:
	case <-g.shut:
		_ = in.Close()
	}
}

// prove returns the connection once it has proved something.
func (g *gate) prove(nc net.Conn) (net.Conn, error) {
	if g.config != nil {
		secured := tls.Server(nc, g.config)
		return secured, secured.Handshake()
	}
	head := make([]byte, 0, 512)
	for from := 0; !bytes.Contains(head[from:], []byte("\r\n\r\n")); { // the preface of HTTP/2 has it, too
		from = max(len(head)-3, 0)
		if len(head) == maxHeadBytes {
			return nil, fmt.Errorf("the head of its request has more than %d bytes", maxHeadBytes)
		}
		if len(head) == cap(head) {
			head = append(make([]byte, 0, min(2*cap(head), maxHeadBytes)), head...)
		}
		n, err := nc.Read(head[len(head):cap(head)])
		head = head[:len(head)+n]
		if err != nil {
			return nil, err
		}
	}
	return &begun{Conn: nc, head: head}, nil
}

// refused logs a refusal.
func (g *gate) refused(from net.Addr, err error) {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) {
		return // it had to go for another one, or the gate is being closed; or only a look whether somebody is there
	}
	g.log.Warn("a connection to the embedded etcd was refused", "port", g.ln.Addr().String(), "address", from.String(),
		"error", err)
}

// hangUpOnSilence makes the kernel end a connection whose peer acknowledges nothing, as gRPC does on sockets of TCP.
func hangUpOnSilence(nc net.Conn) {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unansweredLimit/time.Millisecond))
		})
	}
}

// guest is a connection that was let in. Closing it frees its place.
type guest struct {
	net.Conn
	raw    net.Conn // the socket: closing it waits for nobody
	member *strangers.Stranger
}

func (c *guest) Close() error {
	c.member.Leave()
	return c.Conn.Close()
}

// begun is a connection of which the head of the first request was read.
type begun struct {
	net.Conn
	head []byte // what was read and not returned
}

func (c *begun) Read(p []byte) (int, error) {
	if len(c.head) > 0 {
		n := copy(p, c.head)
		c.head = c.head[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}
