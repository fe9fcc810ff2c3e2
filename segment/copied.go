package segment

import (
	"math/bits"
	"sync"
)

// copied is memory for bytes that are read out of a segment, from a pool of its size.
type copied struct {
	bytes []byte
	class int
}

// Sizes are powers of four, from minCopyBytes on; the largest has room for any batch.
const (
	minCopyBytes   = 4 << 10
	copyClassCount = 7 // 16 MiB
)

var copyPools [copyClassCount]sync.Pool

// copyBuffer returns memory for n bytes, which hold anything.
func copyBuffer(n int64) *copied {
	class := (bits.Len64(uint64(max(n, minCopyBytes)-1)) - 11) / 2
	if class >= copyClassCount {
		return &copied{make([]byte, n), copyClassCount} // nobody asks for that much
	}
	if c, ok := copyPools[class].Get().(*copied); ok {
		return c
	}
	return &copied{make([]byte, minCopyBytes<<(2*class)), class}
}

// free gives the memory back; nobody may use it any more.
func (c *copied) free() {
	if c.class < copyClassCount {
		copyPools[c.class].Put(c)
	}
}

// grown returns memory for n bytes, the first used of which are those of c. c is gone if it was too small.
func (c *copied) grown(used, n int64) *copied {
	if n <= int64(len(c.bytes)) {
		return c
	}
	out := copyBuffer(n)
	copy(out.bytes, c.bytes[:used])
	c.free()
	return out
}
