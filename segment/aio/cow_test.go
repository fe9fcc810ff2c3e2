package aio_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"penstock/segment/aio"
	"penstock/tests/support/aiotest"
)

// What has its space keeps it on a file system that copies on write, too: a preallocated file can be overwritten when
// nothing is free.
func TestOverwriteOnFullBtrfs(t *testing.T) {
	const size = 4 << 20
	dir := aiotest.MountImage(t, "btrfs", 128<<20)
	for _, mode := range []aio.Mode{aio.ModePwrite, aio.ModeUring} {
		d := open(t, filepath.Join(dir, string(mode)), aio.DiskOptions{Mode: mode})
		f, err := d.Create("log", size)
		if err != nil {
			t.Fatal(err)
		}
		block, free := aio.AlignedBytes(1 << 20)
		defer free()
		write := func(with byte) error {
			for i := range block {
				block[i] = with
			}
			for off := int64(0); off < size; off += int64(len(block)) {
				if err := f.WriteSyncAt(block, off); err != nil {
					return err
				}
			}
			return nil
		}
		if err := write(1); err != nil {
			t.Fatal(err)
		}
		hog := aiotest.FillUp(t, filepath.Join(dir, "hog"))
		for with := byte(2); with < 20; with++ {
			if err := write(with); err != nil {
				t.Errorf("%s: what has its space cannot be overwritten: %v", mode, err)
				break
			}
		}
		if i := d.Info(); i.CopyOnWrite {
			t.Errorf("%s: it says that files are copied on write", mode)
		}
		if err := errors.Join(f.Close(), d.Close(), os.Remove(hog)); err != nil {
			t.Fatal(err)
		}
	}
}
