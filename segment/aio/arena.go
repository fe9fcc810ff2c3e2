package aio

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/edsrzf/mmap-go"
)

// Limits of an arena.
const (
	// MaxArenaBytes bounds all buffers of one arena together, without the large ones.
	MaxArenaBytes = 16 << 30
	// DefaultMaxLargeBytes bounds all large buffers of one arena together; see Arena.SetMaxLargeBytes.
	DefaultMaxLargeBytes = 256 << 20
	// MaxSpareBytes bounds the released large buffers that an arena keeps for the next GetLarge; see Arena.Trim.
	MaxSpareBytes = 64 << 20
)

// ErrNoMemory says that a large buffer would exceed the arena's limit, or that the system refused the memory. Nothing
// was stored; try again after other buffers were released.
var ErrNoMemory = errors.New("aio: no memory for a large buffer")

// poisonByte fills released buffers in test builds.
const poisonByte = 0xDB

// Arena is a fixed number of equal buffers in one piece of memory outside the Go heap, plus large buffers that are
// mapped one by one. Some of the large ones stay mapped after their release, because the pages of a new mapping cost
// more than the copy that fills them. All methods are safe for concurrent use; Get and Release allocate nothing.
//
// The memory is page-aligned, so it can be written with O_DIRECT and registered with a ring (which then keeps all of it
// resident). The arena must outlive every queue that was made with it.
type Arena struct {
	mem      mmap.MMap
	bufBytes int
	bufs     []Buf

	// mu guards the fields from here to closed.
	mu       sync.Mutex
	free     []int32 // a stack: the buffer released last is most likely still in the processor's cache
	large    int64   // bytes in large buffers that are handed out; 0 <= large <= maxLarge
	maxLarge int64
	spares   []mmap.MMap // released large buffers, the one released last is at the end
	spare    int64       // bytes in spares; 0 <= spare <= MaxSpareBytes, large+spare <= maxLarge
	unused   int64       // the least value of spare since the last Trim
	largeOut int         // large buffers handed out
	closed   bool

	onRelease atomic.Pointer[func()]
	poison    atomic.Bool
}

// Buf is one reference-counted buffer. It starts with one reference, and the last Release gives it back. The bytes that
// Get and GetLarge return are garbage. A reference permits reading; the users decide who may write. Release orders
// memory accesses: what a holder did before Release is visible to the next Get.
type Buf struct {
	arena *Arena
	bytes []byte
	refs  atomic.Int32
	index int32
}

// NewArena makes an arena of count buffers of bufBytes bytes, a multiple of BlockBytes. The memory is reserved, not
// populated: a page costs nothing until it is touched.
func NewArena(bufBytes, count int) (*Arena, error) {
	if bufBytes <= 0 || bufBytes%BlockBytes != 0 || count <= 0 {
		return nil, fmt.Errorf("aio: an arena of %d buffers of %d bytes is not possible: the size must be a multiple of %d "+
			"and both greater than 0", count, bufBytes, BlockBytes)
	}
	if int64(bufBytes) > MaxArenaBytes/int64(count) {
		return nil, fmt.Errorf("aio: an arena of %d buffers of %d bytes exceeds the limit of %d bytes; use fewer or "+
			"smaller buffers", count, bufBytes, int64(MaxArenaBytes))
	}
	mem, err := mapAnon(bufBytes * count)
	if err != nil {
		return nil, fmt.Errorf("aio: the system refused the %d bytes of the arena: %w", bufBytes*count, err)
	}
	a := &Arena{
		mem: mem, bufBytes: bufBytes, bufs: make([]Buf, count),
		free: make([]int32, 0, count), maxLarge: DefaultMaxLargeBytes,
	}
	a.poison.Store(poisonDefault)
	for i := count - 1; i >= 0; i-- {
		b := &a.bufs[i]
		b.arena, b.index = a, int32(i)
		b.bytes = mem[i*bufBytes : (i+1)*bufBytes : (i+1)*bufBytes]
		a.free = append(a.free, int32(i))
	}
	return a, nil
}

// Get returns a free buffer with one reference, or nil if none is free or the arena is closed.
func (a *Arena) Get() *Buf {
	a.mu.Lock()
	n := len(a.free)
	if n == 0 || a.closed {
		a.mu.Unlock()
		return nil
	}
	b := &a.bufs[a.free[n-1]]
	a.free = a.free[:n-1]
	a.mu.Unlock()
	b.refs.Store(1)
	return b
}

// GetLarge returns a buffer of at least n bytes, and of at most an eighth or BlockBytes more, so that buffers of
// similar sizes can take each other's place. The buffer has a mapping of its own and is not registered with any ring.
// ErrNoMemory says that the limit for large buffers is reached.
func (a *Arena) GetLarge(n int) (*Buf, error) {
	if n <= 0 {
		panic("BUG: aio.GetLarge: size must be greater than 0")
	}
	size := largeSize(n)
	mem, dropped, err := a.reserveLarge(int64(size))
	unmapAll(dropped)
	if err != nil {
		return nil, err
	}
	if mem == nil {
		if mem, err = mapAnon(size); err != nil {
			a.unreserveLarge(int64(size))
			return nil, fmt.Errorf("%w: the system refused %d bytes: %w", ErrNoMemory, size, err)
		}
	}
	b := &Buf{arena: a, bytes: mem, index: -1}
	b.refs.Store(1)
	return b, nil
}

// largeSize rounds n up to a multiple of the greatest power of two that is at most an eighth of n, or of BlockBytes.
func largeSize(n int) int {
	unit := max(BlockBytes, 1<<bits.Len(uint(n))>>4)
	return (n + unit - 1) &^ (unit - 1)
}

// reserveLarge counts a large buffer as handed out. It returns a spare one of that size, or nil if there is none, and
// the spare ones that have to go for it.
func (a *Arena) reserveLarge(size int64) (mem mmap.MMap, dropped []mmap.MMap, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, nil, ErrClosed
	}
	if size > a.maxLarge-a.large {
		return nil, nil, fmt.Errorf("%w: %d bytes asked for, %d of %d in use", ErrNoMemory, size, a.large, a.maxLarge)
	}
	mem = a.takeSpare(size)
	dropped = a.dropSpares(a.maxLarge - a.large - size)
	a.large += size
	a.largeOut++
	return mem, dropped, nil
}

// takeSpare takes the spare buffer of size bytes that was released last, or returns nil. The caller holds mu.
func (a *Arena) takeSpare(size int64) mmap.MMap {
	for i := len(a.spares) - 1; i >= 0; i-- {
		if mem := a.spares[i]; int64(len(mem)) == size {
			a.spares = slices.Delete(a.spares, i, i+1)
			a.spare -= size
			a.unused = min(a.unused, a.spare)
			return mem
		}
	}
	return nil
}

// dropSpares takes out the spare buffers that were released first until at most bytes bytes are left. The caller holds
// mu, and unmaps them without it: that takes a millisecond for some MiB.
func (a *Arena) dropSpares(bytes int64) (dropped []mmap.MMap) {
	n := 0
	for ; a.spare > max(0, bytes); n++ {
		a.spare -= int64(len(a.spares[n]))
	}
	dropped = slices.Clone(a.spares[:n])
	a.spares = slices.Delete(a.spares, 0, n)
	a.unused = min(a.unused, a.spare)
	return dropped
}

func unmapAll(list []mmap.MMap) {
	for _, mem := range list {
		unmapAnon(mem)
	}
}

// Trim gives the spare large buffers back to the system that were not used since the call before. It is to be called
// every few seconds.
func (a *Arena) Trim() {
	a.mu.Lock()
	dropped := a.dropSpares(a.spare - a.unused)
	a.unused = a.spare
	a.mu.Unlock()
	unmapAll(dropped)
}

func (a *Arena) unreserveLarge(size int64) {
	a.mu.Lock()
	a.large -= size
	a.largeOut--
	a.mu.Unlock()
}

// SetMaxLargeBytes changes the limit for all large buffers together. Buffers already handed out stay valid.
func (a *Arena) SetMaxLargeBytes(n int64) {
	a.mu.Lock()
	a.maxLarge = n
	dropped := a.dropSpares(n - a.large)
	a.mu.Unlock()
	unmapAll(dropped)
}

// AllowLarge raises the limit for all large buffers together, if necessary, so that a GetLarge of n bytes does not
// exceed it now.
func (a *Arena) AllowLarge(n int) {
	a.mu.Lock()
	a.maxLarge = max(a.maxLarge, a.large+int64(largeSize(n)))
	a.mu.Unlock()
}

// SetPoison makes Release overwrite the buffer, or unmap it if it is a large one, so that a reader without a reference
// always sees garbage, or faults, instead of rarely. It is for tests, and on by default under the build tag aiopoison.
func (a *Arena) SetPoison(on bool) { a.poison.Store(on) }

// OnRelease sets a function that is called whenever a buffer was given back, without the arena's lock, on the goroutine
// that released the buffer. fn must be quick, must not block, and may call Get. It wakes whoever waits for a buffer.
// nil removes it.
func (a *Arena) OnRelease(fn func()) {
	if fn == nil {
		a.onRelease.Store(nil)
		return
	}
	a.onRelease.Store(&fn)
}

// Free is the number of buffers that Get could return now.
func (a *Arena) Free() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.free)
}

func (a *Arena) Count() int    { return len(a.bufs) }
func (a *Arena) BufBytes() int { return a.bufBytes }

// LargeBytes is how many bytes the large buffers that are handed out have now.
func (a *Arena) LargeBytes() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.large
}

// Close unmaps the arena. While buffers are still held, Close fails and the arena stays usable: unmapping would make
// the holders fault. Close is idempotent.
func (a *Arena) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil
	}
	if held := len(a.bufs) - len(a.free) + a.largeOut; held > 0 {
		return fmt.Errorf("aio: the arena stays open: %d of its buffers are still held", held)
	}
	a.closed = true
	unmapAll(a.dropSpares(0))
	unmapAnon(a.mem)
	return nil
}

// indexOf returns the index of the buffer that holds all of p, or -1.
func (a *Arena) indexOf(p []byte) int {
	if a == nil || len(p) == 0 {
		return -1
	}
	base, start := addrOf(a.mem), addrOf(p)
	if start < base || start-base >= uintptr(len(a.mem)) {
		return -1
	}
	i := int(start-base) / a.bufBytes
	if start-base+uintptr(len(p)) > uintptr((i+1)*a.bufBytes) {
		return -1
	}
	return i
}

// put takes back a buffer whose last reference was released.
func (a *Arena) put(b *Buf) {
	if b.index < 0 {
		a.putLarge(b)
	} else {
		if a.poison.Load() {
			fill(b.bytes, poisonByte)
		}
		a.mu.Lock()
		a.free = append(a.free, b.index)
		a.mu.Unlock()
	}
	if fn := a.onRelease.Load(); fn != nil {
		(*fn)()
	}
}

// putLarge keeps a released large buffer as a spare one, or unmaps it.
func (a *Arena) putLarge(b *Buf) {
	mem := mmap.MMap(b.bytes)
	size := int64(len(mem))
	b.bytes = nil
	a.mu.Lock()
	keep := !a.poison.Load() && a.spare+size <= MaxSpareBytes && a.large+a.spare <= a.maxLarge
	if keep {
		a.spares = append(a.spares, mem)
		a.spare += size
	}
	a.large -= size
	a.largeOut--
	a.mu.Unlock()
	if !keep {
		unmapAnon(mem)
	}
}

func fill(p []byte, v byte) {
	if len(p) == 0 {
		return
	}
	p[0] = v
	for n := 1; n < len(p); n *= 2 {
		copy(p[n:], p[:n])
	}
}

// Bytes is the whole buffer. The slice becomes invalid with the last reference: a regular buffer's bytes then change
// under it, a large buffer's bytes do so, too, or are unmapped.
func (b *Buf) Bytes() []byte { return b.bytes }

// Index is the buffer's number in its arena, from 0; -1 for a large one.
func (b *Buf) Index() int { return int(b.index) }

// Offset is where p begins in the buffer. p must lie in the buffer and must not be empty.
func (b *Buf) Offset(p []byte) int {
	i := addrOf(p) - addrOf(b.bytes)
	if i+uintptr(len(p)) > uintptr(len(b.bytes)) || i > uintptr(len(b.bytes)) {
		panic("BUG: aio.Buf.Offset: the bytes are not of this buffer")
	}
	return int(i)
}

// Refs is the current number of references. It may change at any time unless the caller holds the only one.
func (b *Buf) Refs() int32 { return b.refs.Load() }

// Retain adds a reference. The caller must hold one.
func (b *Buf) Retain() {
	if b.refs.Add(1) <= 1 {
		panic("BUG: aio.Buf.Retain: the buffer was released before")
	}
}

// Release gives up a reference. The last one gives the buffer back to the arena.
func (b *Buf) Release() {
	switch n := b.refs.Add(-1); {
	case n == 0:
		b.arena.put(b)
	case n < 0:
		panic("BUG: aio.Buf.Release: released more often than retained")
	}
}
