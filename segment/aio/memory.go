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

// mapAnon maps n bytes of zeroed private memory outside the Go heap. Pages cost nothing
// until they are touched or registered with a ring. Private, not shared: shared anonymous
// memory would be charged as a file of tmpfs.
func mapAnon(n int) (mmap.MMap, error) {
	return mmap.MapRegion(nil, n, mmap.COPY, mmap.ANON, 0)
}

// addrOf is the address of the first byte of p, for the kernel and for comparisons; p must not be empty.
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
	if err := mem.Unmap(); err != nil {
		panic(fmt.Sprintf("BUG: aio: unmap of engine memory: %v", err))
	}
}
