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
	// streamReadBytes is the size of the read buffer of a connection with compression. Such a connection keeps its
	// buffer while it waits, because a decompressor takes the buffer before it knows whether it has to wait.
	streamReadBytes = 16 << 10

	// compressedReadBytes is the size of one read of compressed input.
	compressedReadBytes = 4 << 10

	// snappyBlockBytes is the largest block of snappy's framing format.
	snappyBlockBytes = 64 << 10

	// maxUnaskedBytes bounds the bytes that TLS sends on its own (answers to key updates, alerts) while the client does
	// not read.
	maxUnaskedBytes = 64 << 10

	// asideBytes is how much a goroutine that also serves other connections encodes itself; it leaves more than that to
	// a writer goroutine (output.flushAside).
	asideBytes = 32 << 10

	// Decompressed input beyond inflationFloorBytes must keep to the ratio of Options.MaxInflationRatio. After each
	// inflationWindowBytes the counts are halved, so that older input counts less and less.
	inflationFloorBytes  = 4 << 20
	inflationWindowBytes = 64 << 20
)

var (
	errWireFull = errors.New("the client does not read what TLS answers by itself; the connection is closed")
	errInflated = errors.New("compressed input became larger than MaxInflationRatio allows; " +
		"the connection is closed, and what was answered OK is stored")
)

// wire is the net.Conn below TLS and compression. It is a buffer in memory rather than the socket, so that a connection
// with TLS or compression needs no additional goroutine, and blocks only where a plain one would.
//
// Read returns errNothing instead of waiting; the reader then waits in fill, without holding a buffer. Write appends to
// out. The output's owner takes the bytes from there, and writes them to the socket as it writes the frames of a plain
// connection.
//
// Only the reader calls Read and fill. Write is called by the output's owner, and by the reader when TLS answers by
// itself; TLS serializes the two. mu guards out, limit and direct. Nothing waits while holding mu, except the direct
// writes of a handshake.
type wire struct {
	net.Conn
	raw     syscall.RawConn
	in      input
	attempt func(fd uintptr) bool
	err     error // why the input ended; nil: it has not

	mu     lock.Mutex[lock.NSQWire]
	out    chunk
	limit  int  // len(out.p) ≤ limit
	direct bool // during the handshake: reads may wait, and writes go directly to the socket
}

// newWire returns a wire. Read first returns the bytes in first, which were read before the upgrade.
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

// errNothing is the error that Read returns where it would have to wait. It is a temporary net.Error, so that TLS can
// be read again afterwards.
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

// fill waits until bytes arrive. If that fails, the next Read returns the error.
func (w *wire) fill() {
	if err := w.raw.Read(w.attempt); err != nil {
		w.err = err
	}
}

// blockingReader waits in fill whenever above returns errNothing. Decompressors read from it, because they cannot
// continue after an error.
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

// SetWriteDeadline does nothing: TLS sets a deadline when it closes, but the socket's deadlines belong to the output.
func (w *wire) SetWriteDeadline(time.Time) error { return nil }

// expect raises the limit for the encoded form of n bytes of frames. Compression and TLS add little to data that does
// not shrink.
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

// encoder encodes frames for the wire. Only the output's owner uses it.
type encoder struct {
	wire  *wire
	w     io.Writer    // TLS or the compressor, both of which write to wire
	flush func() error // flushes the compressor; nil: no compression
	later func()       // replaces w, if it is time; nil: there is nothing to replace
}

func (e *encoder) write(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	if e.later != nil {
		e.later()
	}
	if _, err := e.w.Write(p); err != nil {
		return err
	}
	if e.flush == nil {
		return nil
	}
	return e.flush()
}

// encode replaces the frames in c with their encoded form. It flushes the compressor after every chunk, so that the
// client can read the whole chunk at once.
func (e *encoder) encode(c *chunk) error {
	e.wire.expect(len(c.p))
	err := e.write(c.p)
	coded := e.wire.take()
	coded.owed = c.owed
	c.free()
	*c = coded
	return err
}

// compression is the compression that IDENTIFY negotiates, at most one.
type compression uint8

const (
	compressNone compression = iota
	compressDeflate
	compressSnappy
)

// newCompressor returns a compressor, and the function that flushes everything the compressor was given to dst.
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

// inflater decompresses a client's stream. Only the reader uses it. Its memory is bounded for any stream: at any time
// by the buffer that Read is given, and overall by the ratio. Beyond the ratio Read returns errInflated, and the
// connection ends.
type inflater struct {
	src     *bufio.Reader
	r       io.Reader
	ratio   int64
	in, out int64 // bytes read and returned: out ≤ inflationFloorBytes + ratio × in. See inflationWindowBytes.
}

// counted counts the compressed bytes that are read.
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
