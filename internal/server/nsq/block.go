package nsq

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

const (
	minBlockBytes = 4 << 10
	blockClasses  = 12 // powers of two from minBlockBytes to 8 MiB; larger blocks are not pooled
)

// block is pooled memory, either for input, from which Puts borrow, or for output frames. Releasing the last reference
// returns the block to its pool. Until then its bytes do not move, and bytes that somebody borrows do not change.
type block struct {
	b    []byte
	refs atomic.Int32 // ≥ 1 until it is back in the pool
}

var blockPools [blockClasses]sync.Pool

// blockClass returns the index of the pool for size bytes.
func blockClass(size int) int {
	return max(bits.Len(uint(size-1))-bits.Len(minBlockBytes-1), 0)
}

// blockBytes returns how much memory a block for size bytes takes.
func blockBytes(size int) int {
	if class := blockClass(size); class < blockClasses {
		return minBlockBytes << class
	}
	return size
}

// newBlock returns a block of at least size bytes with one reference.
func newBlock(size int) *block {
	class := blockClass(size)
	if class >= blockClasses {
		k := &block{b: make([]byte, size)}
		k.refs.Store(1)
		return k
	}
	k, _ := blockPools[class].Get().(*block)
	if k == nil {
		k = &block{b: make([]byte, minBlockBytes<<class)}
	}
	k.refs.Store(1)
	return k
}

func (k *block) retain() { k.refs.Add(1) }

func (k *block) release() {
	switch n := k.refs.Add(-1); {
	case n < 0:
		panic("BUG: a block was released more often than retained")
	case n == 0:
		if class := blockClass(len(k.b)); class < blockClasses {
			blockPools[class].Put(k)
		}
	}
}
