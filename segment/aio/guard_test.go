package aio_test

import (
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"penstock/segment/aio"
)

// Variables that take the bytes of guarded reads, so that the compiler keeps the loads.
var (
	read       byte
	readString string
)

// mapped opens a disk and maps a new file of size bytes on it.
func mapped(t *testing.T, size int64) (path string, m aio.Mapping) {
	t.Helper()
	dir := t.TempDir()
	d := open(t, dir, aio.DiskOptions{})
	f, err := d.Create("seg", size)
	if err != nil {
		t.Fatal(err)
	}
	if m, err = f.Map(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(m.Unmap(), f.Close(), d.Close()); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "seg"), m
}

// A file that was cut looks to a mapping like a bad block: SIGBUS.
func TestGuardTurnsFaultsIntoErrors(t *testing.T) {
	path, m := mapped(t, 8*aio.BlockBytes)
	if err := os.Truncate(path, aio.BlockBytes); err != nil {
		t.Fatal(err)
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	reads := map[string]func([]byte){
		"load":   func(p []byte) { read += p[5*aio.BlockBytes] + p[0] },
		"copy":   func(p []byte) { copy(make([]byte, len(p)), p) },
		"crc32":  func(p []byte) { crc32.Checksum(p, table) },
		"string": func(p []byte) { readString = string(p) },
	}
	for name, fn := range reads {
		err := aio.Guard("seg", func() error { fn(aio.MappedBytes(m)); return nil })
		if !errors.Is(err, aio.ErrMedia) {
			t.Errorf("%s of a lost page: %v, want ErrMedia", name, err)
		}
	}
	if err := aio.Guard("seg", func() error {
		crc32.Checksum(aio.MappedBytes(m)[:aio.BlockBytes], table)
		return nil
	}); err != nil {
		t.Errorf("reading the page that is left: %v", err)
	}
	if err := m.Populate(0, aio.BlockBytes); err != nil {
		t.Errorf("populating the page that is left: %v", err)
	}
	if err := m.Populate(0, 8*aio.BlockBytes); !errors.Is(err, aio.ErrMedia) {
		t.Errorf("populating lost pages: %v, want ErrMedia", err)
	}
}

func TestGuardLetsOthersThrough(t *testing.T) {
	_, m := mapped(t, aio.BlockBytes)
	_ = m
	wrong := errors.New("wrong bytes")
	if err := aio.Guard("seg", func() error { return wrong }); err != wrong {
		t.Errorf("the error became %v", err)
	}
	func() {
		defer func() {
			if cause := recover(); cause != "BUG: mine" {
				t.Errorf("the panic became %v", cause)
			}
		}()
		_ = aio.Guard("seg", func() error { panic("BUG: mine") })
	}()
	// A fault outside every mapping is a bug of ours, and not a bad disk.
	p, free := aio.AlignedBytes(aio.BlockBytes)
	stale := unsafe.Slice(&p[0], len(p))
	free()
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a fault outside of every mapping was taken for a bad disk")
			}
		}()
		err := aio.Guard("seg", func() error { stale[0]++; return nil })
		t.Errorf("Guard returned %v", err)
	}()
}

func TestGuardNestsAndRestores(t *testing.T) {
	path, m := mapped(t, 2*aio.BlockBytes)
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	err := aio.Guard("outer", func() error {
		inner := aio.Guard("inner", func() error { read += aio.MappedBytes(m)[0]; return nil })
		if !errors.Is(inner, aio.ErrMedia) {
			t.Errorf("inner: %v, want ErrMedia", inner)
		}
		read += aio.MappedBytes(m)[aio.BlockBytes] // still guarded
		return nil
	})
	if !errors.Is(err, aio.ErrMedia) {
		t.Errorf("outer: %v, want ErrMedia", err)
	}
}

func TestGuardAllocatesNothing(t *testing.T) {
	_, m := mapped(t, aio.BlockBytes)
	var sum byte
	if n := testing.AllocsPerRun(100, func() {
		_ = aio.Guard("seg", func() error { sum += aio.MappedBytes(m)[0]; return nil })
	}); n != 0 {
		t.Errorf("%v allocations for a guarded read, want none", n)
	}
}

// A page that is lost after Populate and before the copy is an error, and not the end of the process.
func TestCopyOfAFileThatIsCut(t *testing.T) {
	const size = 64 * aio.BlockBytes
	path, m := mapped(t, size)
	stop := make(chan struct{})
	cut := make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				cut <- os.Truncate(path, size)
				return
			default:
			}
			if err := errors.Join(os.Truncate(path, aio.BlockBytes), os.Truncate(path, size)); err != nil {
				cut <- err
				return
			}
		}
	}()
	dst := make([]byte, size)
	lost := 0
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		switch err := m.Copy(dst, 0); {
		case errors.Is(err, aio.ErrMedia):
			lost++
		case err != nil:
			t.Errorf("a page that is lost is %v", err)
		}
	}
	close(stop)
	if err := <-cut; err != nil {
		t.Fatal(err)
	}
	if lost == 0 {
		t.Skip("the file was never cut in the moment of a copy")
	}
	if err := m.Copy(dst, 0); err != nil {
		t.Errorf("the whole file: %v", err)
	}
}
