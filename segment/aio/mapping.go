package aio

import (
	"fmt"
	"io/fs"
	"runtime/debug"
	"sync"
	"syscall"

	"github.com/edsrzf/mmap-go"
	"golang.org/x/sys/unix"
)

// mappings holds the address ranges of all live mappings of the process, for guard: a fault at any other address is a
// bug, and not a bad disk.
var mappings = struct {
	sync.Mutex
	ranges map[*mapping]struct{}
}{ranges: make(map[*mapping]struct{})}

// mapping is a Mapping of a real file.
type mapping struct {
	name string
	mem  mmap.MMap
	base uintptr

	mu       sync.RWMutex // held for reading during Populate, so that Unmap waits
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
		return m.touch(off&^(BlockBytes-1), off+n) // the kernel is older than 5.14
	case syscall.ENOMEM, syscall.EAGAIN:
		return fmt.Errorf("aio: no memory to read: %w", &fs.PathError{Op: "populate", Path: m.name, Err: err})
	}
	return fmt.Errorf("%w: %s, bytes [%d, %d): %w", ErrMedia, m.name, off, off+n, err)
}

// pieceBytes is how much the device is asked for at once. A page fault would read as far ahead as the device is
// configured to (8 MiB and more on servers), in one go, and every commit of the node would wait behind it for 5 to 8
// ms.
const pieceBytes = 256 << 10

// aheadBytes is how much of what follows is requested in advance. A channel or reader uses up a piece faster than the
// device reads the next one, so with a single piece in advance it waits for the device after each. A commit may stand
// behind all of it.
const aheadBytes = 4 * pieceBytes

// populate reads piece by piece, so that writes get their turn in between. A caller that reads a piece or more most
// often continues behind it, so populate requests the following pieces in advance. A piece that is in memory already,
// or on its way, costs a look-up. MADV_WILLNEED reads no more than the range that it is given, and makes later faults
// read nothing ahead.
func (m *mapping) populate(start, end int64) error {
	sequential := end-start >= pieceBytes
	for ; start < end; start += pieceBytes {
		piece := m.mem[start:min(start+pieceBytes, end)]
		_ = unix.Madvise(piece, unix.MADV_WILLNEED) // without it the next call reads ahead, too
		if err := retry(func() error { return unix.Madvise(piece, unix.MADV_POPULATE_READ) }); err != nil {
			return err
		}
	}
	if next := roundUp(int(end)); sequential && next < len(m.mem) {
		_ = unix.Madvise(m.mem[next:min(next+aheadBytes, len(m.mem))], unix.MADV_WILLNEED)
	}
	return nil
}

// touch faults the pages in one by one. A fault blocks a processor of the scheduler while the device works, so touch is
// only for old kernels.
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

// mappedAt reports whether addr lies in a live mapping. The last page counts in full, because the kernel maps pages.
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
// could not read the page, or the file was cut) into ErrMedia. Other panics are passed on. It must be possible to stop
// fn at any byte: fn holds no lock across the read, and the caller discards fn's results after an error.
//
// A fault is a signal to the thread, so fn must read the bytes on its own goroutine. When the kernel itself reads
// mapped memory (a socket write), there is no fault: the system call fails with EFAULT.
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
