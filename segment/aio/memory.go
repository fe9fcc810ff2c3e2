package aio

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/edsrzf/mmap-go"
)

// roundUp rounds n up to a multiple of BlockBytes.
func roundUp(n int) int {
	return (n + BlockBytes - 1) &^ (BlockBytes - 1)
}

// mapAnon maps n bytes of zeroed private memory outside the Go heap. Pages cost nothing until they are touched or
// registered with a ring. The memory is private because shared anonymous memory would be charged as a file of tmpfs.
func mapAnon(n int) (mmap.MMap, error) { return mmap.MapRegion(nil, n, mmap.COPY, mmap.ANON, 0) }

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
	mem, err := mapAnon(int(n))
	if err != nil {
		return fmt.Errorf("the system refuses %d MiB of memory: %w", n>>20, err)
	}
	unmapAnon(mem)
	return nil
}

// unmapAnon gives memory of mapAnon back. It can fail only for memory that is not a mapping.
func unmapAnon(mem mmap.MMap) {
	if err := mem.Unmap(); err != nil {
		panic(fmt.Sprintf("BUG: aio: unmap of engine memory: %v", err))
	}
}
