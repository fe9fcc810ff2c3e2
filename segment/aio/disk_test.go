package aio_test

import (
	"testing"

	"penstock/segment/aio"
	"penstock/tests/support/aiotest"
)

func open(t testing.TB, dir string, opts aio.DiskOptions) aio.Disk {
	t.Helper()
	d, err := aio.OpenDisk(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Every engine runs the suite on the file system of the temporary directory.
func TestConformance(t *testing.T) {
	for name, opts := range map[string]aio.DiskOptions{
		"auto":            {},
		"uring":           {Mode: aio.ModeUring},
		"uring buffered":  {Mode: aio.ModeUring, Buffered: true},
		"pwrite":          {Mode: aio.ModePwrite},
		"pwrite buffered": {Mode: aio.ModePwrite, Buffered: true},
	} {
		t.Run(name, func(t *testing.T) {
			aiotest.Run(t, func(t *testing.T) aio.Disk { return open(t, t.TempDir(), opts) })
		})
	}
}
