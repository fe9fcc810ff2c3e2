package faultaio

import (
	"path"

	"penstock/segment/aio/contract"
)

// WriteFile takes the same steps as a real disk: create (or cut) the temporary file, write, sync, rename, sync the
// directory. Each step is an operation that can fail or at which the power can be cut.
func (d *Disk) WriteFile(name string, data []byte) error {
	if err := contract.ChangeName("write", name); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	tmp := name + contract.TempSuffix
	if err := d.writeTemp(tmp, data); err != nil {
		if !d.crashed && !d.closed {
			_ = d.remove(tmp) // the first failure is the one to report
		}
		return err
	}
	if err := d.rename(tmp, name); err != nil {
		return err
	}
	return d.syncDir(path.Dir(name))
}

func (d *Disk) writeTemp(tmp string, data []byte) error {
	dir, base, err := d.parent("write", tmp)
	if err != nil {
		return err
	}
	if dir.entries[base] != nil { // left by a crash
		if err := d.remove(tmp); err != nil {
			return err
		}
	}
	n, err := d.create(tmp, 0, 0)
	if err != nil {
		return err
	}
	f := &file{disk: d, name: tmp, node: n}
	if len(data) > 0 {
		v, err := d.start(KindWrite, tmp, 0, len(data), true)
		if err != nil {
			return err
		}
		if err := f.finish(KindWrite, v, data, 0); err != nil {
			return err
		}
	}
	v, err := d.start(KindSync, tmp, 0, 0, true)
	switch {
	case err != nil:
		return err
	case v.crash:
		return ErrCrashed
	case v.Err != nil:
		n.flushFailed()
		return pathError("sync", tmp, v.Err)
	}
	n.flush()
	return nil
}
