package netproto

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

const (
	// RecvBufBytes is the size of an ordinary receive buffer. A longer frame gets one of its own.
	RecvBufBytes = 128 << 10

	// Buffers up to this size are pooled by powers of two; longer ones are rare (a batch of the largest size) and would
	// waste up to half of themselves.
	maxPooledRecvBytes = 4 << 20
	minReadBytes       = 16 << 10 // a read into less would be a wasted system call
)

var recvPools [8]sync.Pool // by size class: RecvBufBytes << i

// RecvBuf is a buffer that frames were read into, counted. A handler that keeps a payload retains its buffer,
// and releases it when it is done; from any goroutine.
type RecvBuf struct {
	bytes []byte
	refs  atomic.Int32
	conn  *Conn
}

// Retain adds a reference. The caller must hold one, or be in Handler.Frames.
func (b *RecvBuf) Retain() {
	if b == nil {
		return
	}
	if b.refs.Add(1) <= 1 {
		panic("BUG: netproto: RecvBuf.Retain: the buffer was released before")
	}
}

// Release gives up a reference; with the last one the bytes are gone.
func (b *RecvBuf) Release() {
	if b == nil {
		return
	}
	c := b.conn // not to be read when the reference is gone
	switch n := b.refs.Add(-1); {
	case n > 0:
		// The reader may be waiting to be the only one that holds it, see reader.waitHeld.
		if n == 1 {
			c.released()
		}
		return
	case n < 0:
		panic("BUG: netproto: RecvBuf.Release: released more often than retained")
	}
	size := int64(len(b.bytes))
	poison(b.bytes)
	b.conn = nil
	if class := recvClass(len(b.bytes)); class >= 0 {
		recvPools[class].Put(b)
	}
	c.held.Add(-size)
	c.released()
}

// recvSize is the size of the buffer that a frame of n bytes gets.
func recvSize(n int) int {
	if n <= RecvBufBytes {
		return RecvBufBytes
	}
	if n <= maxPooledRecvBytes {
		return 1 << bits.Len(uint(n-1))
	}
	return n
}

// recvClass is the pool of buffers of exactly this size, or -1.
func recvClass(size int) int {
	if size > maxPooledRecvBytes {
		return -1
	}
	return bits.Len(uint(size/RecvBufBytes)) - 1
}

// newRecvBuf is a buffer for a frame of n bytes, with one reference. Its pages are touched only as bytes arrive.
func newRecvBuf(c *Conn, n int) *RecvBuf {
	size := recvSize(n)
	c.held.Add(int64(size))
	var b *RecvBuf
	if class := recvClass(size); class >= 0 {
		b, _ = recvPools[class].Get().(*RecvBuf)
	}
	if b == nil {
		b = &RecvBuf{bytes: make([]byte, size)}
	}
	b.conn = c
	b.refs.Store(1)
	return b
}
