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

// mapAnon maps n bytes of zeroed private memory outside the Go heap. Pages cost nothing until they are touched or
// registered with a ring. The memory is private because shared anonymous memory would be charged as a file of tmpfs.
func mapAnon(n int) (mmap.MMap, error) {
	if mem := keptMemory.take(n); mem != nil {
		clear(mem)
		return mem, nil
	}
	return mmap.MapRegion(nil, n, mmap.COPY, mmap.ANON, 0)
}

// mapGarbage maps memory like mapAnon, for callers that do not need zeros.
func mapGarbage(n int) (mmap.MMap, error) {
	if mem := keptMemory.take(n); mem != nil {
		return mem, nil
	}
	return mapAnon(n)
}

// memoryPool holds memory that was given back and stays mapped: pages that were touched once cost nothing more.
type memoryPool struct {
	max  atomic.Int64 // bytes to keep; 0: none
	mu   sync.Mutex
	free map[int][]mmap.MMap // by size
	held int64               // bytes in free; 0 <= held <= max
}

var keptMemory memoryPool

// KeepMemory lets up to bytes bytes of memory outside the Go heap stay mapped after they were given back, for the next
// caller that asks for the same size. It is for simulations, which open engines again and again. Elsewhere a late
// reader of such memory should fault. Initially nothing is kept.
func KeepMemory(bytes int64) { keptMemory.max.Store(bytes) }

// take returns memory of n bytes with arbitrary contents, or nil.
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

// addrOf is the address of the first byte of p, for comparisons. p must not be empty.
func addrOf(p []byte) uintptr {
	return uintptr(unsafe.Pointer(unsafe.SliceData(p)))
}

// AlignedBytes returns n bytes of zeroed memory outside the Go heap, aligned to the page size and so fit for direct
// writes, and a function that gives the memory back. After that call nobody may touch the bytes (they are unmapped, so
// a late reader faults). A second call does nothing. Like make, AlignedBytes panics when the system has no memory left.
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

// CheckMemory returns an error if the system would not give this process n more bytes of memory now: for want of
// address space (RLIMIT_AS), or because it promises no more than it has (vm.overcommit_memory). It touches none of
// them, so it knows nothing of limits for memory in use.
func CheckMemory(n int64) error {
	mem, err := mmap.MapRegion(nil, int(n), mmap.COPY, mmap.ANON, 0)
	if err != nil {
		return fmt.Errorf("the system refuses %d MiB of memory: %w", n>>20, err)
	}
	unmapAnon(mem)
	return nil
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
