package aio

import (
	"fmt"
	"runtime/debug"
	"sync"
	"syscall"

	"github.com/edsrzf/mmap-go"
	"golang.org/x/sys/unix"
)

// mappings knows the address ranges of all live mappings of the process, for guard: a fault
// anywhere else is a bug, not a bad disk.
var mappings = struct {
	sync.Mutex
	ranges map[*mapping]struct{}
}{ranges: make(map[*mapping]struct{})}

// mapping is a Mapping of a real file.
type mapping struct {
	name string
	mem  mmap.MMap
	base uintptr

	mu       sync.RWMutex // held for reading while Populate works, so that Unmap waits
	unmapped bool
}

func newMapping(name string, mem mmap.MMap) *mapping {
	m := &mapping{name: name, mem: mem, base: addrOf(mem)}
	mappings.Lock()
	mappings.ranges[m] = struct{}{}
	mappings.Unlock()
	return m
}

func (m *mapping) Size() int64 { return int64(len(m.mem)) }

func (m *mapping) Copy(dst []byte, off int64) error {
	if err := m.Populate(off, int64(len(dst))); err != nil {
		return err
	}
	return guard(m.name, func() error { copy(dst, m.mem[off:]); return nil })
}

func (m *mapping) Populate(off, n int64) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.unmapped {
		return fmt.Errorf("aio: mapping of %s: %w", m.name, ErrClosed)
	}
	if off < 0 || n < 0 || n > int64(len(m.mem))-off {
		panic(fmt.Sprintf("BUG: aio.Mapping.Populate: [%d, %d) is not within the %d bytes of %s",
			off, off+n, len(m.mem), m.name))
	}
	if n == 0 {
		return nil
	}
	err := m.populate(off&^(BlockBytes-1), off+n)
	switch err {
	case nil:
		return nil
	case syscall.EINVAL, syscall.ENOSYS:
		return m.touch(off&^(BlockBytes-1), off+n) // a kernel before 5.14
	case syscall.ENOMEM, syscall.EAGAIN:
		return fmt.Errorf("aio: no memory to read %s: %w", m.name, err)
	}
	return fmt.Errorf("%w: %s, bytes [%d, %d): %w", ErrMedia, m.name, off, off+n, err)
}

// pieceBytes is what the device is asked for at once. A fault would read as much ahead as the device is set to (8 MiB
// and more on servers), in one go, and every commit of the node would wait behind it: 5 to 8 ms each time.
const pieceBytes = 256 << 10

// populate reads piece by piece, one at a time, so that writes get their turn in between. Who reads a piece or more
// goes on behind it most often, so that one is asked for before it is wanted. MADV_WILLNEED reads what it is told and
// no more, and makes later faults read nothing ahead.
func (m *mapping) populate(start, end int64) error {
	sequential := end-start >= pieceBytes
	for ; start < end; start += pieceBytes {
		piece := m.mem[start:min(start+pieceBytes, end)]
		_ = unix.Madvise(piece, unix.MADV_WILLNEED) // without it the next call reads, and more
		if err := retry(func() error { return unix.Madvise(piece, unix.MADV_POPULATE_READ) }); err != nil {
			return err
		}
	}
	if next := roundUp(int(end)); sequential && next < len(m.mem) {
		_ = unix.Madvise(m.mem[next:min(next+pieceBytes, len(m.mem))], unix.MADV_WILLNEED)
	}
	return nil
}

// touch faults the pages in one by one. A fault holds a processor of the scheduler while
// the device works, which is why it is only the way of old kernels.
func (m *mapping) touch(start, end int64) error {
	return guard(m.name, func() error {
		var sum byte
		for i := start; i < end; i += BlockBytes {
			sum ^= m.mem[i]
		}
		sink(sum)
		return nil
	})
}

//go:noinline
func sink(byte) {}

func (m *mapping) Unmap() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.unmapped {
		return nil
	}
	m.unmapped = true
	mappings.Lock()
	delete(mappings.ranges, m)
	mappings.Unlock()
	mem := m.mem
	m.mem = nil
	if err := mem.Unmap(); err != nil {
		return fmt.Errorf("aio: unmapping %s: %w", m.name, err)
	}
	return nil
}

// mappedAt reports whether addr lies in a live mapping. The last page counts whole: the kernel maps pages.
func mappedAt(addr uintptr) bool {
	mappings.Lock()
	defer mappings.Unlock()
	for m := range mappings.ranges {
		if addr >= m.base && addr-m.base < uintptr(roundUp(len(m.mem))) {
			return true
		}
	}
	return false
}

// guard runs fn, which reads mapped bytes of the file at path, and turns a fault within a live Mapping (the device
// could not read the page, or the file was cut) into ErrMedia. Every other panic goes on. fn must be able to stop at
// any byte: it holds no lock across the read, and what it built is thrown away after an error.
//
// A fault is a signal of the thread, so bytes must be read in fn's own goroutine. The kernel's reads of mapped memory
// (a socket write) are no faults: they fail with EFAULT.
func guard(path string, fn func() error) (err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		cause := recover()
		if cause == nil {
			return
		}
		fault, ok := cause.(interface{ Addr() uintptr })
		if !ok || !mappedAt(fault.Addr()) {
			panic(cause)
		}
		err = fmt.Errorf("%w: %s", ErrMedia, path)
	}()
	return fn()
}
