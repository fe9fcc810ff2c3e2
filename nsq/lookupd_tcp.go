package nsq

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"penstock/nsq/internal/listen"
)

// maxLookupdConns bounds the connections of nsqds; one more is closed at once.
const maxLookupdConns = 4096

// lookupdServer is where stock nsqds register, as at nsqlookupd's TCP port: its protocol V1. It has no authentication, because nsqd
// cannot show any: who reaches the port can send consumers elsewhere.
type lookupdServer struct {
	registry *registry
	self     []byte // answer to IDENTIFY
	log      *slog.Logger

	commandTime time.Duration // a command that began must be complete after this, and a connection that says nothing identified
	idleTime    time.Duration // a producer that is silent for longer is closed; it was not mentioned for half of it
	writeTime   time.Duration

	ln *net.TCPListener

	mu     sync.Mutex
	conns  map[*net.TCPConn]struct{}
	closed bool
	wg     sync.WaitGroup
}

// listenLookupd opens the listener for nsqds, unless it is off. The lookups' listener is open: its port is part of the answers.
func (s *Server) listenLookupd() error {
	if s.opts.LookupTCPAddress == Off || s.lookup == nil {
		return nil
	}
	ln, err := net.Listen("tcp", s.opts.LookupTCPAddress)
	if err != nil {
		return listen.Error("registrations", s.opts.LookupTCPAddress, err)
	}
	// The order of the keys is nsqlookupd's.
	self, err := json.Marshal(struct {
		BroadcastAddress string `json:"broadcast_address"`
		Hostname         string `json:"hostname"`
		HTTPPort         int    `json:"http_port"`
		TCPPort          int    `json:"tcp_port"`
		Version          string `json:"version"`
	}{s.opts.BroadcastAddress, s.opts.Hostname, listen.Port(s.LookupAddr()), listen.Port(ln.Addr()), s.opts.Version})
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	s.lookupd = &lookupdServer{
		registry: s.lookup.registry, self: self, log: s.opts.Logger, ln: ln.(*net.TCPListener), conns: map[*net.TCPConn]struct{}{},
		commandTime: s.opts.MaxCommandTime, idleTime: 2 * s.opts.InactiveProducerTimeout, writeTime: s.opts.WriteTimeout,
	}
	return nil
}

// LookupTCPAddr is where nsqds register; nil when that is off.
func (s *Server) LookupTCPAddr() net.Addr {
	if s.lookupd == nil {
		return nil
	}
	return s.lookupd.ln.Addr()
}

// serve takes connections until close.
func (l *lookupdServer) serve() error {
	err := listen.Accept(l.ln, nil, l.welcome, func(err error, retryAfter time.Duration) {
		l.log.Warn("cannot accept an nsqd's connection; it will try again", "error", err, "retry_after", retryAfter)
	})
	if err != nil {
		return fmt.Errorf("nsq: accepting nsqds failed: %w", err)
	}
	return nil
}

func (l *lookupdServer) welcome(nc *net.TCPConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.conns) >= maxLookupdConns {
		_ = nc.Close()
		return
	}
	l.conns[nc] = struct{}{}
	l.wg.Go(func() {
		l.converse(nc)
		_ = nc.Close()
		l.mu.Lock()
		delete(l.conns, nc)
		l.mu.Unlock()
	})
}

// close ends the listener and all connections, and waits for their goroutines. Again does nothing.
func (l *lookupdServer) close() {
	l.mu.Lock()
	l.closed = true
	_ = l.ln.Close() // closed twice at worst
	for nc := range l.conns {
		_ = nc.Close()
	}
	l.mu.Unlock()
	l.wg.Wait()
}

// answeringReader is a connection that sends the answers so far before it waits for more input: what is pipelined is answered
// together, and no answer waits for a command that is not complete yet.
type answeringReader struct {
	nc        *net.TCPConn
	out       *bufio.Writer
	writeTime time.Duration
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

// Write is the writer below the buffer: whatever reaches it must leave within writeTime.
func (r *answeringReader) Write(p []byte) (int, error) {
	if err := r.nc.SetWriteDeadline(time.Now().Add(r.writeTime)); err != nil {
		return 0, err
	}
	return r.nc.Write(p)
}

func writeAnswer(w io.Writer, answer []byte) error {
	var head [sizeBytes]byte
	binary.BigEndian.PutUint32(head[:], uint32(len(answer)))
	_, err := w.Write(head[:])
	if err == nil {
		_, err = w.Write(answer)
	}
	return err
}

// converse serves one connection until it ends.
func (l *lookupdServer) converse(nc *net.TCPConn) {
	remote := nc.RemoteAddr().String()
	pipe := &answeringReader{nc: nc, writeTime: l.writeTime}
	pipe.out = bufio.NewWriterSize(pipe, maxLookupdLineBytes)
	br := bufio.NewReaderSize(pipe, maxLookupdLineBytes)
	session := &lookupdSession{registry: l.registry, remote: remote, self: func() []byte { return l.self }}
	why, last := l.talk(nc, br, pipe.out, session)
	if p := session.producer; p != nil {
		session.end()
		l.log.Info("an nsqd is not registered any more", "nsqd", p.endpoint(), "client", remote, "error", why)
	} else {
		l.log.Debug("a connection to the registration port ended", "client", remote, "error", why)
	}
	if last {
		l.linger(nc, br, pipe)
	}
}

// talk answers commands until one ends the connection, or it ends itself. last is true if answers are still to be sent.
func (l *lookupdServer) talk(nc *net.TCPConn, br *bufio.Reader, w io.Writer, session *lookupdSession) (why error, last bool) {
	magic := make([]byte, len(lookupdMagic))
	if err := nc.SetReadDeadline(time.Now().Add(l.commandTime)); err != nil {
		return err, false
	}
	if _, err := io.ReadFull(br, magic); err != nil {
		return err, false
	}
	if string(magic) != lookupdMagic {
		return errors.New("it speaks another protocol"), writeAnswer(w, []byte("E_BAD_PROTOCOL")) == nil
	}
	for {
		if err := l.await(nc, br, session); err != nil {
			return err, false
		}
		known := session.producer != nil
		answer, f, err := session.step(br)
		switch {
		case err != nil:
			return err, errors.Is(err, errLineTooLong)
		case f != nil:
			return errors.New(f.text), writeAnswer(w, []byte(f.text)) == nil
		}
		if !known && session.producer != nil {
			l.log.Info("an nsqd registers", "nsqd", session.producer.endpoint(), "client", session.remote, "version", session.producer.Version)
		}
		if err := writeAnswer(w, answer); err != nil {
			return err, false
		}
	}
}

// await waits for the first byte of a command, and gives the command its time.
func (l *lookupdServer) await(nc *net.TCPConn, br *bufio.Reader, session *lookupdSession) error {
	if br.Buffered() == 0 {
		idle := l.commandTime
		if session.producer != nil {
			idle = l.idleTime
		}
		if err := nc.SetReadDeadline(time.Now().Add(idle)); err != nil {
			return err
		}
		if _, err := br.Peek(1); err != nil {
			return err
		}
	}
	return nc.SetReadDeadline(time.Now().Add(l.commandTime))
}

// linger sends the last answer and reads on for a moment: closing with unread input would reset the connection, and the answer
// might never arrive.
func (l *lookupdServer) linger(nc *net.TCPConn, br *bufio.Reader, out *answeringReader) {
	if out.flush() != nil || nc.CloseWrite() != nil || nc.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(br, maxLingerBytes))
}

// maxLingerBytes bounds what is read of a connection that has had its last answer.
const maxLingerBytes = 1 << 20
