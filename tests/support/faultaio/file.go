package faultaio

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"syscall"

	"penstock/segment/aio"
	"penstock/segment/aio/contract"
)

// file is an open node. The disk's mu guards closed and failed.
type file struct {
	disk *Disk
	name string
	node *node

	closed bool
	failed error // the first failed flush or write: the file takes no more writes
}

var _ aio.File = (*file)(nil)

func (f *file) Name() string { return f.name }

// usable returns nil while the file may be written. d.mu is held.
func (f *file) usable() error {
	switch {
	case f.closed:
		return pathError("write", f.name, errClosed)
	case f.failed != nil:
		return fmt.Errorf("faultaio: %s takes no more writes until it is opened again: an earlier one was not made "+
			"durable: %w", f.name, f.failed)
	}
	return nil
}

func (f *file) Size() (int64, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.closed {
		return 0, pathError("size", f.name, errClosed)
	}
	return f.node.now.size, nil
}

func (f *file) ID() (aio.FileID, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.closed {
		return aio.FileID{}, pathError("identify", f.name, errClosed)
	}
	return f.disk.identify(f.node), nil
}

func (f *file) Links() (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.closed {
		return 0, pathError("stat", f.name, errClosed)
	}
	return f.node.links, nil
}

func (f *file) WriteAt(p []byte, off int64) error { return f.write(KindWrite, p, off) }

func (f *file) Reserve(n int64) error {
	d := f.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := f.usable(); err != nil {
		return err
	}
	contract.MustBeSizes(f.node.now.size, n)
	switch more := max(n-f.node.held, 0); {
	case d.crashed:
		return ErrCrashed
	case more > d.capacity-d.used, d.noRoom && more > 0:
		return pathError("reserve", f.name, syscall.ENOSPC)
	default:
		d.used += more
		f.node.held += more
	}
	return nil
}

func (f *file) WriteSyncAt(p []byte, off int64) error { return f.write(KindWriteSync, p, off) }

func (f *file) write(kind Kind, p []byte, off int64) error {
	contract.MustBeAligned(p, off, aio.BlockBytes)
	d := f.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := f.usable(); err != nil {
		return err
	}
	v, err := d.start(kind, f.name, off, len(p), true)
	if err != nil {
		return err
	}
	return f.finish(kind, v, p, off)
}

// finish performs a write as the verdict says. d.mu is held.
func (f *file) finish(kind Kind, v verdict, p []byte, off int64) error {
	before := f.node.held
	err := f.perform(kind, v, p, off)
	f.disk.used += f.node.held - before
	if err != nil && err != ErrCrashed {
		return f.note(err)
	}
	return err
}

func (f *file) perform(kind Kind, v verdict, p []byte, off int64) error {
	n := f.node
	grows := max(off+int64(len(p))-n.held, 0)
	switch {
	case v.crash:
		n.writeVolatile(p, off, false)
		return ErrCrashed
	case v.ShortBytes > 0:
		short := min(v.ShortBytes, len(p))
		n.writeVolatile(p[:short], off, false)
		if errors.Is(v.Err, syscall.ENOSPC) {
			return v.Err
		}
		return fmt.Errorf("%w: %d of %d bytes", io.ErrShortWrite, short, len(p))
	case errors.Is(v.Err, syscall.ENOSPC):
		return v.Err
	case f.disk.noRoom && v.Err == nil:
		part := min(f.disk.rng.IntN(len(p)/sectorBytes+1)*sectorBytes, int(max(n.held-off, 0)))
		if part > 0 {
			n.writeVolatile(p[:part], off, false)
		}
		return syscall.ENOSPC
	case v.Err != nil:
		n.writeVolatile(p, off, true)
		return v.Err
	case grows > f.disk.capacity-f.disk.used:
		return syscall.ENOSPC
	case kind == KindWriteSync:
		n.writeDurable(p, off)
	default:
		n.writeVolatile(p, off, false)
	}
	return nil
}

// note keeps the first failure. A full disk does not count, because it has lost nothing.
func (f *file) note(err error) error {
	err = fmt.Errorf("faultaio: a write of %s failed, the bytes count as not stored: %w", f.name, err)
	if f.failed == nil && !contract.NoRoom(err) {
		f.failed = err
	}
	return err
}

func (f *file) ReadAt(p []byte, off int64) error {
	if off < 0 {
		panic("BUG: aio.File.ReadAt: negative offset")
	}
	d := f.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if f.closed {
		return pathError("read", f.name, errClosed)
	}
	v, err := d.start(KindRead, f.name, off, len(p), true)
	if err != nil {
		return err
	}
	if v.Err != nil {
		return pathError("read", f.name, v.Err)
	}
	if len(p) == 0 {
		return nil
	}
	if int64(len(p)) > f.node.now.size-off {
		return pathError("read", f.name, io.ErrUnexpectedEOF)
	}
	f.node.now.read(p, off)
	return nil
}

func (f *file) Sync() error {
	d := f.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := f.usable(); err != nil {
		return err
	}
	v, err := d.start(KindSync, f.name, 0, 0, true)
	switch {
	case err != nil:
		return err
	case v.crash:
		return ErrCrashed
	case v.Err != nil:
		f.node.flushFailed()
		f.failed = fmt.Errorf("faultaio: flush of %s failed, what was written since the last flush counts as not stored: %w",
			f.name, v.Err)
		return f.failed
	}
	f.node.flush()
	return nil
}

func (f *file) Close() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	f.closed = true
	return nil
}

func (f *file) Map() (aio.Mapping, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	switch size := f.node.now.size; {
	case f.closed:
		return nil, pathError("map", f.name, errClosed)
	case size == 0:
		return nil, pathError("map", f.name, syscall.EINVAL)
	default:
		m := &mapping{file: f, size: size, bytes: mapBytes(size), present: make([]bool, (size+pageBytes-1)/pageBytes)}
		f.node.maps = append(f.node.maps, m)
		return m, nil
	}
}

// mapping shows a page from the first Populate of that page on, as a page cache does.
type mapping struct {
	file    *file
	size    int64
	bytes   []byte // nil when it is gone
	present []bool // by page
	gone    bool
}

var _ aio.Mapping = (*mapping)(nil)

// mapPools hold the memory of ended mappings, all zeros, by size (a *sync.Pool each), because simulations map files
// again and again.
var mapPools sync.Map

func mapBytes(size int64) []byte {
	if pool, ok := mapPools.Load(size); ok {
		if p, ok := pool.(*sync.Pool).Get().(*[]byte); ok {
			return *p
		}
	}
	return make([]byte, size)
}

// giveBack returns the memory to its pool. Nobody reads it any more, because Copy reads it only under the disk's lock.
func (m *mapping) giveBack() {
	for i, present := range m.present {
		if start := i * pageBytes; present {
			clear(m.bytes[start:min(start+pageBytes, len(m.bytes))])
		}
	}
	pool, _ := mapPools.LoadOrStore(int64(len(m.bytes)), new(sync.Pool))
	p := m.bytes
	pool.(*sync.Pool).Put(&p)
	m.bytes = nil
}

func (m *mapping) Size() int64 { return m.size }

func (m *mapping) Copy(dst []byte, off int64) error {
	d := m.file.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := m.populate(off, int64(len(dst))); err != nil {
		return err
	}
	copy(dst, m.bytes[off:])
	return nil
}

func (m *mapping) Populate(off, n int64) error {
	d := m.file.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	return m.populate(off, n)
}

// populate is Populate. d.mu is held.
func (m *mapping) populate(off, n int64) error {
	d := m.file.disk
	if m.gone {
		return pathError("populate", m.file.name, errClosed)
	}
	if off < 0 || n < 0 || n > m.size-off {
		panic(fmt.Sprintf("BUG: aio.Mapping.Populate: [%d, %d) is not within the %d bytes of %s",
			off, off+n, m.size, m.file.name))
	}
	v, err := d.start(KindRead, m.file.name, off, int(n), true)
	if err != nil {
		return err
	}
	if errors.Is(v.Err, syscall.ENOMEM) {
		return pathError("populate", m.file.name, v.Err)
	}
	if v.Err != nil {
		return fmt.Errorf("%w: %s, bytes [%d, %d): %w", aio.ErrMedia, m.file.name, off, off+n, v.Err)
	}
	for i := off / pageBytes; i*pageBytes < off+n; i++ {
		if !m.present[i] {
			m.present[i] = true
			start := i * pageBytes
			m.file.node.now.read(m.bytes[start:min(start+pageBytes, int64(len(m.bytes)))], start)
		}
	}
	return nil
}

// show keeps the present pages coherent with a write. It touches only bytes that change: when a log grows within a
// block, the block is written again, and a reader of the old bytes in it must not race with that write. On a real page
// it does not.
func (m *mapping) show(p []byte, off int64) {
	for len(p) > 0 && off < int64(len(m.bytes)) {
		n := int(min(int64(len(p)), pageBytes-off%pageBytes))
		if m.present[off/pageBytes] {
			copyChanged(m.bytes[off:], p[:n])
		}
		p, off = p[n:], off+int64(n)
	}
}

func copyChanged(dst, src []byte) {
	from, to := 0, min(len(src), len(dst))
	for from < to && dst[from] == src[from] {
		from++
	}
	for to > from && dst[to-1] == src[to-1] {
		to--
	}
	copy(dst[from:to], src[from:to])
}

func (m *mapping) Unmap() error {
	d := m.file.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.gone {
		return nil
	}
	m.gone = true
	m.giveBack()
	m.file.node.maps = slices.DeleteFunc(slices.Clone(m.file.node.maps), func(o *mapping) bool { return o == m })
	return nil
}
