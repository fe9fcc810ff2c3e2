package world

import (
	"penstock/segment/aio"
)

// lyingFile says that it was flushed: MutantNoSync.
type lyingFile struct{ aio.File }

// Sync implements aio.File.
func (lyingFile) Sync() error { return nil }

// deafFile says that everything succeeded: MutantDeafDisk.
type deafFile struct{ aio.File }

// WriteAt implements aio.File.
func (f deafFile) WriteAt(p []byte, off int64) error {
	_ = f.File.WriteAt(p, off)
	return nil
}

// WriteSyncAt implements aio.File.
func (f deafFile) WriteSyncAt(p []byte, off int64) error {
	_ = f.File.WriteSyncAt(p, off)
	return nil
}

// Sync implements aio.File.
func (f deafFile) Sync() error {
	_ = f.File.Sync()
	return nil
}

func (d *disk) create(name string, size, reserved int64) (aio.File, error) {
	f, err := d.Disk.CreateSparse(name, size, reserved)
	return d.wrap(f), err
}

// Open implements aio.Disk.
func (d *disk) Open(name string) (aio.File, error) {
	f, err := d.Disk.Open(name)
	return d.wrap(f), err
}

func (d *disk) wrap(f aio.File) aio.File {
	switch {
	case f == nil:
		return nil
	case d.n.w.cfg.Break == MutantNoSync:
		return lyingFile{f}
	case d.n.w.cfg.Break == MutantDeafDisk:
		return deafFile{f}
	}
	return f
}

// honest is what faultaio knows.
func honest(f aio.File) aio.File {
	switch l := f.(type) {
	case lyingFile:
		return l.File
	case deafFile:
		return l.File
	}
	return f
}
