package nsq

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"time"
)

// link says what a connection is wrapped in, for /stats, AUTH and the reader. Immutable.
type link struct {
	tls         *tls.ConnectionState // nil: none
	compression compression
}

// plain is the link of a connection before IDENTIFY, or without wishes in it.
var plain = &link{}

func (l *link) stats(cs *clientStats) {
	cs.Deflate = l.compression == compressDeflate
	cs.Snappy = l.compression == compressSnappy
	if l.tls == nil {
		return
	}
	cs.TLS = true
	cs.CipherSuite = tls.CipherSuiteName(l.tls.CipherSuite)
	cs.TLSVersion = "TLS1.2"
	if l.tls.Version == tls.VersionTLS13 {
		cs.TLSVersion = "TLS1.3"
	}
	cs.NegotiatedProtocol = l.tls.NegotiatedProtocol
	cs.NegotiatedIsMutual = true // always, since NPN is gone
}

// commonName is what the client's certificate says of it; empty without one.
func commonName(state *tls.ConnectionState) string {
	if state == nil || len(state.PeerCertificates) == 0 {
		return ""
	}
	return state.PeerCertificates[0].Subject.CommonName
}

// upgrade wraps the connection in what IDENTIFY negotiated: TLS first, compression within it, and an OK through each.
// The reader calls it.
//
// It first waits until all answers so far are on the socket. From then on it owns the output until it is done: a
// heartbeat in the middle of a handshake would break it. size is the length of the IDENTIFY in the input. What the
// client sent behind it belongs to the handshake or the compressed stream; it came without TLS and must never be taken
// for commands.
//
// If it fails the connection ends. The fault has no text: there is no protocol in which the client could be told.
func (c *conn) upgrade(set *settings, size int) *fault {
	c.out.flush()
	acquired := false
	c.wait(func() bool {
		acquired = c.answers.idle() && c.out.acquire()
		return acquired || c.out.failure() != nil || c.stopping.Load()
	})
	if !acquired {
		return &fault{}
	}
	behind := c.in.unread()[size:]
	w := newWire(c.nc, c.raw, behind)
	c.in.w -= len(behind)

	l := &link{compression: set.compression}
	enc := &encoder{wire: w, w: w}
	src := io.Reader(w)
	if set.tls {
		tc, err := c.handshake(w)
		if err != nil {
			c.srv.opts.Logger.Info("closing an NSQ connection: its TLS handshake failed", "client", c.remote, "error", err)
			c.out.close()
			c.out.release(nil)
			return &fault{}
		}
		state := tc.ConnectionState()
		l.tls, c.tls = &state, tc
		c.parser.tlsRequired = false
		enc.w, src = tc, tc
		if err := enc.write(okFrames[:okFrameBytes]); err != nil {
			return c.failedUpgrade(err)
		}
	}
	if set.compression != compressNone {
		enc.w, enc.flush = newCompressor(set.compression, set.deflateLevel, enc.w)
		src = newInflater(set.compression, blockingReader{src, w}, c.srv.opts.MaxInflationRatio)
		if err := enc.write(okFrames[:okFrameBytes]); err != nil {
			return c.failedUpgrade(err)
		}
	}
	c.wire, c.stream = w, src
	c.link.Store(l)
	c.out.release(enc)
	return nil
}

// failedUpgrade ends the connection after an error of TLS or the compressor. They write to memory, so the error is
// their own and not the network's.
func (c *conn) failedUpgrade(err error) *fault {
	c.srv.opts.Logger.Error("closing an NSQ connection: its output cannot be encoded", "client", c.remote, "error", err)
	c.out.close()
	c.out.release(nil)
	return &fault{}
}

// handshake is TLS's. It waits for a place among the handshakes that run, and has HandshakeTimeout in all, however
// slowly the client sends.
func (c *conn) handshake(w *wire) (*tls.Conn, error) {
	c.waiting.Store(true)
	defer c.waiting.Store(false)
	end := time.Now().Add(c.srv.opts.HandshakeTimeout)
	ctx, cancel := context.WithDeadline(c.ctx, end)
	defer cancel()
	certs := c.srv.certs
	if err := certs.enter(ctx); err != nil {
		return nil, err
	}
	defer certs.leave()
	if err := c.setDeadline(end); err != nil {
		return nil, err
	}
	tc := tls.Server(w, certs.outer)
	w.setDirect(true)
	err := tc.Handshake()
	w.setDirect(false)
	c.lastByte.Store(c.srv.now())
	if err != nil {
		if stuck(err) {
			return nil, fmt.Errorf("it was not complete after %v", c.srv.opts.HandshakeTimeout)
		}
		return nil, err
	}
	return tc, c.setDeadline(time.Time{})
}

// setDeadline sets the socket's deadlines without undoing what stop does.
func (c *conn) setDeadline(t time.Time) error {
	err := c.nc.SetDeadline(t)
	if c.stopping.Load() && err == nil {
		err = c.nc.SetReadDeadline(time.Unix(1, 0))
	}
	return err
}

// readWrapped is read for a connection with TLS or compression.
func (c *conn) readWrapped() error {
	if c.readErr != nil {
		return c.readErr
	}
	in := &c.in
	if c.link.Load().compression != compressNone {
		if in.r == in.w && in.buf != nil && len(in.buf.b) > streamReadBytes {
			in.park() // it was a large command's
		}
		in.size = min(in.size, streamReadBytes)
	}
	for {
		room := in.room(c.parser.need)
		n, err := readAvailable(c.stream, room)
		if n > 0 {
			if err != errNothing {
				c.readErr = err // for the next time
			}
			in.filled(n, len(room))
			c.lastByte.Store(c.srv.now())
			return nil
		}
		if err != errNothing {
			return err
		}
		in.park()
		c.wire.fill()
	}
}

// readAvailable reads as many TLS records as are there and fit into room, or one piece of a decompressor's: asking that
// for a second piece could wait.
func readAvailable(r io.Reader, room []byte) (n int, err error) {
	_, records := r.(*tls.Conn)
	for n < len(room) && err == nil && (n == 0 || records) {
		var k int
		k, err = r.Read(room[n:])
		n += k
	}
	return n, err
}

// sayGoodbye sends TLS's close_notify: without it a client could not tell the end of the stream from an attacker's cut.
func (c *conn) sayGoodbye() {
	if c.tls == nil {
		return
	}
	_ = c.tls.CloseWrite() // into the wire; a client that is gone needs none
	c.out.flush()
}
