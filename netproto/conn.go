package netproto

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"penstock/internal/lock"
)

// Handler receives the frames of a connection; one Handler may serve many connections. Both methods run on goroutines
// of the connection. They may run before Connect or Accept has returned it.
type Handler interface {
	// Frames gets at least one and at most MaxBurstCount frames that arrived together, in the order in which they were
	// sent. The slice and the payloads are valid until Frames returns; to keep a payload longer, retain its Buf. While
	// Frames runs the connection reads nothing, so Frames must not wait longer than the peer's SilenceTimeout, and must
	// not call Close. An error ends the connection; the peer gets a Goodbye with the error's text.
	//
	// The handler must answer types that it does not know with TypeError, or end the connection.
	Frames(c *Conn, frames []Received) error
	// Closed is called once, after the last call of Frames has returned, and after the connection has released every
	// owner that it still had. err is never nil. The connection takes no more frames.
	Closed(c *Conn, err error)
}

// Opener is a Handler that wants to know its connection before the first frame. Opened is called once, before anything
// is read after the handshake; it must not call Close.
type Opener interface{ Opened(c *Conn) }

// Received is a frame whose header and checksum were verified. In a self-checked frame, the bytes after
// Header.CheckedBytes were not verified: the receiver must do that.
type Received struct {
	Header
	Payload []byte
	Buf     *RecvBuf // holds Payload
}

// MaxBurstCount bounds the frames that one call of Handler.Frames gets.
const MaxBurstCount = 512

type connState uint8

const (
	stateOpen    connState = iota
	stateClosing           // takes no more frames; the writer writes the queue and a Goodbye
	stateDead              // the socket is closed
)

// Conn is a connection after the handshake. All methods may be called from any goroutine.
type Conn struct {
	nc   net.Conn
	o    Options
	peer Hello
	counters

	// mu guards the fields from here to pongRequest. It also orders the setting of deadlines, so that the deadline that
	// ends the connection is not overwritten.
	mu            lock.Mutex[lock.NodeConn]
	wake          sync.Cond // the writer sleeps here
	state         connState
	reason        error        // why the connection is not open; the first reason is kept
	goodbye       GoodbyeError // what the writer tells the peer when closing
	closeBy       time.Time    // when closing, the time by which the connection must be dead
	writeDeadline time.Time
	readDeadline  time.Time
	pending       *drain // the frames that the writer takes next
	spot          spot
	steady        steadiness
	queuedFrames  int           // frames in the queue or being written; 0 <= queuedFrames <= MaxQueueFrameCount
	queuedBytes   int           // their bytes
	room          chan struct{} // see roomChanLocked; nil if nobody waits
	pingDue       bool
	pongDue       bool
	pongRequest   uint64

	held     atomic.Int64  // bytes of receive buffers that are not released yet
	heldLess chan struct{} // holds a token after held shrank or the connection died
	in       reader        // used only by the goroutine that reads
	trusted  atomic.Bool   // Options.MaxStrangerBytes does not apply, or no more

	running atomic.Int32 // goroutines of the connection; the last one to end cleans up
	done    chan struct{}
}

func newConn(nc net.Conn, o *Options, peer Hello) *Conn {
	c := &Conn{
		nc: nc, o: *o, peer: peer,
		pending: new(drain), heldLess: make(chan struct{}, 1), done: make(chan struct{}),
	}
	c.wake.L = &c.mu
	c.spot.init(nc)
	c.steady.init(c)
	c.in.init(c)
	c.running.Store(2)
	c.trusted.Store(o.MaxStrangerBytes == 0)
	if h, ok := o.Handler.(Opener); ok {
		h.Opened(c)
	}
	go c.write()
	go c.read()
	return c
}

// Peer is the Hello of the other side. It must not be changed.
func (c *Conn) Peer() *Hello { return &c.peer }

// RemoteAddr is the peer's address.
func (c *Conn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }

// Trust ends the limit of Options.MaxStrangerBytes: the user knows now who the peer is.
func (c *Conn) Trust() { c.trusted.Store(true) }

// Done returns a channel that is closed when the connection has ended and everything it held is released.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns the reason why the connection is no longer open, or nil.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reason
}

// Close ends the connection in order: the frames that Send took are written, then a Goodbye, and frames that the peer
// had sent before still reach the handler. Close returns when Done is closed, after CloseTimeout at the latest (plus
// the time the handler needs). The Handler must not call it.
func (c *Conn) Close() {
	c.shut(ErrClosed, GoodbyeError{Status: StatusClosed, Text: "closed"})
	<-c.done
}

// Abort ends the connection at once and does not wait; frames that are not written yet are dropped. Closed and Err
// report err, or ErrClosed if err is nil.
func (c *Conn) Abort(err error) {
	if err == nil {
		err = ErrClosed
	}
	c.mu.Lock()
	if c.state != stateDead {
		c.state = stateDead
		c.endLocked(err)
	}
	lent := c.spot.lent != nil
	c.mu.Unlock()
	if !lent { // otherwise GiveBack does: somebody is writing to the socket by its number
		_ = c.nc.Close()
	}
	c.released()
}

// shut begins the orderly end. Later calls change nothing.
func (c *Conn) shut(reason error, goodbye GoodbyeError) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != stateOpen {
		return
	}
	c.state, c.goodbye, c.closeBy = stateClosing, goodbye, time.Now().Add(c.o.CloseTimeout)
	_ = c.nc.SetDeadline(c.closeBy) // an error shows at the next read or write
	c.endLocked(reason)
}

// endLocked wakes every goroutine that waits for the connection. The caller holds mu.
func (c *Conn) endLocked(reason error) {
	if c.reason == nil {
		c.reason = reason
	}
	c.wake.Broadcast()
	c.roomLocked()
}

// roomChanLocked returns a channel that is closed when frames leave the queue or the connection ends. The caller holds
// mu.
func (c *Conn) roomChanLocked() <-chan struct{} {
	if c.room == nil {
		c.room = make(chan struct{})
	}
	return c.room
}

// roomLocked wakes the senders that wait for room. The caller holds mu.
func (c *Conn) roomLocked() {
	if c.room != nil {
		close(c.room)
		c.room = nil
	}
}

func (c *Conn) isDead() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state == stateDead
}

// released tells the reader that bytes were given back. The caller has already changed held or the state.
func (c *Conn) released() {
	select {
	case c.heldLess <- struct{}{}:
	default:
	}
}

// ended is the last call of each goroutine. The last goroutine releases what is left and calls Handler.Closed.
func (c *Conn) ended() {
	if c.running.Add(-1) > 0 {
		return
	}
	c.Abort(ErrClosed) // after an orderly end, reason is set already
	c.mu.Lock()
	left, rest, reason := c.pending, c.spot.rest, c.reason
	c.queuedFrames, c.queuedBytes = 0, 0
	c.mu.Unlock()
	left.reset()
	if rest != nil {
		rest.reset()
	}
	c.o.Handler.Closed(c, reason)
	close(c.done)
}

// armLocked sets a deadline for reading or writing, unless more than half of d is left of the current one: setting a
// deadline costs more than comparing times. The caller holds mu.
func (c *Conn) armLocked(current *time.Time, now time.Time, d time.Duration, set func(time.Time) error) {
	if c.state != stateOpen || current.Sub(now) > d/2 {
		return // a closing connection has one deadline for both
	}
	*current = now.Add(d)
	_ = set(*current)
}

// readOrWriteError turns an error of the socket into one of this package's errors.
func readOrWriteError(err error, doing string) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: %s did not go on in time", ErrPeerSlow, doing)
	}
	return fmt.Errorf("%w: %s: %w", ErrPeerGone, doing, err)
}
