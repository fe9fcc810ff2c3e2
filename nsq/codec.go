package nsq

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/s2"

	"penstock/internal/lock"
)

const (
	// streamReadBytes is the size of the read buffer of a connection with compression. Such a connection keeps its buffer
	// while it waits: a decompressor cannot say that it would have to wait before it is given the buffer.
	streamReadBytes = 16 << 10

	// compressedReadBytes is how much compressed input is read at once.
	compressedReadBytes = 4 << 10

	// snappyBlockBytes is the largest block of snappy's framing format.
	snappyBlockBytes = 64 << 10

	// maxUnaskedBytes bounds what TLS says by itself (answers to key updates, alerts) while the client does not read.
	maxUnaskedBytes = 64 << 10

	// asideBytes is how much a goroutine that serves other connections, too, encodes itself; more is left to a writer
	// goroutine (output.flushAside).
	asideBytes = 32 << 10

	// Decompressed input beyond inflationFloorBytes must keep the ratio of Options.MaxInflationRatio. After each
	// inflationWindowBytes the counts are halved, so that the past counts less and less.
	inflationFloorBytes  = 4 << 20
	inflationWindowBytes = 64 << 20
)

var (
	errWireFull = errors.New("the client does not read what TLS answers by itself; the connection is closed")
	errInflated = errors.New("compressed input became larger than MaxInflationRatio allows; " +
		"the connection is closed, and what was answered OK is stored")
)

// wire is the net.Conn below TLS and compression. It is memory, not the socket, so that a connection with them needs no
// further goroutine and never blocks where a plain one would not.
//
// Read returns errNothing instead of waiting; the reader then waits in fill, without holding a buffer. What Write is
// given collects in out until the output's owner takes it and writes it to the socket as it would frames.
//
// Read and fill are the reader's. Write is called by the output's owner, and by the reader where TLS answers by itself;
// TLS orders the two. mu guards out, limit and direct, and nothing but the direct writes of a handshake waits under it.
type wire struct {
	net.Conn
	raw     syscall.RawConn
	in      input
	attempt func(fd uintptr) bool
	err     error // why nothing more comes in; nil: not ended

	mu     lock.Mutex[lock.NSQWire]
	out    chunk
	limit  int  // len(out.p) ≤ limit
	direct bool // during the handshake: reads wait, writes go to the socket at once
}

// newWire makes a wire. first are bytes that were read before the upgrade: Read returns them first.
func newWire(nc net.Conn, raw syscall.RawConn, first []byte) *wire {
	w := &wire{Conn: nc, raw: raw, limit: maxUnaskedBytes}
	w.attempt = func(fd uintptr) bool {
		var n int
		if n, w.err = w.in.readOnce(fd, 1); w.err == nil && n == 0 {
			w.err = io.EOF
		}
		return w.err != syscall.EAGAIN
	}
	if len(first) > 0 {
		w.in.buf = newBlock(len(first))
		w.in.w = copy(w.in.buf.b, first)
	}
	return w
}

// errNothing is what Read returns where it would have to wait. It is a temporary net.Error, so TLS can be read from
// again.
var errNothing net.Error = nothing{}

type nothing struct{}

func (nothing) Error() string   { return "no bytes of the client are there yet" }
func (nothing) Timeout() bool   { return true }
func (nothing) Temporary() bool { return true }

func (w *wire) Read(p []byte) (int, error) {
	if w.in.r == w.in.w {
		switch {
		case w.err != nil:
			return 0, w.err
		case !w.isDirect():
			return 0, errNothing
		}
		return w.Conn.Read(p)
	}
	n := copy(p, w.in.unread())
	w.in.r += n
	w.in.park()
	return n, nil
}

// fill waits for bytes. An error of it is what the next Read returns.
func (w *wire) fill() {
	if err := w.raw.Read(w.attempt); err != nil {
		w.err = err
	}
}

// blockingReader waits in fill where above returns errNothing. Decompressors read from it: they cannot go on after an
// error.
type blockingReader struct {
	above io.Reader // the wire, or TLS on it
	w     *wire
}

func (r blockingReader) Read(p []byte) (int, error) {
	for {
		n, err := r.above.Read(p)
		if err != errNothing {
			return n, err
		}
		if n > 0 {
			return n, nil
		}
		r.w.fill()
	}
}

func (w *wire) isDirect() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.direct
}

func (w *wire) setDirect(on bool) {
	w.mu.Lock()
	w.direct = on
	w.mu.Unlock()
}

func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.direct {
		return w.Conn.Write(p)
	}
	if len(w.out.p)+len(p) > w.limit {
		return 0, errWireFull
	}
	w.out.grow(len(p))
	w.out.p = append(w.out.p, p...)
	return len(p), nil
}

// SetWriteDeadline does nothing: TLS sets one when it closes, and the socket's deadlines are the output's.
func (w *wire) SetWriteDeadline(time.Time) error { return nil }

// expect raises the limit for what n bytes of frames become: compression and TLS add little to what does not shrink.
func (w *wire) expect(n int) {
	w.mu.Lock()
	w.limit = 2*n + maxUnaskedBytes
	w.mu.Unlock()
}

func (w *wire) pending() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.out.p) > 0
}

func (w *wire) take() chunk {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.out
	w.out, w.limit = chunk{}, maxUnaskedBytes
	return c
}

// encoder turns frames into what goes over the wire. Only the output's owner uses it.
type encoder struct {
	wire  *wire
	w     io.Writer    // TLS or the compressor; both end in wire
	flush func() error // of the compressor; nil: none
}

func (e *encoder) write(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	if _, err := e.w.Write(p); err != nil {
		return err
	}
	if e.flush == nil {
		return nil
	}
	return e.flush()
}

// encode replaces the frames in c. The compressor is flushed with every chunk, which is when the output is flushed: the
// client can read all of it at once.
func (e *encoder) encode(c *chunk) error {
	e.wire.expect(len(c.p))
	err := e.write(c.p)
	coded := e.wire.take()
	coded.owed = c.owed
	c.free()
	*c = coded
	return err
}

// compression is what IDENTIFY may ask for, one at most.
type compression uint8

const (
	compressNone compression = iota
	compressDeflate
	compressSnappy
)

// newCompressor returns a compressor and its flush, which writes to dst all that the compressor was given.
func newCompressor(how compression, level int, dst io.Writer) (io.Writer, func() error) {
	if how == compressSnappy {
		w := s2.NewWriter(dst, s2.WriterSnappyCompat(), s2.WriterConcurrency(1), s2.WriterBlockSize(snappyBlockBytes))
		return w, w.Flush
	}
	w, err := flate.NewWriter(dst, level)
	if err != nil {
		panic("BUG: the deflate level passed the options: " + err.Error())
	}
	return w, w.Flush
}

// inflater reads a client's compressed stream. Only the reader uses it. Its memory is bounded whatever the stream is:
// at any time by the buffer that Read is given, and in all by the ratio, beyond which Read returns errInflated and the
// connection ends.
type inflater struct {
	src     *bufio.Reader
	r       io.Reader
	ratio   int64
	in, out int64 // bytes read and returned: out ≤ inflationFloorBytes + ratio × in. See inflationWindowBytes.
}

// counted counts the bytes that come in.
type counted struct {
	io.Reader
	f *inflater
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.f.in += int64(n)
	return n, err
}

func newInflater(how compression, src io.Reader, ratio int) *inflater {
	f := &inflater{ratio: int64(ratio)}
	f.src = bufio.NewReaderSize(counted{src, f}, compressedReadBytes)
	if how == compressSnappy {
		f.r = s2.NewReader(f.src, s2.ReaderAllocBlock(compressedReadBytes), s2.ReaderMaxBlockSize(snappyBlockBytes))
	} else {
		f.r = flate.NewReader(f.src)
	}
	return f
}

func (f *inflater) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	f.out += int64(n)
	if f.out > inflationFloorBytes+f.ratio*f.in {
		return 0, fmt.Errorf("%w: %d bytes of %d", errInflated, f.out, f.in)
	}
	if f.out > inflationWindowBytes {
		f.in, f.out = f.in/2, f.out/2
	}
	return n, err
}
