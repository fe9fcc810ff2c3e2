package world

import (
	"penstock/segment/aio"
)

// lyingFile says that it was flushed: MutantNoSync.
type lyingFile struct{ aio.File }

// Sync implements aio.File.
func (lyingFile) Sync() error { return nil }

func (d *disk) create(name string, size int64) (aio.File, error) {
	f, err := d.Disk.Create(name, size)
	return d.wrap(f), err
}

// Open implements aio.Disk.
func (d *disk) Open(name string) (aio.File, error) {
	f, err := d.Disk.Open(name)
	return d.wrap(f), err
}

func (d *disk) wrap(f aio.File) aio.File {
	if f == nil || d.n.w.cfg.Break != MutantNoSync {
		return f
	}
	return lyingFile{f}
}

// honest is what faultaio knows.
func honest(f aio.File) aio.File {
	if l, ok := f.(lyingFile); ok {
		return l.File
	}
	return f
}
