package netproto

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

const (
	// RecvBufBytes is the size of an ordinary receive buffer. A longer frame gets one of its own.
	RecvBufBytes = 128 << 10

	// Buffers up to this size are pooled by powers of two. Longer buffers are rare (for a batch of the largest size),
	// and rounding them up would waste up to half of the memory.
	maxPooledRecvBytes = 4 << 20
	minReadBytes       = 16 << 10 // a read into less space would waste a system call
)

var recvPools [8]sync.Pool // by size class: RecvBufBytes << i

// RecvBuf is a reference-counted buffer into which frames were read. A handler that keeps a payload retains the
// payload's buffer, and releases it when it is done, from any goroutine.
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

// Release gives up a reference. After the last reference is released, the bytes are reused.
func (b *RecvBuf) Release() {
	if b == nil {
		return
	}
	c := b.conn // must not be read after the reference is given up
	switch n := b.refs.Add(-1); {
	case n > 0:
		// The reader may be waiting to be the only holder, see reader.waitHeld.
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

// recvClass returns the pool for buffers of exactly this size, or -1.
func recvClass(size int) int {
	if size > maxPooledRecvBytes {
		return -1
	}
	return bits.Len(uint(size/RecvBufBytes)) - 1
}

// newRecvBuf returns a buffer for a frame of n bytes, with one reference. Its pages are touched only as bytes arrive.
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
