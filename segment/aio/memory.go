package aio

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/edsrzf/mmap-go"
)

// roundUp rounds n up to a multiple of BlockBytes.
func roundUp(n int) int {
	return (n + BlockBytes - 1) &^ (BlockBytes - 1)
}

// mapAnon maps n bytes of zeroed private memory outside the Go heap. Pages cost nothing
// until they are touched or registered with a ring. Private, not shared: shared anonymous
// memory would be charged as a file of tmpfs.
func mapAnon(n int) (mmap.MMap, error) {
	if mem := keptMemory.take(n); mem != nil {
		clear(mem)
		return mem, nil
	}
	return mmap.MapRegion(nil, n, mmap.COPY, mmap.ANON, 0)
}

// mapGarbage is mapAnon for whoever does not ask for zeros.
func mapGarbage(n int) (mmap.MMap, error) {
	if mem := keptMemory.take(n); mem != nil {
		return mem, nil
	}
	return mapAnon(n)
}

// memoryPool has memory that was given back and stays mapped: pages that were touched once cost nothing any more.
type memoryPool struct {
	max  atomic.Int64 // bytes; 0: none
	mu   sync.Mutex
	free map[int][]mmap.MMap // by size
	held int64               // bytes in free; 0 <= held <= max
}

var keptMemory memoryPool

// KeepMemory lets so many bytes of memory outside of the Go heap stay mapped when they are given back, for whoever asks
// for the same size next. It is for simulations, which open engines again and again: elsewhere a late reader of such
// memory should fault. At first nothing is kept.
func KeepMemory(bytes int64) { keptMemory.max.Store(bytes) }

// take returns memory of n bytes that holds anything, or nil.
func (k *memoryPool) take(n int) mmap.MMap {
	if k.max.Load() == 0 {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	list := k.free[n]
	if len(list) == 0 {
		return nil
	}
	mem := list[len(list)-1]
	k.free[n] = list[:len(list)-1]
	k.held -= int64(n)
	return mem
}

// put keeps memory, if there is room for it.
func (k *memoryPool) put(mem mmap.MMap) bool {
	if k.max.Load() == 0 {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held+int64(len(mem)) > k.max.Load() {
		return false
	}
	if k.free == nil {
		k.free = map[int][]mmap.MMap{}
	}
	k.free[len(mem)] = append(k.free[len(mem)], mem)
	k.held += int64(len(mem))
	return true
}

// addrOf is the address of the first byte of p, to compare memory; p must not be empty.
func addrOf(p []byte) uintptr {
	return uintptr(unsafe.Pointer(unsafe.SliceData(p)))
}

// AlignedBytes returns n bytes of zeroed memory outside the Go heap, aligned to the page
// size and so fit for direct writes, and the function that gives it back. Nobody may touch the bytes
// after that call (it unmaps them, so a late reader faults); a second call does nothing.
// Like make, it panics when the system has no memory left.
func AlignedBytes(n int) ([]byte, func()) {
	if n < 0 {
		panic("BUG: aio.AlignedBytes: negative size")
	}
	mem, err := mapAnon(max(roundUp(n), BlockBytes))
	if err != nil {
		panic(fmt.Sprintf("aio: the system refused %d bytes of memory: %v", n, err))
	}
	var once sync.Once
	return mem[:n:roundUp(n)], func() { once.Do(func() { unmapAnon(mem) }) }
}

// unmapAnon gives memory of mapAnon back. It can fail only for memory that is not a mapping.
func unmapAnon(mem mmap.MMap) {
	if keptMemory.put(mem) {
		return
	}
	if err := mem.Unmap(); err != nil {
		panic(fmt.Sprintf("BUG: aio: unmap of engine memory: %v", err))
	}
}
