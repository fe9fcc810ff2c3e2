package nsq

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/valyala/bytebufferpool"

	"penstock/engine"
)

const (
	frameResponse = 0
	frameError    = 1
	frameMessage  = 2

	frameHeaderBytes   = 8          // size, type
	messageHeaderBytes = 8 + 2 + 16 // timestamp, attempts, id
	maxPooledOutput    = 1 << 20    // larger output buffers are left to the garbage collector
	maxDirectWrites    = 8          // in a row by whoever flushes, before the writer goroutine takes over
)

var heartbeatFrame = appendFrame(nil, frameResponse, "_heartbeat_")

// okFrames is a run of "OK" frames: a pipelining producer gets hundreds at once.
var okFrames = func() []byte {
	var b []byte
	for range 64 {
		b = appendFrame(b, frameResponse, "OK")
	}
	return b
}()

const okFrameBytes = frameHeaderBytes + 2

func appendFrame(dst []byte, kind uint32, data string) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(4+len(data)))
	dst = binary.BigEndian.AppendUint32(dst, kind)
	return append(dst, data...)
}

// output is everything that goes to one client. Whole frames are appended under mu by whoever has them; one
// owner at a time, the one that set busy, takes all that is there and writes it without mu.
type output struct {
	nc  net.Conn
	raw syscall.RawConn

	bound   int           // when more bytes wait, the client's consumer is stopped and its commands are not read
	timeout time.Duration // for the client to read what one write took

	// onDrained runs on the writer goroutine after a full output fell below half its bound.
	onDrained func()
	// onProgress runs, on any goroutine and without mu, when less waits or the output failed.
	onProgress func()

	mu      sync.Mutex
	buf     *bytebufferpool.ByteBuffer // frames that no owner took yet; nil: none
	waiting int                        // bytes in buf and at the owner
	busy    bool                       // an owner writes
	full    bool                       // Deliver said stop: onDrained is owed
	sealed  bool                       // nothing is appended any more: the last frame is in, or the output failed
	failed  error

	// The owner's, for tryWrite.
	chunk   []byte
	written int
	err     error
	attempt func(fd uintptr) bool
}

func (o *output) init(nc net.Conn, raw syscall.RawConn) {
	o.nc, o.raw = nc, raw
	o.attempt = func(fd uintptr) bool {
		for {
			o.written, o.err = syscall.Write(int(fd), o.chunk)
			if o.err != syscall.EINTR {
				return true // one attempt: EAGAIN is the caller's business
			}
		}
	}
}

// space returns the buffer to append to, or nil when nothing may be appended. mu is held.
func (o *output) space() *bytebufferpool.ByteBuffer {
	if o.sealed {
		return nil
	}
	if o.buf == nil {
		o.buf = bytebufferpool.Get()
	}
	return o.buf
}

// append adds whole frames.
func (o *output) append(frames []byte) {
	o.mu.Lock()
	if b := o.space(); b != nil {
		b.B = append(b.B, frames...)
		o.waiting += len(frames)
	}
	o.mu.Unlock()
}

// appendOKs adds n "OK" frames.
func (o *output) appendOKs(n int) {
	o.mu.Lock()
	if b := o.space(); b != nil {
		o.waiting += n * okFrameBytes
		for ; n > 0; n -= len(okFrames) / okFrameBytes {
			b.B = append(b.B, okFrames[:min(n*okFrameBytes, len(okFrames))]...)
		}
	}
	o.mu.Unlock()
}

// appendMessage adds a message frame and says whether there is room for another.
func (o *output) appendMessage(d *engine.Delivery) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	b := o.space()
	if b == nil {
		return false
	}
	before := len(b.B)
	p := binary.BigEndian.AppendUint32(b.B, uint32(4+messageHeaderBytes+len(d.Body)))
	p = binary.BigEndian.AppendUint32(p, frameMessage)
	p = binary.BigEndian.AppendUint64(p, uint64(d.Timestamp))
	p = binary.BigEndian.AppendUint16(p, d.Attempts)
	p = d.ID.Append(p)
	b.B = append(p, d.Body...)
	o.waiting += len(b.B) - before
	o.full = o.full || o.waiting >= o.bound
	return !o.full
}

// seal lets nothing more in: what is there is the last the client gets.
func (o *output) seal() {
	o.mu.Lock()
	o.sealed = true
	o.mu.Unlock()
}

// backlog says that more than the bound waits for the client to read.
func (o *output) backlog() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.waiting > o.bound && o.failed == nil
}

// settled says that nothing waits, or that nothing can be written any more.
func (o *output) settled() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.waiting == 0 || o.failed != nil
}

// take makes the caller's turn's chunk from all that waits; false: nothing does. The caller is the owner and mu is held.
func (o *output) take() (*bytebufferpool.ByteBuffer, bool) {
	b := o.buf
	if b == nil || o.failed != nil {
		return nil, false
	}
	o.buf = nil
	return b, true
}

// wrote accounts for a chunk that is done with. mu is held.
func (o *output) wrote(b *bytebufferpool.ByteBuffer) {
	o.waiting -= len(b.B)
	if cap(b.B) <= maxPooledOutput {
		bytebufferpool.Put(b)
	}
}

// flush writes what waits, without blocking: what the socket does not take, and the calling of a stopped
// consumer, is left to a writer goroutine. When another goroutine is writing already, it takes this along.
func (o *output) flush() {
	o.mu.Lock()
	if o.busy || o.buf == nil || o.failed != nil {
		o.mu.Unlock()
		return
	}
	o.busy = true
	for range maxDirectWrites {
		b, ok := o.take()
		if !ok || o.full {
			if ok {
				o.buf = b
			}
			break
		}
		o.mu.Unlock()
		n, err := o.tryWrite(b.B)
		if n < len(b.B) && err == nil || errors.Is(err, syscall.EAGAIN) {
			go o.writeBlocking(b, n) // it is the owner now
			return
		}
		o.mu.Lock()
		o.wrote(b)
		if err != nil {
			o.fail(err)
		}
	}
	if o.failed == nil && (o.full || o.buf != nil) {
		o.mu.Unlock()
		go o.writeBlocking(nil, 0)
		return
	}
	o.busy = false
	o.mu.Unlock()
	o.onProgress()
}

// tryWrite makes one system call that does not block. Owner only, without mu.
func (o *output) tryWrite(p []byte) (int, error) {
	o.chunk, o.written, o.err = p, 0, nil
	err := o.raw.Write(o.attempt)
	o.chunk = nil
	if err == nil {
		err = o.err
	}
	return max(o.written, 0), err
}

// writeBlocking is the writer goroutine: it writes the rest of b from n on and everything that comes meanwhile, calls a
// stopped consumer, and ends when nothing is left.
func (o *output) writeBlocking(b *bytebufferpool.ByteBuffer, n int) {
	for {
		var err error
		if b != nil {
			if err = o.nc.SetWriteDeadline(time.Now().Add(o.timeout)); err == nil {
				_, err = o.nc.Write(b.B[n:])
			}
		}
		o.mu.Lock()
		if b != nil {
			o.wrote(b)
		}
		if err != nil {
			o.fail(err)
		}
		drained := o.full && o.failed == nil && o.waiting <= o.bound/2
		if drained {
			o.full = false
			o.mu.Unlock()
			o.onDrained() // delivers: more may wait now
			o.mu.Lock()
		}
		var ok bool
		b, ok = o.take()
		n = 0
		if !ok {
			// An expired deadline would fail tryWrite, too.
			if err := o.nc.SetWriteDeadline(time.Time{}); err != nil {
				o.fail(err)
			}
			o.busy = false
			o.mu.Unlock()
			o.onProgress()
			return
		}
		o.mu.Unlock()
		o.onProgress()
	}
}

// close ends the output from outside: nothing more goes to the client.
func (o *output) close() {
	o.mu.Lock()
	o.fail(net.ErrClosed)
	o.mu.Unlock()
}

// fail drops everything: the client will not get more. mu is held.
func (o *output) fail(err error) {
	if o.failed == nil {
		o.failed = err
	}
	o.sealed = true
	if o.buf != nil {
		o.wrote(o.buf)
		o.buf = nil
	}
}

// failure returns why the output ended, if it did.
func (o *output) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failed
}

// stuck says that the client did not read within the timeout.
func stuck(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
