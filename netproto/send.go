package netproto

import (
	"context"
	"fmt"
	"hash/crc32"
	"net"
	"sync"
	"time"
)

const (
	// MinBorrowBytes is the length from which a body is not copied. For shorter bodies one more piece in a writev costs
	// more than the copy.
	MinBorrowBytes = 16 << 10

	chunkBytes = 64 << 10
)

// Releaser is the owner of borrowed bytes, such as a counted buffer.
type Releaser interface{ Release() }

// Frame is a frame to send. Send keeps neither the Frame nor its slice of slices, so the caller can reuse both at once.
type Frame struct {
	Type    Type
	Flags   Flags
	Status  Status
	Stream  uint32
	Request uint64
	// Lone says that no other frame will follow soon: if nothing else is being written, the sender writes the frame
	// itself, however little time has passed since the last one (see spot).
	Lone bool

	// Head is copied. In a self-checked frame the frame's checksum covers only Head, whose length must be a multiple of
	// 8 bytes, at most MaxHeadBytes.
	Head []byte
	// Body follows Head. Parts of MinBorrowBytes and more are borrowed: they must not change until Owner is released.
	Body [][]byte
	// Owner is released once, when Body is no longer needed: before Send returns, or later by a goroutine of the
	// connection. Release must not block that goroutine. If Send returns an error, the frame was not taken and Owner is
	// not released. Owner may be nil.
	Owner Releaser
}

// header makes the frame's header, with the checksums. It panics only for a frame that the caller must never send.
func (f *Frame) header() (Header, error) {
	if f.Type == 0 || f.Type.ofConnection() {
		panic(fmt.Sprintf("BUG: netproto: Send of a %v", f.Type))
	}
	size, crc := len(f.Head), crc32.Checksum(f.Head, castagnoli)
	for _, p := range f.Body {
		size += len(p)
		if f.Flags&FlagSelfChecked == 0 {
			crc = crc32.Update(crc, castagnoli, p)
		}
	}
	if size > MaxFrameBytes-HeaderBytes {
		return Header{}, fmt.Errorf("%w: a %v of %d bytes, at most %d are allowed; it was not taken",
			ErrTooBig, f.Type, size, MaxFrameBytes-HeaderBytes)
	}
	h := Header{
		Type: f.Type, Flags: f.Flags, Status: f.Status, Stream: f.Stream, Request: f.Request,
		PayloadBytes: uint32(size), PayloadCRC: crc,
	}
	if f.Flags&FlagSelfChecked != 0 {
		if len(f.Head)%headUnitBytes != 0 || len(f.Head) > MaxHeadBytes {
			panic(fmt.Sprintf("BUG: netproto: head of %d bytes in a self-checked %v", len(f.Head), f.Type))
		}
		h.HeadBytes = uint16(len(f.Head))
	}
	if err := h.validate(); err != nil {
		panic("BUG: netproto: Send: " + err.Error())
	}
	return h, nil
}

// TrySend queues the frame, or returns ErrQueueFull, ErrTooBig or the reason why the connection is not open; with an
// error the frame was not taken. It never waits for the peer. Frames from one goroutine leave in the order of its
// calls. nil does not mean that the peer has the frame.
func (c *Conn) TrySend(f *Frame) error {
	_, err := c.enqueue(f, sendNow)
	return err
}

// Queue takes a frame like TrySend, for a caller that has more to send: the frame leaves with the next frame that is
// sent, when the writer has work, or when the caller calls Flush or Lend, which it must do soon.
func (c *Conn) Queue(f *Frame) error {
	_, err := c.enqueue(f, sendLater)
	return err
}

// Send is TrySend, but waits for room until ctx ends. Goroutines that wait are not served in any particular order.
func (c *Conn) Send(ctx context.Context, f *Frame) error {
	for {
		room, err := c.enqueue(f, sendOrWait)
		if room == nil {
			return err
		}
		select {
		case <-room:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrQueueFull, context.Cause(ctx))
		}
	}
}

// AwaitRoom waits until frames have left the queue, the queue is empty, or the connection is not open. After that,
// TrySend is worth another try for a frame that it refused with ErrQueueFull. The error is ctx's.
func (c *Conn) AwaitRoom(ctx context.Context) error {
	c.mu.Lock()
	if c.state != stateOpen || c.queuedFrames == 0 {
		c.mu.Unlock()
		return nil
	}
	room := c.roomChanLocked()
	c.mu.Unlock()
	select {
	case <-room:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// urgency is what a caller of enqueue wants.
type urgency uint8

const (
	sendNow    urgency = iota // write the frame, or wake the writer
	sendOrWait                // the same; the caller waits if there is no room
	sendLater                 // wake nobody
)

// enqueue takes the frame, or says why not. If only room is missing and the caller wants to wait, enqueue returns a
// channel that is closed when there may be room again.
func (c *Conn) enqueue(f *Frame, when urgency) (<-chan struct{}, error) {
	h, err := f.header()
	if err != nil {
		return nil, err
	}
	size := HeaderBytes + int(h.PayloadBytes)
	if size > int(c.peer.MaxFrameBytes) {
		return nil, fmt.Errorf("%w: a %v of %d bytes, the peer accepts %d; it was not taken",
			ErrTooBig, f.Type, size, c.peer.MaxFrameBytes)
	}
	c.mu.Lock()
	if c.state != stateOpen {
		defer c.mu.Unlock()
		return nil, c.reason
	}
	if c.queuedFrames >= c.o.MaxQueueFrameCount || c.queuedFrames > 0 && c.queuedBytes+size > c.o.MaxQueueBytes {
		c.queueFull.Add(1)
		defer c.mu.Unlock()
		if when != sendOrWait {
			return nil, ErrQueueFull
		}
		return c.roomChanLocked(), nil
	}
	c.queuedFrames++
	c.queuedBytes += size
	borrowed := c.pending.add(f, &h)
	var d *drain
	if when != sendLater {
		d = c.claimLocked(f.Lone)
	}
	c.mu.Unlock()
	switch {
	case d != nil:
		c.writeOnSpot(d)
	case when != sendLater:
		c.wake.Signal()
	}
	if !borrowed && f.Owner != nil {
		f.Owner.Release()
	}
	return nil, nil
}

// chunk is memory for copied bytes, shared by the frames of a drain.
type chunk [chunkBytes]byte

var chunks = sync.Pool{New: func() any { return new(chunk) }}

// drain is what one writev writes: pieces in order, which are parts of chunks and borrowed bytes. Conn.mu guards it
// while it is Conn.pending; from take or claimLocked on, it belongs to the goroutine that writes it.
type drain struct {
	pieces [][]byte
	vector net.Buffers // pieces while they are written; a field, because a local variable would be allocated
	chunks []*chunk
	used   int  // bytes of the last chunk
	grows  bool // the last piece ends at used, so the next copied bytes extend it
	owners []Releaser
	frames int
	bytes  int
}

// add appends the frame and reports whether the drain borrows parts of its Body.
func (d *drain) add(f *Frame, h *Header) (borrowed bool) {
	d.addHeader(h)
	d.copy(f.Head)
	for _, p := range f.Body {
		if len(p) < MinBorrowBytes {
			d.copy(p)
			continue
		}
		d.pieces = append(d.pieces, p)
		d.grows, borrowed = false, true
	}
	if borrowed && f.Owner != nil {
		d.owners = append(d.owners, f.Owner)
	}
	return borrowed
}

func (d *drain) addHeader(h *Header) {
	if len(d.chunks) == 0 || chunkBytes-d.used < HeaderBytes { // a header is never divided
		d.newChunk()
	}
	h.Marshal(d.extend(HeaderBytes))
	d.frames++
	d.bytes += HeaderBytes + int(h.PayloadBytes)
}

func (d *drain) copy(p []byte) {
	for len(p) > 0 {
		if len(d.chunks) == 0 || d.used == chunkBytes {
			d.newChunk()
		}
		p = p[copy(d.extend(min(len(p), chunkBytes-d.used)), p):]
	}
}

func (d *drain) newChunk() {
	d.chunks = append(d.chunks, chunks.Get().(*chunk))
	d.used, d.grows = 0, false
}

// extend returns the next n bytes of the last chunk and appends them to the pieces. The chunk must have that much room.
func (d *drain) extend(n int) []byte {
	p := d.chunks[len(d.chunks)-1][d.used : d.used+n]
	if last := len(d.pieces) - 1; d.grows {
		d.pieces[last] = d.pieces[last][:len(d.pieces[last])+n]
	} else {
		d.pieces = append(d.pieces, p)
		d.grows = true
	}
	d.used += n
	return p
}

// control appends a frame that belongs to the connection itself.
func (d *drain) control(typ Type, status Status, request uint64, text string) {
	h := Header{
		Type: typ, Status: status, Request: request, PayloadBytes: uint32(len(text)),
		PayloadCRC: crc32.Checksum([]byte(text), castagnoli),
	}
	d.addHeader(&h)
	d.copy([]byte(text))
}

func (d *drain) writeTo(nc net.Conn) error {
	if len(d.pieces) == 1 {
		_, err := nc.Write(d.pieces[0])
		return err
	}
	d.vector = d.pieces
	_, err := d.vector.WriteTo(nc)
	return err
}

// reset releases everything that the drain holds.
func (d *drain) reset() {
	for _, owner := range d.owners {
		owner.Release()
	}
	for _, p := range d.chunks {
		chunks.Put(p)
	}
	clear(d.pieces)
	clear(d.chunks)
	clear(d.owners)
	*d = drain{pieces: d.pieces[:0], chunks: d.chunks[:0], owners: d.owners[:0]}
}

// write is the writing goroutine: one writev for everything that is queued, until the connection ends.
func (c *Conn) write() {
	defer c.ended()
	d := new(drain)
	written := 0 // bytes of the last write, which count against MaxQueueBytes until the next take
	frames := 0  // frames of the last write
	for {
		last, ok := c.take(&d, &frames, &written)
		if !ok {
			return
		}
		began := time.Now()
		err := d.writeTo(c.nc)
		c.wroteIn(time.Since(began))
		c.countSent(d)
		d.reset()
		if err != nil {
			c.Abort(readOrWriteError(err, "writing"))
			return
		}
		if last {
			if half, ok := c.nc.(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite() // an error does not matter: the Goodbye said it already
			}
			return
		}
	}
}

// take gives back the room of the last write and waits until there is something to write. Then it exchanges *d, which
// is empty, for the drain to write. last: the drain ends with a Goodbye. Not ok: the connection is dead.
func (c *Conn) take(d **drain, frames, bytes *int) (last, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queuedFrames -= *frames
	c.queuedBytes -= *bytes
	if *frames > 0 {
		c.roomLocked()
	}
	for c.spot.busy || c.state == stateOpen && c.pending.frames == 0 && c.spot.rest == nil && !c.pingDue && !c.pongDue {
		c.spot.asleep = true
		c.wake.Wait()
		c.spot.asleep = false
	}
	if c.state == stateDead {
		return false, false
	}
	now := time.Now()
	c.spot.last = now
	if rest := c.spot.rest; rest != nil {
		*d, c.spot.rest, c.spot.spare = rest, nil, *d
		*frames, *bytes = rest.frames, rest.bytes
		c.armWriteLocked(now)
		return false, true
	}
	*d, c.pending = c.pending, *d
	*frames, *bytes = (*d).frames, (*d).bytes
	if c.pongDue {
		(*d).control(TypePong, StatusOK, c.pongRequest, "")
	}
	if c.pingDue {
		(*d).control(TypePing, StatusOK, 0, "")
	}
	c.pongDue, c.pingDue = false, false
	if c.state == stateClosing {
		(*d).control(TypeGoodbye, c.goodbye.Status, 0, c.goodbye.Text)
		return true, true
	}
	c.armWriteLocked(now)
	return false, true
}

// ping makes the writer send a Ping.
func (c *Conn) ping() {
	c.mu.Lock()
	c.pingDue = true
	c.wake.Signal()
	c.mu.Unlock()
}

// pong makes the writer answer the newest Ping only, so that a peer that pings without reading cannot fill the queue.
func (c *Conn) pong(request uint64) {
	c.mu.Lock()
	c.pongDue, c.pongRequest = true, request
	c.wake.Signal()
	c.mu.Unlock()
}
