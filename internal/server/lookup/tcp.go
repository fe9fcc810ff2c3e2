package lookup

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"penstock/internal/server/listen"
	"penstock/internal/sparing"
)

const (
	// maxLookupdConns bounds the connections of nsqds; a connection beyond it is closed at once.
	maxLookupdConns = 4096

	// After its last answer a connection is still read from for a moment: closing it with unread input would reset it,
	// and the answer might never arrive.
	lingerTime     = time.Second
	maxLingerBytes = 1 << 20
)

// tcpServer accepts the registrations of stock nsqds, as nsqlookupd's TCP port does, with protocol V1. It has no
// authentication, because nsqd cannot authenticate itself: whoever reaches the port can send consumers elsewhere, but
// see Options.Guarded.
//
// The Service runs serve and calls close. Each connection has one goroutine (serveConn), which reads commands, answers
// them and, at the end, removes the nsqd from the registry. An nsqd whose connection is refused or lost connects again
// by itself, and registers everything again.
type tcpServer struct {
	registry *registry
	self     []byte // the answer to IDENTIFY
	log      *sparing.Log

	times atomic.Pointer[times] // of now

	ln *net.TCPListener

	mu     sync.Mutex // guards conns and closed
	conns  map[*net.TCPConn]struct{}
	closed bool
	wg     sync.WaitGroup // the connections' goroutines
}

// times are those that a connection obeys from its next command on.
type times struct {
	command time.Duration // from a command's first byte to its last, and from connecting to IDENTIFY
	idle    time.Duration // a silent nsqd is disconnected after this; after half of it, answers leave it out
	write   time.Duration
}

func timesOf(o *Options) *times {
	return &times{o.MaxCommandTime, 2 * o.InactiveProducerTimeout, o.WriteTimeout}
}

// serve accepts connections until close is called.
func (l *tcpServer) serve() error {
	err := listen.Accept(l.ln, nil, l.welcome, func(err error, retryAfter time.Duration) {
		l.log.Warn("cannot accept an nsqd's connection; it will try again", "error", err, "retry_after", retryAfter)
	})
	if err != nil {
		return fmt.Errorf("nsq: accepting nsqds failed: %w", err)
	}
	return nil
}

// welcome starts serving a connection, or closes it if there are too many.
func (l *tcpServer) welcome(nc *net.TCPConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.conns) >= maxLookupdConns {
		_ = nc.Close()
		return
	}
	l.conns[nc] = struct{}{}
	l.wg.Go(func() {
		l.serveConn(nc)
		_ = nc.Close()
		l.mu.Lock()
		delete(l.conns, nc)
		l.mu.Unlock()
	})
}

// close closes the listener and all connections, and waits for their goroutines. It may be called again.
func (l *tcpServer) close() {
	l.mu.Lock()
	l.closed = true
	_ = l.ln.Close() // an error only means that it was closed before
	for nc := range l.conns {
		_ = nc.Close()
	}
	l.mu.Unlock()
	l.wg.Wait()
}

// answeringReader reads from a connection, and sends the buffered answers before it waits for more input. So answers to
// pipelined commands are sent together, and no answer waits for a command that is incomplete. Only the connection's
// goroutine uses it.
type answeringReader struct {
	nc  *net.TCPConn
	out *bufio.Writer
	l   *tcpServer
}

func (r *answeringReader) Read(p []byte) (int, error) {
	if err := r.flush(); err != nil {
		return 0, err
	}
	return r.nc.Read(p)
}

func (r *answeringReader) flush() error {
	if r.out.Buffered() == 0 {
		return nil
	}
	return r.out.Flush()
}

// Write is what the buffer out writes to. It gives the client times.write to take the contents of the buffer.
func (r *answeringReader) Write(p []byte) (int, error) {
	if err := r.nc.SetWriteDeadline(time.Now().Add(r.l.times.Load().write)); err != nil {
		return 0, err
	}
	return r.nc.Write(p)
}

// writeAnswer writes one answer: its size as a uint32, and then its bytes.
func writeAnswer(w io.Writer, answer []byte) error {
	var head [sizeBytes]byte
	binary.BigEndian.PutUint32(head[:], uint32(len(answer)))
	_, err := w.Write(head[:])
	if err == nil {
		_, err = w.Write(answer)
	}
	return err
}

// serveConn serves one connection until it ends.
func (l *tcpServer) serveConn(nc *net.TCPConn) {
	remote := nc.RemoteAddr().String()
	pipe := &answeringReader{nc: nc, l: l}
	pipe.out = bufio.NewWriterSize(pipe, maxLineBytes)
	br := bufio.NewReaderSize(pipe, maxLineBytes)
	s := &session{registry: l.registry, remote: remote, self: l.self}
	why, last := l.serveCommands(nc, br, pipe.out, s)
	if p := s.registrant; p != nil {
		s.end()
		l.log.Info("an nsqd is not registered any more", "nsqd", p.endpoint(), "client", remote, "error", why)
	} else {
		l.log.Logger().Debug("a connection to the registration port ended", "client", remote, "error", why)
	}
	if last {
		l.linger(nc, br, pipe)
	}
}

// serveCommands answers commands until one of them ends the connection, or the client does. last says whether the
// buffered answers must still be sent.
func (l *tcpServer) serveCommands(
	nc *net.TCPConn, br *bufio.Reader, w io.Writer, s *session,
) (why error, last bool) {
	magic := make([]byte, len(magicV1))
	if err := nc.SetReadDeadline(time.Now().Add(l.times.Load().command)); err != nil {
		return err, false
	}
	if _, err := io.ReadFull(br, magic); err != nil {
		return err, false
	}
	if string(magic) != magicV1 {
		return errors.New("it speaks another protocol"), writeAnswer(w, []byte("E_BAD_PROTOCOL")) == nil
	}
	for {
		if err := l.awaitCommand(nc, br, s); err != nil {
			return err, false
		}
		known := s.registrant != nil
		answer, f, err := s.step(br)
		switch {
		case err != nil:
			return err, errors.Is(err, errLineTooLong)
		case f != nil:
			return errors.New(f.text), writeAnswer(w, []byte(f.text)) == nil
		}
		if p := s.registrant; !known && p != nil {
			l.log.Info("an nsqd registers", "nsqd", p.endpoint(), "client", s.remote, "version", p.Version)
		}
		if err := writeAnswer(w, answer); err != nil {
			return err, false
		}
	}
}

// awaitCommand waits for the first byte of a command, and sets the deadline for the rest of it.
func (l *tcpServer) awaitCommand(nc *net.TCPConn, br *bufio.Reader, s *session) error {
	if br.Buffered() == 0 {
		idle := l.times.Load().command
		if s.registrant != nil {
			idle = l.times.Load().idle
		}
		if err := nc.SetReadDeadline(time.Now().Add(idle)); err != nil {
			return err
		}
		if _, err := br.Peek(1); err != nil {
			return err
		}
	}
	return nc.SetReadDeadline(time.Now().Add(l.times.Load().command))
}

// linger sends the last answer, and then reads and discards input for a moment; see lingerTime.
func (l *tcpServer) linger(nc *net.TCPConn, br *bufio.Reader, out *answeringReader) {
	if out.flush() != nil || nc.CloseWrite() != nil || nc.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(br, maxLingerBytes))
}
