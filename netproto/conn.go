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

// Handler is what a connection's user does with frames; one may serve many connections. Both methods run on goroutines
// of the connection, and may run before Connect or Accept has returned it.
type Handler interface {
	// Frames gets at least one and at most MaxBurstCount frames that arrived together, in the order in which they were
	// sent. The slice and the payloads are valid until it returns; to keep a payload longer, retain its Buf. While it runs
	// nothing is read, so it must not wait for longer than the peer's SilenceTimeout (see Conn.MayBlock), and must not
	// call Close. An error ends the connection; the peer gets a Goodbye with its text.
	//
	// Types that the handler does not know must be answered by TypeError, or end the connection.
	Frames(c *Conn, frames []Received) error
	// Closed is called once, after the last Frames has returned, or has called MayBlock, and the connection has released
	// every owner that it still had. err is never nil; nothing is taken any more.
	Closed(c *Conn, err error)
}

// Received is a frame whose header and checksum were verified. What follows Header.CheckedBytes in a self-checked
// frame was not: that is for the receiver to do.
type Received struct {
	Header
	Payload []byte
	Buf     *RecvBuf // holds Payload
}

// MaxBurstCount bounds the frames of one call of Handler.Frames.
const MaxBurstCount = 512

type connState uint8

const (
	stateOpen    connState = iota
	stateClosing           // takes no frames; the queue and a Goodbye are being written
	stateDead              // the socket is closed
)

// Conn is a connection after the handshake. All methods may be called from any goroutine.
type Conn struct {
	nc      net.Conn
	o       Options
	peer    Hello
	version Version
	counters

	// mu guards what is below, and orders the setting of deadlines, so that one that ends the connection is not
	// overwritten.
	mu            lock.Mutex[lock.NodeConn]
	wake          sync.Cond // the writer sleeps here
	state         connState
	reason        error // why it is not open; the first one counts
	goodbye       GoodbyeError
	closeBy       time.Time // when closing, the latest moment to be dead
	writeDeadline time.Time
	readDeadline  time.Time
	pending       *drain // what the writer takes next
	spot          spot
	queuedFrames  int // 0 <= queuedFrames <= MaxQueueFrameCount; with what is being written
	queuedBytes   int
	room          chan struct{} // closed when the queue has room again; nil if nobody waits
	pingDue       bool
	pongDue       bool
	pongRequest   uint64

	held     atomic.Int64  // bytes of receive buffers that are not released
	heldLess chan struct{} // a token: held became less, or the connection is dead
	in       reader
	turn     atomic.Pointer[turn] // of the goroutine that uses in
	ending   atomic.Bool          // the connection is not open any more

	running atomic.Int32 // goroutines; the last one to end cleans up
	done    chan struct{}
}

func newConn(nc net.Conn, o *Options, peer Hello, version Version) *Conn {
	c := &Conn{
		nc: nc, o: *o, peer: peer, version: version,
		pending: new(drain), heldLess: make(chan struct{}, 1), done: make(chan struct{}),
	}
	c.wake.L = &c.mu
	c.spot.init(nc)
	c.in.init(c)
	c.turn.Store(new(turn))
	c.running.Store(2)
	go c.write()
	go c.read()
	return c
}

// Peer is what the other side said of itself. It must not be changed.
func (c *Conn) Peer() *Hello { return &c.peer }

// Version is what both sides speak.
func (c *Conn) Version() Version { return c.version }

// Features is what both sides have.
func (c *Conn) Features() Features { return c.o.Hello.Features & c.peer.Features }

// RemoteAddr is the peer's address.
func (c *Conn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }

// Done is closed when the connection has ended and left nothing behind.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err is why the connection is not open any more, or nil.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reason
}

// Close ends the connection in order: frames that were taken are written, then a Goodbye; frames that the peer had sent
// still reach the handler. It returns when Done is closed, after CloseTimeout at the latest (plus what the handler
// needs). It must not be called by the Handler.
func (c *Conn) Close() {
	c.shut(ErrClosed, GoodbyeError{Status: StatusClosed, Text: "closed"})
	<-c.done
}

// Abort ends the connection at once and does not wait; frames that are not written are dropped. err is what Closed
// and Err report; nil is ErrClosed.
func (c *Conn) Abort(err error) {
	if err == nil {
		err = ErrClosed
	}
	c.mu.Lock()
	if c.state != stateDead {
		c.state = stateDead
		c.endLocked(err)
	}
	c.mu.Unlock()
	_ = c.nc.Close()
	c.released()
}

// shut begins the orderly end; later calls change nothing.
func (c *Conn) shut(reason error, goodbye GoodbyeError) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != stateOpen {
		return
	}
	c.state, c.goodbye, c.closeBy = stateClosing, goodbye, time.Now().Add(c.o.CloseTimeout)
	_ = c.nc.SetDeadline(c.closeBy) // its error shows at the next read or write
	c.endLocked(reason)
}

// endLocked wakes everyone who waits for the connection. A reader whose handler blocks gives its place to one that sees
// the end.
func (c *Conn) endLocked(reason error) {
	if c.reason == nil {
		c.reason = reason
	}
	c.ending.Store(true)
	c.ReadOn(0)
	c.wake.Broadcast()
	c.roomLocked()
}

// roomChanLocked is closed when frames leave the queue, or the connection ends.
func (c *Conn) roomChanLocked() <-chan struct{} {
	if c.room == nil {
		c.room = make(chan struct{})
	}
	return c.room
}

// roomLocked wakes the senders that wait for room.
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

// released tells the reader that bytes were given back. Whoever calls it changed held or the state before.
func (c *Conn) released() {
	select {
	case c.heldLess <- struct{}{}:
	default:
	}
}

// ended is the last thing that each goroutine calls.
func (c *Conn) ended() {
	if c.running.Add(-1) > 0 {
		return
	}
	c.Abort(ErrClosed) // of an orderly end the reason is known already
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

// armLocked sets a deadline for reading or writing unless the one that is set is nearly as good: setting it costs more
// than looking.
func (c *Conn) armLocked(current *time.Time, now time.Time, d time.Duration, set func(time.Time) error) {
	if c.state != stateOpen || current.Sub(now) > d/2 {
		return // closing has its own, for both
	}
	*current = now.Add(d)
	_ = set(*current)
}

// readOrWriteError is err of the socket, as one of this package's.
func readOrWriteError(err error, doing string) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: %s did not go on in time", ErrPeerSlow, doing)
	}
	return fmt.Errorf("%w: %s: %w", ErrPeerGone, doing, err)
}
