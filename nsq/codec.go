package nsq

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/s2"
)

const (
	// streamReadBytes is the read buffer of a connection with compression. It is kept while the connection waits, since the
	// decompressors cannot say that they would; connections without compression wait without one.
	streamReadBytes = 16 << 10

	// compressedReadBytes is how much compressed input is read at once.
	compressedReadBytes = 4 << 10

	// snappyBlockBytes is the largest block of snappy's framing format.
	snappyBlockBytes = 64 << 10

	// maxUnaskedBytes bounds what TLS says by itself (answers to key updates, alerts) while the client does not read.
	maxUnaskedBytes = 64 << 10

	// asideBytes of frames are encoded at once by whoever flushes; more by a goroutine of their own, as it may flush others' output, too.
	asideBytes = 32 << 10

	// inflationFloorBytes may come of any input before its ratio is looked at; beyond inflationWindowBytes the past counts half.
	inflationFloorBytes  = 4 << 20
	inflationWindowBytes = 64 << 20
)

var (
	errWireFull = errors.New("the client does not read what TLS answers by itself; the connection is closed")
	errInflated = errors.New("compressed input became larger than MaxInflationRatio allows; the connection is closed, and what was answered OK is stored")
)

// wire is what TLS and compression take for the connection. Reading never blocks: where nothing is left it returns errNothing, and its user waits in
// fill, without buffers. What they write collects in it until the output's owner takes it to the socket the way frames without them
// go, so an encoded connection needs no writer goroutine of its own either.
//
// Read and fill are the reader's. Write may come from the output's owner and, within TLS, from the reader: their order is TLS's.
type wire struct {
	net.Conn
	raw     syscall.RawConn
	in      input
	attempt func(fd uintptr) bool
	err     error // the end of what comes in

	mu     sync.Mutex
	out    chunk
	limit  int  // of out
	direct bool // during the handshake: reads wait, writes go to the socket at once
}

// newWire gets the bytes that were read before the upgrade; they come first.
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

// errNothing is temporary: TLS goes on after it.
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

// fill waits for bytes; how that ended is what Read says.
func (w *wire) fill() {
	if err := w.raw.Read(w.attempt); err != nil {
		w.err = err
	}
}

// waiting is a Reader that waits where the one above the wire finds nothing.
type waiting struct {
	above io.Reader
	w     *wire
}

func (r waiting) Read(p []byte) (int, error) {
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

// expect makes room for what n bytes of frames become; compression and TLS add little to what does not shrink.
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

// encoder turns frames into what goes over the wire. The output's owner uses it.
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

// newCompressor writes to dst what its flush completes.
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

// inflater reads a client's compressed stream. Its memory does not depend on the stream; what the stream becomes is bounded by the reader's
// buffer at any time, and in all by the ratio.
type inflater struct {
	src     *bufio.Reader
	r       io.Reader
	ratio   int64
	in, out int64 // bytes since a while ago
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
