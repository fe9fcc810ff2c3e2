package netproto

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// reader is the state of the goroutine that reads, which alone uses it.
//
//	buf: | parsed | r  a frame that is not whole yet  w | free |      0 <= r <= w <= len
type reader struct {
	c      *Conn
	buf    *RecvBuf
	r, w   int
	need   int    // bytes from r that the next frame needs as far as known: a header, then the whole frame
	header Header // header of the frame at r, if parsed
	parsed bool   // header is valid
	burst  []Received

	allowance int // bytes of frames that may still begin before Conn.Trust

	heard    time.Time     // when the peer was last heard, or when this side read again after it did not read
	began    time.Time     // when the first bytes of the frame at r were there; zero if there were none
	farewell *GoodbyeError // the peer's Goodbye
	broken   bool          // the socket failed or the peer is silent: a Goodbye would reach nobody

	// The argument and results of attempt, which is tryRead.
	into    []byte
	n       int
	err     error
	attempt func(fd uintptr) bool // a field, because a method value would be allocated
}

func (in *reader) init(c *Conn) {
	in.c, in.need, in.allowance = c, HeaderBytes, c.o.MaxStrangerBytes
	in.buf = newRecvBuf(c, RecvBufBytes)
	in.attempt = in.tryRead
	in.heard = time.Now()
}

// read is the reading goroutine: it reads bytes and hands whole frames to the handler, until the connection ends.
func (c *Conn) read() {
	in := &c.in
	err := in.run()
	defer c.ended()
	switch {
	case err == nil: // the peer sent a Goodbye
		c.shut(in.farewell, GoodbyeError{Status: StatusClosed, Text: "goodbye"})
	case in.broken:
		c.Abort(err)
	default:
		// Tell the peer why. The peer may go on sending for a moment; if nobody read that, the kernel would answer with
		// a reset, and the peer might never see the Goodbye.
		c.shut(err, GoodbyeError{Status: statusOf(err), Text: textOf(err)})
		in.discard()
	}
	in.buf.Release()
}

// run reads and delivers until the connection ends. It returns nil after a Goodbye.
func (in *reader) run() error {
	for in.farewell == nil {
		if err := in.makeRoom(); err != nil {
			return err
		}
		if err := in.fill(); err != nil {
			return err
		}
		if err := in.handle(); err != nil {
			return err
		}
	}
	return nil
}

// handle delivers the whole frames that have arrived, until the peer's Goodbye.
func (in *reader) handle() error {
	for {
		more, err := in.parse()
		if len(in.burst) > 0 {
			if err := in.deliver(); err != nil {
				return err
			}
		}
		if err != nil || !more || in.farewell != nil {
			return err
		}
	}
}

// fill makes one successful read, and pings the peer while nothing arrives.
func (in *reader) fill() error {
	c := in.c
	for {
		now := time.Now()
		c.mu.Lock()
		c.armLocked(&c.readDeadline, now, c.o.PingEvery, c.nc.SetReadDeadline)
		c.mu.Unlock()
		n, err := in.recv()
		now = time.Now()
		if n > 0 {
			return in.arrived(n, now)
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return in.broke(err)
		}
		if err := in.tick(now); err != nil {
			return err
		}
		if in.onItsWay() {
			in.heard = now
		}
		if silent := now.Sub(in.heard); silent >= c.o.SilenceTimeout {
			in.broken = true
			return fmt.Errorf("%w: nothing was heard for %v", ErrPeerSilent, silent.Round(time.Millisecond))
		}
		if err := in.inTime(now); err != nil {
			return err
		}
	}
}

// maxRecvBytes bounds what one call of recvAtOnce copies, because the scheduler cannot use its thread meanwhile.
const maxRecvBytes = RecvBufBytes

// recv reads what has arrived to the end of the buffer. It waits until that is something, or the deadline for reading.
func (in *reader) recv() (int, error) {
	p, raw := in.buf.bytes[in.w:], in.c.spot.raw
	if raw == nil {
		return in.c.nc.Read(p)
	}
	in.into, in.n, in.err = p[:min(len(p), maxRecvBytes)], 0, nil
	err := raw.Read(in.attempt)
	in.into = nil
	if err == nil {
		err = in.err
	}
	return in.n, err
}

// arrived notes that n bytes were read. An error from it ends the connection.
func (in *reader) arrived(n int, now time.Time) error {
	in.w += n
	in.heard = now
	in.c.readBytes.Add(uint64(n))
	in.c.reads.Add(1)
	return in.inTime(now)
}

// broke notes that the socket cannot be read.
func (in *reader) broke(err error) error {
	in.broken = true
	if err == nil {
		err = io.ErrNoProgress
	}
	return readOrWriteError(err, "reading")
}

// tick is called about every PingEvery while nothing can be read. An error from it ends the connection.
func (in *reader) tick(now time.Time) error {
	c := in.c
	c.mu.Lock()
	state, closeBy := c.state, c.closeBy
	c.mu.Unlock()
	if state == stateDead || state == stateClosing && !now.Before(closeBy) {
		in.broken = true
		return fmt.Errorf("%w: the peer did not say goodbye in time", ErrPeerGone)
	}
	if state == stateOpen {
		c.ping()
	}
	return nil
}

// inTime returns an error if the frame at r takes too long to arrive. Without this limit a peer that sends drop by drop
// could occupy a connection and a large buffer for ever.
func (in *reader) inTime(now time.Time) error {
	if in.w == in.r || in.w-in.r >= in.need {
		return nil
	}
	if in.began.IsZero() {
		in.began = now
	}
	if took := now.Sub(in.began); frameLate(in.w-in.r, took, in.c.o.FrameTimeout) {
		return fmt.Errorf("%w: %d of %d bytes of a frame after %v",
			ErrPeerSlow, in.w-in.r, in.need, took.Round(time.Millisecond))
	}
	return nil
}

// parse appends whole frames to burst until bytes are missing, the burst is full (more), or the peer said goodbye.
func (in *reader) parse() (more bool, err error) {
	for in.w-in.r >= in.need {
		if !in.parsed {
			if in.header, err = ParseHeader(in.buf.bytes[in.r:in.w]); err != nil {
				return false, err
			}
			in.need = HeaderBytes + int(in.header.PayloadBytes)
			if limit := in.c.o.Hello.MaxFrameBytes; in.need > int(limit) {
				return false, fmt.Errorf("%w: a %v of %d bytes, this side accepts %d", ErrTooBig, in.header.Type, in.need, limit)
			}
			if err := in.allow(); err != nil {
				return false, err
			}
			in.parsed = true
			continue
		}
		payload := in.buf.bytes[in.r+HeaderBytes : in.r+in.need : in.r+in.need]
		if err := in.header.checkPayload(payload); err != nil {
			return false, err
		}
		in.r += in.need
		in.need, in.parsed, in.began = HeaderBytes, false, time.Time{}
		if in.header.Type.ofConnection() {
			if err := in.control(payload); err != nil || in.farewell != nil {
				return false, err
			}
			continue
		}
		in.burst = append(in.burst, Received{Header: in.header, Payload: payload, Buf: in.buf})
		if len(in.burst) == MaxBurstCount {
			return true, nil
		}
	}
	return false, nil
}

// allow counts the frame at r against what a stranger may send.
func (in *reader) allow() error {
	if in.c.trusted.Load() {
		return nil
	}
	if in.need > in.allowance {
		return fmt.Errorf("%w: a %v of %d bytes, this side accepts %d more before it knows who the peer is",
			ErrTooBig, in.header.Type, in.need, in.allowance)
	}
	in.allowance -= in.need
	return nil
}

// control handles a frame that belongs to the connection itself.
func (in *reader) control(payload []byte) error {
	switch in.header.Type {
	case TypePing:
		in.c.pong(in.header.Request)
	case TypePong: // the peer was heard, and that is all a Pong is for
	case TypeGoodbye:
		in.farewell = &GoodbyeError{Status: in.header.Status, Text: printable(payload)}
	default:
		return fmt.Errorf("%w: a %v after the handshake", ErrInvalid, in.header.Type)
	}
	return nil
}

// deliver hands the burst to the handler. The time that the handler takes does not count against the peer.
func (in *reader) deliver() error {
	c := in.c
	bytes := 0
	for i := range in.burst {
		bytes += HeaderBytes + len(in.burst[i].Payload)
	}
	c.countReceived(len(in.burst), bytes)
	err := c.o.Handler.Frames(c, in.burst)
	clear(in.burst)
	in.burst = in.burst[:0]
	in.resume()
	return err
}

// resume restarts the peer's clocks after this side did not read for a while.
func (in *reader) resume() {
	in.heard = time.Now()
	if in.w > in.r {
		in.began = in.heard
	}
}

// makeRoom makes sure that the buffer can hold the whole frame at r, and that the next read is not a small one.
func (in *reader) makeRoom() error {
	if in.reuse() {
		return nil
	}
	size := max(in.need, RecvBufBytes)
	if err := in.waitHeld(int64(recvSize(size))); err != nil {
		return err
	}
	b, next := in.buf, newRecvBuf(in.c, size)
	in.w = copy(next.bytes, b.bytes[in.r:in.w])
	in.r = 0
	in.buf = next
	b.Release()
	return nil
}

// reuse makes room in the buffer that the reader has. It returns false if the frame needs another buffer.
func (in *reader) reuse() bool {
	b, left := in.buf, in.w-in.r
	alone := b.refs.Load() == 1 // then it stays so: only a holder can retain the buffer
	enough := len(b.bytes)-in.r >= in.need && (len(b.bytes)-in.w >= minReadBytes || in.need > minReadBytes)
	switch {
	case alone && left == 0 && len(b.bytes) == RecvBufBytes:
		poison(b.bytes[:in.w])
		in.r, in.w = 0, 0
	case enough && (left > 0 || len(b.bytes) == RecvBufBytes): // a large buffer is released as soon as it is empty
	case alone && left > 0 && len(b.bytes) >= max(in.need, RecvBufBytes):
		in.w = copy(b.bytes, b.bytes[in.r:in.w])
		in.r = 0
		poison(b.bytes[in.w:])
	default:
		return false
	}
	return true
}

// waitHeld waits until a buffer of size bytes fits within MaxHeldBytes. A buffer that only the reader holds does not
// count, because the reader is about to release it. If the handler holds nothing, any size is allowed; otherwise a
// connection could be stuck for ever.
func (in *reader) waitHeld(size int64) error {
	c := in.c
	var timer *time.Timer
	for {
		held := c.held.Load()
		if in.buf.refs.Load() == 1 {
			held -= int64(len(in.buf.bytes))
		}
		if held == 0 || held+size <= int64(c.o.MaxHeldBytes) {
			break
		}
		if timer == nil {
			c.heldFull.Add(1)
			timer = time.NewTimer(c.o.PingEvery / 2)
			defer timer.Stop()
		}
		select {
		case <-c.heldLess:
			if c.isDead() {
				return ErrClosed
			}
		case now := <-timer.C:
			timer.Reset(c.o.PingEvery / 2)
			if err := in.tick(now); err != nil { // the ping tells the peer that this side is alive
				return err
			}
		}
	}
	if timer != nil {
		in.resume()
	}
	return nil
}

// discard reads and drops bytes until the peer ends or the connection is dead.
func (in *reader) discard() {
	var p [4 << 10]byte
	for {
		if _, err := in.c.nc.Read(p[:]); err != nil {
			return // shut has set a deadline
		}
	}
}
