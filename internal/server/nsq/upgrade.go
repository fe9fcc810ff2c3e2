package nsq

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/klauspost/compress/flate"

	"penstock/internal/server/handshakes"
	"penstock/internal/server/nsq/command"
)

// link describes the TLS and the compression of a connection, for /stats, AUTH and the reader. It is immutable.
type link struct {
	tls         *tls.ConnectionState // nil: no TLS
	compression compression
}

// plain is the link of a connection before IDENTIFY, or if IDENTIFY negotiated nothing.
var plain = &link{}

// upgrade wraps the connection as IDENTIFY negotiated: TLS first, compression within it, and sends an OK through each.
// The reader calls it.
//
// upgrade first waits until all answers so far are on the socket. From then on it owns the output until it is done,
// because a heartbeat in the middle of a handshake would break the handshake. size is the length of the IDENTIFY in the
// input. The bytes behind it belong to the handshake or to the compressed stream. They arrived without TLS, and must
// never be taken for commands.
//
// If it fails, the connection ends. The fault has no text, because there is no protocol left in which to tell the
// client.
func (c *conn) upgrade(set *agreed, size int) *command.Fault {
	c.out.flush()
	acquired := false
	c.wait(func() bool {
		acquired = c.answers.idle() && c.out.acquire()
		return acquired || c.out.failure() != nil || c.stopping.Load()
	})
	if !acquired {
		return command.NewFault("")
	}
	behind := c.in.unread()[size:]
	w := newWire(c.out.nc, c.out.raw, behind)
	w.in.small = c.parser.Stranger
	c.in.w -= len(behind)

	l := &link{compression: set.compression}
	enc := &encoder{wire: w, w: w}
	src := io.Reader(w)
	if set.tls {
		tc, err := c.handshake(w)
		if err != nil {
			if !errors.Is(err, handshakes.ErrBusy) { // of which the gate tells
				c.srv.opts.Log.Info("closing an NSQ connection: its TLS handshake failed", "client", c.remote, "error", err)
			}
			c.out.close()
			c.out.release(nil)
			return command.NewFault("")
		}
		state := tc.ConnectionState()
		l.tls, c.tls = &state, tc
		c.parser.TLSRequired = false
		enc.w, src = tc, tc
		if err := enc.write(okFrames[:okFrameBytes]); err != nil {
			return c.failedUpgrade(err)
		}
	}
	if set.compression != compressNone {
		c.compress(enc, set)
		src = newInflater(set.compression, blockingReader{src, w}, c.srv.settings().MaxInflationRatio)
		if err := enc.write(okFrames[:okFrameBytes]); err != nil {
			return c.failedUpgrade(err)
		}
	}
	c.wire, c.stream = w, src
	c.link.Store(l)
	c.out.release(enc)
	return nil
}

// compress makes enc compress. A deflate compressor takes about 1 MiB, so the client gets one after AUTH; until then
// its few frames are compressed one by one.
func (c *conn) compress(enc *encoder, set *agreed) {
	dst := enc.w
	compressor := func() (io.Writer, func() error) { return newCompressor(set.compression, set.deflateLevel, dst) }
	if set.compression != compressDeflate || !c.parser.Stranger {
		enc.w, enc.flush = compressor()
		return
	}
	enc.w, enc.flush = flate.NewStatelessWriter(dst), func() error { return nil }
	enc.later = func() {
		if c.login.Load() != nil {
			enc.w, enc.flush = compressor()
			enc.later = nil
		}
	}
}

// failedUpgrade ends the connection after an error of TLS or of the compressor. These write to memory, so the error is
// not a network error.
func (c *conn) failedUpgrade(err error) *command.Fault {
	c.srv.opts.Logger.Error("closing an NSQ connection: its output cannot be encoded", "client", c.remote, "error", err)
	c.out.close()
	c.out.release(nil)
	return command.NewFault("")
}

// handshake performs the TLS handshake, which waits for its turn in package handshakes. The client has HandshakeTimeout
// for all of it, however slowly it sends.
func (c *conn) handshake(w *wire) (*tls.Conn, error) {
	c.waiting.Store(true)
	defer c.waiting.Store(false)
	if err := c.setDeadline(time.Now().Add(c.srv.settings().HandshakeTimeout)); err != nil {
		return nil, err
	}
	tc := handshakes.Server(w, c.srv.opts.TLS)
	w.setDirect(true)
	err := tc.HandshakeContext(c.ctx)
	w.setDirect(false)
	c.lastByte.Store(c.srv.now())
	if err != nil {
		if stuck(err) {
			return nil, fmt.Errorf("it was not complete after %v", c.srv.settings().HandshakeTimeout)
		}
		return nil, err
	}
	return tc, c.setDeadline(time.Time{})
}

// setDeadline sets the socket's deadlines without undoing the deadline that stop has set.
func (c *conn) setDeadline(t time.Time) error {
	err := c.out.nc.SetDeadline(t)
	if c.stopping.Load() && err == nil {
		err = c.out.nc.SetReadDeadline(time.Unix(1, 0))
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
			in.park() // the buffer of a large command
		}
		in.size = min(in.size, streamReadBytes)
	}
	for {
		room := in.room(c.parser.Need)
		n, err := readAvailable(c.stream, room)
		if n > 0 {
			if err != errNothing {
				c.readErr = err // returned by the next call
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

// readAvailable reads as many TLS records as have arrived and fit into room. From a decompressor it reads only once,
// because a second read might wait.
func readAvailable(r io.Reader, room []byte) (n int, err error) {
	_, records := r.(*tls.Conn)
	for n < len(room) && err == nil && (n == 0 || records) {
		var k int
		k, err = r.Read(room[n:])
		n += k
	}
	return n, err
}

// sayGoodbye sends TLS's close_notify. Without it a client cannot tell the end of the stream from a connection that an
// attacker has cut.
func (c *conn) sayGoodbye() {
	if c.tls == nil {
		return
	}
	_ = c.tls.CloseWrite() // goes into the wire; a client that is gone does not need it
	c.out.flush()
}
