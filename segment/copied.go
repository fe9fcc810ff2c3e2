package segment

import (
	"math/bits"
	"sync"
)

// copied is a buffer for bytes that View reads out of a segment. It comes from the pool of its size class, and goes
// back there.
type copied struct {
	bytes []byte
	class int
}

// The sizes are powers of four, beginning with minCopyBytes; the largest has room for any batch.
const (
	minCopyBytes   = 4 << 10
	copyClassCount = 7 // 16 MiB
)

var copyPools [copyClassCount]sync.Pool

// copyBuffer returns memory for n bytes, with arbitrary contents.
func copyBuffer(n int64) *copied {
	class := (bits.Len64(uint64(max(n, minCopyBytes)-1)) - 11) / 2
	if class >= copyClassCount {
		return &copied{make([]byte, n), copyClassCount} // larger than any batch: not pooled
	}
	if c, ok := copyPools[class].Get().(*copied); ok {
		return c
	}
	return &copied{make([]byte, minCopyBytes<<(2*class)), class}
}

// free returns the memory to its pool. Nobody may use it any more.
func (c *copied) free() {
	if c.class < copyClassCount {
		copyPools[c.class].Put(c)
	}
}

// grown returns memory for n bytes that begins with the first used bytes of c. If c was too small, grown frees c.
func (c *copied) grown(used, n int64) *copied {
	if n <= int64(len(c.bytes)) {
		return c
	}
	out := copyBuffer(n)
	copy(out.bytes, c.bytes[:used])
	c.free()
	return out
}
