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

	"golang.org/x/sys/unix"

	"penstock/internal/lock"
	"penstock/internal/node"
	"penstock/internal/node/message"
)

const (
	frameResponse = 0
	frameError    = 1
	frameMessage  = 2

	frameHeaderBytes   = 8          // size, type
	messageHeaderBytes = 8 + 2 + 16 // timestamp, attempts, id
	maxDirectWrites    = 8          // by a flush, before it hands over to a writer goroutine
)

var heartbeatFrame = appendFrame(nil, frameResponse, "_heartbeat_")

// okFrames is a run of "OK" frames, since a pipelining producer gets hundreds of them at once.
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

// output is the stream of frames to one client.
//
// Any goroutine appends whole frames under mu. At any time at most one goroutine owns the output: it has set busy,
// takes all frames from next, and writes them without holding mu. The owner is the goroutine that flushes (the reader,
// a goroutine that delivers, the sweep), the flusher while the output is lent to it, or the writer goroutine
// (writeBlocking). The writer goroutine takes over when the socket does not accept everything at once, and ends when
// nothing is left. A flush while there is an owner does nothing, because the owner will take the new frames, too.
//
// mu guards the fields from next to slowAt, and bound, most, short and beatDue. Code that holds it does not wait, and
// takes no other lock except wire.mu. If a client does not read, its commands are not read either, and its consumer is
// stopped. After timeout the output fails: unsent frames are dropped, and the connection ends.
type output struct {
	// The socket. Only the reader changes these, under mu and while there is no owner or the owner is the reader; others
	// than the reader and the owner hold mu to read them.
	nc   *net.TCPConn    // nil while the socket is detached, see moderate.go
	raw  syscall.RawConn // of nc
	fd   int             // for calls that do not block
	owns bool            // fd is not nc's but the output's own, which dispose closes

	most    int          // the limit of bound, which is that of a quick link
	bound   int          // above this many unsent bytes the consumer is stopped and no commands are read
	timeout atomic.Int64 // a time.Duration: how long the client may take nothing of a write
	short   bool         // the kernel's queue is kept short, see paced
	beatDue bool         // a heartbeat goes before what is in next

	// onDrained runs on the writer goroutine when a full output has fallen below half its bound.
	onDrained func()
	// onProgress runs on any goroutine, without mu, when something was sent or the output failed.
	onProgress func()

	mu      lock.Mutex[lock.NSQOutput]
	next    chunk  // frames that no owner has taken yet
	ext     []byte // memory for the headers of a message in youzan's form, reused
	unsent  int    // bytes in next and in the owner's chunk
	busy    bool   // there is an owner
	lent    chunk  // the owner is the flusher, which sends this by fd directly: the socket must stay open; empty: not lent
	closing bool   // whoever gives up the ownership must close the socket
	full    bool   // Deliver has told the engine to stop: onDrained must be called later
	sealed  bool   // no more frames are accepted: the last one is in, or the output failed
	failed  error

	heldCount int // held frames in next and in the owner's chunk
	spareHeld []heldFrame
	dropped   []message.HeldDelivery
	slow      *chunk // the chunk that the writer goroutine is writing; slowAt bytes of it are written
	slowAt    int

	enc *encoder // nil: frames are sent unencoded; set once, by release

	// These belong to the owner: the argument and results of attempt.
	writing []byte
	written int
	err     error
	attempt func(fd uintptr) bool
}

func (o *output) init(nc *net.TCPConn, raw syscall.RawConn) {
	o.nc, o.raw = nc, raw
	o.attempt = func(fd uintptr) bool {
		for {
			o.written, o.err = syscall.Write(int(fd), o.writing)
			if o.err != syscall.EINTR {
				return true // a single attempt: the caller handles EAGAIN
			}
		}
	}
}

// chunk is a sequence of whole frames in a block. The zero value is empty.
type chunk struct {
	k    *block
	p    []byte // the frames, or their encoded form, at the start of the block
	owed int    // its share of output.unsent; set by take, and unchanged by encoding

	held    []heldFrame // the held frames among them, in order
	encoded bool        // p is encoded
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

// space makes room for n bytes at the end of next. It returns false if no more frames are accepted. The caller holds
// mu.
func (o *output) space(n int) bool {
	if o.sealed {
		return false
	}
	o.next.grow(n)
	o.unsent += n
	return true
}

// append adds whole frames. Any goroutine may call it.
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

// appendMessage adds a message frame, which copies the body, and reports whether there is room for another one. The
// goroutine that delivers calls it with Channel.mu or remote.Consumer.mu held.
func (o *output) appendMessage(d *node.Delivery) bool {
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

// seal makes the output ignore all later frames: the frames appended so far are the last that the client gets.
func (o *output) seal() {
	o.mu.Lock()
	o.sealed = true
	o.mu.Unlock()
}

// backlog reports whether more than the bound is unsent.
func (o *output) backlog() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.unsent > o.bound && o.failed == nil
}

// stopsDelivery reports whether the consumer is stopped because the client does not read.
func (o *output) stopsDelivery() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.full
}

// allSent reports whether everything has been written to the socket, or nothing can be written any more.
func (o *output) allSent() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.unsent == 0 || o.failed != nil
}

// take removes all frames from next and returns them to the owner, without the held frames whose time has passed. It
// returns false if there is nothing to write. The caller holds mu.
func (o *output) take() (chunk, bool) {
	if o.beatDue && o.failed == nil {
		var c chunk
		c.grow(len(heartbeatFrame))
		c.p, c.owed, o.beatDue = append(c.p, heartbeatFrame...), len(heartbeatFrame), false
		return c, true
	}
	c := o.next
	if o.failed != nil || c.k == nil && !o.encodedLeft() {
		return chunk{}, false
	}
	o.next = chunk{}
	c.owed = len(c.p)
	if len(c.held) > 0 {
		_ = o.cut(&c, 0, late) // cannot fail: nothing of the chunk is written yet
	}
	return c, true
}

// encodedLeft reports whether the wire has bytes to write that come from no frame, because TLS answers some messages by
// itself.
func (o *output) encodedLeft() bool { return o.enc != nil && o.enc.wire.pending() }

// encode encodes a chunk for the socket. Only the owner calls it, without mu.
func (o *output) encode(c *chunk) error {
	if o.enc == nil {
		return nil
	}
	held := c.held
	err := o.enc.encode(c)
	c.held, c.encoded = held, true
	return err
}

// acquire makes the caller the owner if everything has been written; until release, frames are only collected. It
// returns false if another goroutine owns the output or frames are unsent.
func (o *output) acquire() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.busy || o.unsent > 0 || o.failed != nil {
		return false
	}
	o.busy = true
	return true
}

// release gives up the ownership that acquire took. All frames that are not written yet go through enc.
func (o *output) release(enc *encoder) {
	o.mu.Lock()
	o.enc = enc
	o.leave()
	o.mu.Unlock()
	o.flush()
}

// wrote accounts for a chunk that is finished, written or not, and frees it. The caller holds mu.
func (o *output) wrote(c chunk) {
	o.unsent -= c.owed
	if c.held != nil {
		o.heldCount -= len(c.held)
		clear(c.held)
		o.spareHeld = c.held[:0]
	}
	c.free()
}

// flush writes the unsent frames without blocking. If the socket does not accept everything, or a stopped consumer has
// to be resumed, it starts a writer goroutine for that. If the output has an owner already, the owner does all of this.
func (o *output) flush() { o.flushUpTo(math.MaxInt) }

// flushAside is flush for goroutines that also serve other connections: if there is much to encode, it leaves that to a
// writer goroutine.
func (o *output) flushAside() { o.flushUpTo(asideBytes) }

// flushUpTo is flush, but leaves the work to a writer goroutine if more than most bytes have to be encoded.
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
			go o.writeBlocking(c, n) // the writer goroutine is the owner now
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
	o.leave()
	o.mu.Unlock()
	o.onProgress()
}

// leave ends the ownership, and closes the socket if close or dispose left that to the owner. The caller holds mu.
func (o *output) leave() {
	o.busy = false
	if o.closing {
		o.closing = false
		o.closeSocket()
	}
}

// closeSocket closes all descriptors, while nobody writes. The caller holds mu.
func (o *output) closeSocket() {
	// Nobody could use the errors.
	if o.nc != nil {
		_ = o.nc.Close()
	}
	if o.owns {
		_ = unix.Close(o.fd)
		o.fd, o.owns = -1, false
	}
}

// lend makes the flusher the owner and gives it all unsent frames, to write them to the descriptor in one system call
// with those of other outputs. The socket stays open until giveBack: if it were closed, another connection could get
// the same descriptor. left says that nothing is lent, and that flushAside has something to write instead.
func (o *output) lend() (fd int, data []byte, left bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.busy || o.failed != nil || o.next.k == nil && !o.encodedLeft() {
		return 0, nil, false
	}
	if o.full || o.enc != nil {
		return 0, nil, true
	}
	if c, ok := o.take(); ok {
		o.busy, o.lent = true, c
	}
	return o.fd, o.lent.p, false
}

// giveBack ends what lend began. n bytes of the chunk were written; err says why no more were, nil: the socket is full.
func (o *output) giveBack(n int, err error) {
	o.mu.Lock()
	c := o.lent
	o.lent = chunk{}
	if !o.closing && n < len(c.p) && err == nil {
		o.mu.Unlock()
		go o.writeBlocking(c, n) // the writer goroutine is the owner now
		return
	}
	o.wrote(c)
	if err != nil {
		o.fail(err)
	}
	o.leave()
	o.mu.Unlock()
	o.flushAside() // frames that were appended in the meantime
	o.onProgress()
}

// tryWrite makes one non-blocking system call. Only the owner calls it, without mu.
func (o *output) tryWrite(p []byte) (int, error) {
	o.writing, o.written, o.err = p, 0, nil
	if o.owns {
		o.attempt(uintptr(o.fd))
		o.writing = nil
		return max(o.written, 0), o.err
	}
	err := o.raw.Write(o.attempt)
	o.writing = nil
	if err == nil {
		err = o.err
	}
	return max(o.written, 0), err
}

// encodeNext, as a number of written bytes, says that the chunk has not been encoded yet.
const encodeNext = -1

// writeBlocking is the writer goroutine, which owns the output. It writes the rest of c, from byte n on, and all frames
// that are appended in the meantime. It resumes a stopped consumer when half of the bound is free, and ends when
// nothing is left.
func (o *output) writeBlocking(c chunk, n int) {
	w, err := o.blocking()
	if !w.borrowed && err == nil {
		defer w.nc.Close()
	}
	for {
		if n == encodeNext && err == nil {
			n, err = 0, o.encode(&c)
		}
		if c.k != nil && err == nil {
			err = o.writeAll(w, &c, n)
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
			o.onDrained() // may deliver, and so append frames
			o.mu.Lock()
		}
		var ok bool
		c, ok = o.take()
		if n = encodeNext; !ok {
			// The deadline must not stay: once expired, it would make tryWrite fail, too.
			if w.borrowed {
				if err := w.nc.SetWriteDeadline(time.Time{}); err != nil {
					o.fail(err)
				}
			}
			o.leave()
			o.mu.Unlock()
			o.onProgress()
			return
		}
		o.mu.Unlock()
		o.onProgress()
	}
}

// waiting is a connection on which the owner can wait: the output's own (borrowed), or another one while that is
// detached.
type waiting struct {
	nc       *net.TCPConn
	raw      syscall.RawConn
	borrowed bool
}

func (o *output) blocking() (w waiting, err error) {
	o.mu.Lock()
	w = waiting{o.nc, o.raw, o.nc != nil}
	o.mu.Unlock()
	if !w.borrowed {
		w.nc, w.raw, err = o.another()
	}
	return w, err
}

// close ends the output: nothing more goes to the client, and the reader finds the end of its input. It closes nc, or
// leaves that to giveBack while the output is lent. A descriptor of the output's own stays open, because the reader or
// the owner may just be using it, until dispose. Any goroutine may call it.
func (o *output) close() {
	o.mu.Lock()
	o.fail(net.ErrClosed)
	nc := o.nc
	switch {
	case o.owns:
		_ = unix.Shutdown(o.fd, unix.SHUT_RDWR)
	case o.lent.k != nil:
		o.closing, nc = true, nil
	}
	o.mu.Unlock()
	if nc != nil {
		_ = nc.Close() // without mu, for which writeHeld may wait; nobody could use the error
	}
}

// dispose closes what close left open. The reader calls it last.
func (o *output) dispose() {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.busy:
		o.closing = true
	case o.owns:
		o.closeSocket()
	}
}

// interrupt makes the reader's wait for input end. Any goroutine may call it.
func (o *output) interrupt() {
	o.mu.Lock()
	nc := o.nc
	o.mu.Unlock()
	if nc != nil {
		// An error here means that the socket is closed, which wakes the reader as well.
		_ = nc.SetReadDeadline(time.Unix(1, 0))
	}
}

// fail ends the output: it drops the frames in next, and no more are accepted. The caller holds mu.
func (o *output) fail(err error) {
	if o.failed == nil {
		o.failed = err
	}
	o.sealed = true
	o.unsent -= len(o.next.p)
	if o.beatDue {
		o.beatDue = false
		o.unsent -= len(heartbeatFrame)
	}
	o.heldCount -= len(o.next.held)
	o.next.free()
}

// failure returns the error that ended the output, or nil.
func (o *output) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failed
}

// stuck reports whether the error means that the client did not read within the timeout.
func stuck(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
