package nsq

import (
	"encoding/binary"
	"errors"
	"math"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"penstock/engine"
	"penstock/internal/lock"
)

const (
	frameResponse = 0
	frameError    = 1
	frameMessage  = 2

	frameHeaderBytes   = 8          // size, type
	messageHeaderBytes = 8 + 2 + 16 // timestamp, attempts, id
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

// output is everything that goes to one client.
//
// Any goroutine appends whole frames under mu. One goroutine at a time owns the output: it set busy, takes all frames
// that are there, and writes them without mu. The owner is whoever flushes (the reader, who delivered, the sweep), or
// the flusher while the output is lent, or the writer goroutine (writeBlocking), which takes over when the socket does
// not take everything at once and lives until nothing is left. A flush while there is an owner does nothing: the owner
// takes the new frames along.
//
// mu guards everything from next to slowAt, and bound. Nothing is called under it that waits, and no other lock is
// taken inside it but wire.mu. A client that does not read is not read from either, its consumer is stopped, and after
// timeout the output fails: what was not sent is dropped, and the connection ends.
type output struct {
	nc  net.Conn
	raw syscall.RawConn
	fd  int // of nc

	bound   int          // with more unsent bytes the client's consumer is stopped and its commands are not read
	timeout atomic.Int64 // time.Duration for the client to read what one write took

	// onDrained runs on the writer goroutine after a full output fell below half its bound.
	onDrained func()
	// onProgress runs, on any goroutine and without mu, when something was sent or the output failed.
	onProgress func()

	mu      lock.Mutex[lock.NSQOutput]
	next    chunk  // frames that no owner took yet
	ext     []byte // the last message's headers in youzan's form: memory for the next one's
	unsent  int    // bytes in next and at the owner
	busy    bool   // an owner writes
	lent    bool   // the owner is the flusher, which writes to the descriptor: the socket must stay open
	closing bool   // the socket is to be closed when it is not lent any more
	full    bool   // Deliver said stop: onDrained is owed
	sealed  bool   // nothing is appended any more: the last frame is in, or the output failed
	failed  error

	heldCount int // frames in next and at the owner that may be written only until some time
	spareHeld []heldFrame
	dropped   []engine.HeldDelivery
	slow      *chunk // the writer goroutine waits with it, slowAt bytes of it are written
	slowAt    int

	enc *encoder // nil: frames go out as they are; set once, by release

	// The owner's, arguments and results of attempt.
	writing []byte
	written int
	err     error
	attempt func(fd uintptr) bool
}

func (o *output) init(nc net.Conn, raw syscall.RawConn) {
	o.nc, o.raw = nc, raw
	o.attempt = func(fd uintptr) bool {
		for {
			o.written, o.err = syscall.Write(int(fd), o.writing)
			if o.err != syscall.EINTR {
				return true // one attempt: EAGAIN is the caller's business
			}
		}
	}
}

// chunk is whole frames in a block. The zero value is none.
type chunk struct {
	k    *block
	p    []byte // the frames, or what they are encoded as, at the start of the block
	owed int    // its part of output.unsent; set by take, and kept when the frames are encoded

	held    []heldFrame // those of its frames that are held, in order
	encoded bool        // p is not frames any more
}

// grow makes room for n more bytes.
func (c *chunk) grow(n int) {
	if c.k != nil && len(c.p)+n <= cap(c.p) {
		return
	}
	k := newBlock(max(len(c.p)+n, 2*cap(c.p)))
	p := append(k.b[:0], c.p...)
	if c.k != nil {
		c.k.release()
	}
	c.k, c.p = k, p
}

func (c *chunk) free() {
	if c.k != nil {
		c.k.release()
	}
	*c = chunk{}
}

// space makes room for n bytes at the end of next; false: nothing may be appended any more. mu is held.
func (o *output) space(n int) bool {
	if o.sealed {
		return false
	}
	o.next.grow(n)
	o.unsent += n
	return true
}

// append adds whole frames.
func (o *output) append(frames []byte) {
	o.mu.Lock()
	if len(frames) > 0 && o.space(len(frames)) {
		o.next.p = append(o.next.p, frames...)
	}
	o.mu.Unlock()
}

// appendOKs adds n "OK" frames.
func (o *output) appendOKs(n int) {
	o.mu.Lock()
	if o.space(n * okFrameBytes) {
		for ; n > 0; n -= len(okFrames) / okFrameBytes {
			o.next.p = append(o.next.p, okFrames[:min(n*okFrameBytes, len(okFrames))]...)
		}
	}
	o.mu.Unlock()
}

// appendMessage adds a message frame, which copies the body, and says whether there is room for another. Whoever
// delivers calls it, with Channel.mu or remote.Consumer.mu held.
func (o *output) appendMessage(d *engine.Delivery) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.space(frameHeaderBytes + messageHeaderBytes + len(d.Body)) {
		return false
	}
	p, from := o.next.p, len(o.next.p)
	p = binary.BigEndian.AppendUint32(p, uint32(4+messageHeaderBytes+len(d.Body)))
	p = binary.BigEndian.AppendUint32(p, frameMessage)
	p = binary.BigEndian.AppendUint64(p, uint64(d.Timestamp))
	p = binary.BigEndian.AppendUint16(p, d.Attempts)
	p = d.ID.Append(p)
	o.next.p = append(p, d.Body...)
	o.holdLast(from, d)
	o.full = o.full || o.unsent >= o.bound
	return !o.full
}

// seal refuses all later frames: what is there is the last that the client gets.
func (o *output) seal() {
	o.mu.Lock()
	o.sealed = true
	o.mu.Unlock()
}

// backlog says that more than the bound is unsent.
func (o *output) backlog() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.unsent > o.bound && o.failed == nil
}

// stopsDelivery says that the consumer was stopped because the client does not read.
func (o *output) stopsDelivery() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.full
}

// allSent says that everything was written to the socket, or that nothing can be written any more.
func (o *output) allSent() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.unsent == 0 || o.failed != nil
}

// take gives the owner all frames in next; false: there is nothing to write. mu is held.
func (o *output) take() (chunk, bool) {
	c := o.next
	if o.failed != nil || c.k == nil && !o.encodedLeft() {
		return chunk{}, false
	}
	o.next = chunk{}
	c.owed = len(c.p)
	if len(c.held) > 0 {
		_ = o.cut(&c, 0, late) // nothing of it was written
	}
	return c, true
}

// encodedLeft says that the wire has bytes to write that are no frames: TLS answers some messages by itself.
func (o *output) encodedLeft() bool { return o.enc != nil && o.enc.wire.pending() }

// encode turns a chunk that was taken into what goes to the socket. Only the owner calls it, without mu.
func (o *output) encode(c *chunk) error {
	if o.enc == nil {
		return nil
	}
	held := c.held
	err := o.enc.encode(c)
	c.held, c.encoded = held, true
	return err
}

// acquire makes the caller the owner if everything was written: until release frames only collect. false: somebody is
// writing, or has to.
func (o *output) acquire() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.busy || o.unsent > 0 || o.failed != nil {
		return false
	}
	o.busy = true
	return true
}

// release ends what acquire began. All frames that are not written yet go through enc.
func (o *output) release(enc *encoder) {
	o.mu.Lock()
	o.enc = enc
	o.busy = false
	o.mu.Unlock()
	o.flush()
}

// wrote accounts for a chunk that is done with. mu is held.
func (o *output) wrote(c chunk) {
	o.unsent -= c.owed
	if c.held != nil {
		o.heldCount -= len(c.held)
		clear(c.held)
		o.spareHeld = c.held[:0]
	}
	c.free()
}

// flush writes what is unsent, without waiting. What the socket does not take is left to a writer goroutine, and so is
// letting a stopped consumer go on. If there is an owner already, it does all of that.
func (o *output) flush() { o.flushUpTo(math.MaxInt) }

// flushAside is flush for goroutines that serve other connections, too: if there is much to encode, it leaves that to a
// writer goroutine.
func (o *output) flushAside() { o.flushUpTo(asideBytes) }

// flushUpTo leaves frames that have to be encoded and are more than most bytes to a writer goroutine.
func (o *output) flushUpTo(most int) {
	o.mu.Lock()
	if o.busy || o.next.k == nil && !o.encodedLeft() || o.failed != nil {
		o.mu.Unlock()
		return
	}
	o.busy = true
	if o.enc != nil && o.unsent > most {
		o.mu.Unlock()
		go o.writeBlocking(chunk{}, 0)
		return
	}
	for range maxDirectWrites {
		if o.full {
			break
		}
		c, ok := o.take()
		if !ok {
			break
		}
		o.mu.Unlock()
		n, err := 0, o.encode(&c)
		if err == nil {
			n, err = o.tryWrite(c.p)
		}
		if n < len(c.p) && err == nil || errors.Is(err, syscall.EAGAIN) {
			go o.writeBlocking(c, n) // it is the owner now
			return
		}
		o.mu.Lock()
		o.wrote(c)
		if err != nil {
			o.fail(err)
		}
	}
	if o.failed == nil && (o.full || o.next.k != nil || o.encodedLeft()) {
		o.mu.Unlock()
		go o.writeBlocking(chunk{}, 0)
		return
	}
	o.busy = false
	o.mu.Unlock()
	o.onProgress()
}

// lend makes the flusher the owner and gives it all that is unsent, to write it to the descriptor together with the
// bytes of other outputs. The socket stays open until giveBack: if it were closed, another connection could get the
// same descriptor. false: the flusher flushes this output as any caller does.
func (o *output) lend() (chunk, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.busy || o.full || o.enc != nil || o.next.k == nil || o.failed != nil {
		return chunk{}, false
	}
	c, ok := o.take()
	o.busy, o.lent = ok, ok
	return c, ok
}

// giveBack ends what lend began: n bytes of the chunk were written, and err is why not more were.
func (o *output) giveBack(c chunk, n int, err error) {
	o.mu.Lock()
	o.lent = false
	closing := o.closing
	if !closing && (n < len(c.p) && err == nil || errors.Is(err, syscall.EAGAIN)) {
		o.mu.Unlock()
		go o.writeBlocking(c, n) // it is the owner now
		return
	}
	o.wrote(c)
	if err != nil {
		o.fail(err)
	}
	o.busy = false
	o.mu.Unlock()
	if closing {
		_ = o.nc.Close() // see conn.kill
		return
	}
	o.flushAside() // what was appended meanwhile
	o.onProgress()
}

// tryWrite makes one system call that does not block. Only the owner calls it, without mu.
func (o *output) tryWrite(p []byte) (int, error) {
	o.writing, o.written, o.err = p, 0, nil
	err := o.raw.Write(o.attempt)
	o.writing = nil
	if err == nil {
		err = o.err
	}
	return max(o.written, 0), err
}

// encodeNext in place of a number of bytes says that the chunk was not encoded yet.
const encodeNext = -1

// writeBlocking is the writer goroutine. It owns the output. It writes the rest of c, from n on, and everything that is
// appended meanwhile, lets a stopped consumer go on when half of the bound is free, and ends when nothing is left.
func (o *output) writeBlocking(c chunk, n int) {
	for {
		var err error
		if n == encodeNext {
			n, err = 0, o.encode(&c)
		}
		if c.k != nil && err == nil {
			if err = o.nc.SetWriteDeadline(time.Now().Add(time.Duration(o.timeout.Load()))); err == nil {
				if len(c.held) > 0 {
					err = o.writeHeld(&c, n)
				} else {
					_, err = o.nc.Write(c.p[n:])
				}
			}
		}
		o.mu.Lock()
		o.wrote(c)
		if err != nil {
			o.fail(err)
		}
		drained := o.full && o.failed == nil && o.unsent <= o.bound/2
		if drained {
			o.full = false
			o.mu.Unlock()
			o.onDrained() // may deliver, which appends
			o.mu.Lock()
		}
		var ok bool
		c, ok = o.take()
		if n = encodeNext; !ok {
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

// close ends the output: nothing more goes to the client. It closes the socket, or while the output is lent leaves that
// to giveBack. Any goroutine may call it.
func (o *output) close() {
	o.mu.Lock()
	o.fail(net.ErrClosed)
	lent := o.lent
	o.closing = lent
	o.mu.Unlock()
	if !lent {
		_ = o.nc.Close() // nobody is left to tell
	}
}

// fail ends the output: what is in next is dropped, and nothing is appended any more. mu is held.
func (o *output) fail(err error) {
	if o.failed == nil {
		o.failed = err
	}
	o.sealed = true
	o.unsent -= len(o.next.p)
	o.heldCount -= len(o.next.held)
	o.next.free()
}

// failure returns why the output ended, if it did.
func (o *output) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failed
}

// stuck says that the client did not read within the timeout.
func stuck(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
