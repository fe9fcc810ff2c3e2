package aiotest

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"syscall"
	"testing"

	"penstock/segment/aio"
)

const block = aio.BlockBytes

// Run runs the suite. open returns a new, empty, writable disk; the suite closes it.
func Run(t *testing.T, open func(t *testing.T) aio.Disk) {
	tests := []struct {
		name string
		run  func(t *testing.T, d aio.Disk)
	}{
		{"Info", testInfo},
		{"NamesCannotEscape", testNames},
		{"Create", testCreate},
		{"CreateExclusive", testCreateExclusive},
		{"ReadWrite", testReadWrite},
		{"ReadUnaligned", testReadUnaligned},
		{"UnalignedWritePanics", testUnalignedWrite},
		{"WriteExtends", testWriteExtends},
		{"UseAfterClose", testUseAfterClose},
		{"Directories", testDirectories},
		{"RemoveAll", testRemoveAll},
		{"Identity", testIdentity},
		{"RenameReplaces", testRename},
		{"ReadFileBound", testReadFile},
		{"WriteFile", testWriteFile},
		{"FreeBytes", testFreeBytes},
		{"Sparse", testSparse},
		{"MappingCoherent", testMapping},
		{"MappingBounds", testMappingBounds},
		{"QueueWrites", testQueueWrites},
		{"QueueManyInAnyOrder", testQueueMany},
		{"QueueFull", testQueueFull},
		{"QueueDepthLimits", testQueueDepth},
		{"QueueLargeAndScratch", testQueueLarge},
		{"QueueErrors", testQueueErrors},
		{"QueueCloseDrains", testQueueClose},
		{"WakeBeforeWait", testWakeBefore},
		{"WakeDuringWait", testWakeDuring},
		{"WakeAfterClose", testWakeAfterClose},
		{"WakeStorm", testWakeStorm},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := open(t)
			defer func() {
				if err := d.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			}()
			test.run(t, d)
		})
	}
}

// Fill returns n aligned bytes of a pattern that differs in every block and for every seed. The memory lives as long as
// the test.
func Fill(t testing.TB, n int, seed byte) []byte {
	p, free := aio.AlignedBytes(n)
	t.Cleanup(free)
	pattern(p, seed)
	return p
}

func pattern(p []byte, seed byte) {
	for i := range p {
		p[i] = byte(i) ^ byte(i>>8)*3 ^ byte(i>>12)*7 ^ seed
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustIs(t testing.TB, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("error is %v, want %v", err, target)
	}
}

func create(t testing.TB, d aio.Disk, name string, size int64) aio.File {
	t.Helper()
	f, err := d.Create(name, size)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// expect compares a range of the file with want.
func expect(t testing.TB, f aio.File, off int64, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	must(t, f.ReadAt(got, off))
	if !bytes.Equal(got, want) {
		t.Fatalf("%s at %d: bytes differ from what was written", f.Name(), off)
	}
}

func testInfo(t *testing.T, d aio.Disk) {
	info := d.Info()
	if info.Engine == "" || info.Reason == "" {
		t.Errorf("engine %q, reason %q: both must be told", info.Engine, info.Reason)
	}
	if info.BlockBytes < block || info.BlockBytes&(info.BlockBytes-1) != 0 {
		t.Errorf("BlockBytes is %d, want a power of two from %d", info.BlockBytes, block)
	}
}

func testNames(t *testing.T, d aio.Disk) {
	bad := []string{"", "/", "/etc/passwd", "..", "../x", "a/../../x", "a/..", "./a", "a//b", "a/", "LOCK"}
	for _, name := range bad {
		if _, err := d.Create(name, block); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("Create(%q): %v, want fs.ErrInvalid", name, err)
		}
		if _, err := d.Open(name); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("Open(%q): %v, want fs.ErrInvalid", name, err)
		}
		if _, err := d.ReadFile(name, 10); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("ReadFile(%q): %v, want fs.ErrInvalid", name, err)
		}
		if _, err := d.ReadDir(name); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("ReadDir(%q): %v, want fs.ErrInvalid", name, err)
		}
		for what, err := range map[string]error{
			"WriteFile": d.WriteFile(name, nil), "Remove": d.Remove(name), "RemoveAll": d.RemoveAll(name),
			"MkdirAll": d.MkdirAll(name), "SyncDir": d.SyncDir(name),
			"Rename from": d.Rename(name, "x"), "Rename to": d.Rename("x", name),
		} {
			if !errors.Is(err, fs.ErrInvalid) {
				t.Errorf("%s(%q): %v, want fs.ErrInvalid", what, name, err)
			}
		}
	}
	mustIs(t, d.RemoveAll("."), fs.ErrInvalid)
	mustIs(t, d.Rename(".", "x"), fs.ErrInvalid)
}

func testCreate(t *testing.T, d aio.Disk) {
	f := create(t, d, "a", 3*block)
	size, err := f.Size()
	must(t, err)
	if size != 3*block || f.Name() != "a" {
		t.Fatalf("%s has %d bytes, want a with %d", f.Name(), size, 3*block)
	}
	expect(t, f, 0, make([]byte, 3*block)) // B36: reserved space reads as zeros
	empty := create(t, d, "empty", 0)
	mustIs(t, empty.ReadAt(make([]byte, 1), 0), io.ErrUnexpectedEOF)
	_, err = d.Create("no/such/dir", block)
	mustIs(t, err, fs.ErrNotExist)
	_, err = d.Open("missing")
	mustIs(t, err, fs.ErrNotExist)
}

func testCreateExclusive(t *testing.T, d aio.Disk) {
	f := create(t, d, "a", block)
	must(t, f.WriteSyncAt(Fill(t, block, 1), 0))
	_, err := d.Create("a", 2*block)
	mustIs(t, err, fs.ErrExist)
	expect(t, f, 0, Fill(t, block, 1))
	must(t, d.MkdirAll("dir"))
	_, err = d.Create("dir", block)
	mustIs(t, err, fs.ErrExist)
	if _, err = d.Open("dir"); err == nil {
		t.Fatal("a directory was opened as a file")
	}
}

func testReadWrite(t *testing.T, d aio.Disk) {
	f := create(t, d, "a", 8*block)
	must(t, f.WriteAt(Fill(t, 2*block, 1), 0))
	must(t, f.WriteSyncAt(Fill(t, 3*block, 2), 2*block))
	must(t, f.WriteAt(Fill(t, block, 3), block))
	must(t, f.Sync())
	again, err := d.Open("a")
	must(t, err)
	defer again.Close()
	for _, handle := range []aio.File{f, again} {
		expect(t, handle, 0, Fill(t, block, 1))
		expect(t, handle, block, Fill(t, block, 3))
		expect(t, handle, 2*block, Fill(t, 3*block, 2))
		expect(t, handle, 5*block, make([]byte, 3*block))
	}
}

func testReadUnaligned(t *testing.T, d aio.Disk) {
	const size = 1 << 20 // more than one bounce buffer
	f := create(t, d, "a", size)
	want := Fill(t, size, 9)
	must(t, f.WriteAt(want, 0))
	for _, r := range []struct{ off, n int }{
		{0, 1}, {1, 1}, {511, 2}, {4095, 2}, {4096, 4096}, {1, 4096}, {3, size - 3}, {size - 1, 1}, {7, 300 << 10},
	} {
		got := make([]byte, r.n+1)[1:] // surely not page-aligned
		must(t, f.ReadAt(got, int64(r.off)))
		if !bytes.Equal(got, want[r.off:r.off+r.n]) {
			t.Errorf("bytes [%d, %d) differ", r.off, r.off+r.n)
		}
	}
	must(t, f.ReadAt(nil, 0))
	mustIs(t, f.ReadAt(make([]byte, 2), size-1), io.ErrUnexpectedEOF)
	mustIs(t, f.ReadAt(make([]byte, 1), size), io.ErrUnexpectedEOF)
	mustIs(t, f.ReadAt(Fill(t, 2*block, 0), size-block), io.ErrUnexpectedEOF)

	must(t, d.WriteFile("odd", []byte("hello")))
	odd, err := d.Open("odd")
	must(t, err)
	defer odd.Close()
	expect(t, odd, 1, []byte("ello"))
	mustIs(t, odd.ReadAt(make([]byte, 6), 0), io.ErrUnexpectedEOF)
	mustIs(t, odd.ReadAt(Fill(t, block, 0), 0), io.ErrUnexpectedEOF)
}

func testUnalignedWrite(t *testing.T, d aio.Disk) {
	f := create(t, d, "a", 4*block)
	p := Fill(t, 2*block, 1)
	for name, write := range map[string]func(){
		"offset": func() { _ = f.WriteAt(p[:block], 1) },
		"length": func() { _ = f.WriteAt(p[:block+1], 0) },
		"memory": func() { _ = f.WriteSyncAt(p[8:block+8], 0) },
		"empty":  func() { _ = f.WriteAt(nil, 0) },
	} {
		if !panics(write) {
			t.Errorf("a write with unaligned %s was taken", name)
		}
	}
	expect(t, f, 0, make([]byte, 4*block))
}

func panics(fn func()) (did bool) {
	defer func() { did = recover() != nil }()
	fn()
	return false
}

func testWriteExtends(t *testing.T, d aio.Disk) {
	f := create(t, d, "a", block)
	must(t, f.WriteSyncAt(Fill(t, block, 5), 3*block))
	size, err := f.Size()
	must(t, err)
	if size != 4*block {
		t.Fatalf("size is %d, want %d", size, 4*block)
	}
	expect(t, f, 0, make([]byte, 3*block))
	expect(t, f, 3*block, Fill(t, block, 5))
}

func testUseAfterClose(t *testing.T, d aio.Disk) {
	f := create(t, d, "a", block)
	must(t, f.Close())
	must(t, f.Close())
	p := Fill(t, block, 1)
	for what, err := range map[string]error{
		"WriteAt": f.WriteAt(p, 0), "WriteSyncAt": f.WriteSyncAt(p, 0), "ReadAt": f.ReadAt(p, 0), "Sync": f.Sync(),
	} {
		if !errors.Is(err, aio.ErrClosed) {
			t.Errorf("%s on a closed file: %v, want ErrClosed", what, err)
		}
	}
	_, err := f.Size()
	mustIs(t, err, aio.ErrClosed)
	_, err = f.Map()
	mustIs(t, err, aio.ErrClosed)
	must(t, d.Close())
	_, err = d.Open("a")
	mustIs(t, err, aio.ErrClosed)
	_, err = d.NewQueue(aio.QueueOptions{})
	mustIs(t, err, aio.ErrClosed)
}

func testDirectories(t *testing.T, d aio.Disk) {
	must(t, d.MkdirAll("topics/uuid/0"))
	must(t, d.MkdirAll("topics/uuid/0")) // again is no error
	must(t, d.MkdirAll("topics/uuid/1"))
	must(t, d.MkdirAll("."))
	create(t, d, "topics/uuid/b", block)
	create(t, d, "topics/uuid/a", 2*block)
	must(t, d.SyncDir("topics/uuid"))
	must(t, d.SyncDir("."))
	infos, err := d.ReadDir("topics/uuid")
	must(t, err)
	var got string
	for _, fi := range infos {
		got += fi.Name() + " "
		if fi.IsDir() != (fi.Name() < "9") {
			t.Errorf("%s: IsDir is %v", fi.Name(), fi.IsDir())
		}
		if fi.Name() == "a" && fi.Size() != 2*block {
			t.Errorf("a has %d bytes", fi.Size())
		}
	}
	if got != "0 1 a b " {
		t.Errorf("listing is %q, want sorted names", got)
	}
	root, err := d.ReadDir(".")
	must(t, err)
	if len(root) != 1 || root[0].Name() != "topics" {
		t.Errorf("the data directory shows %v, want only topics", root)
	}
	_, err = d.ReadDir("missing")
	mustIs(t, err, fs.ErrNotExist)
	mustIs(t, d.SyncDir("missing"), fs.ErrNotExist)
	mustIs(t, d.MkdirAll("topics/uuid/a"), syscall.ENOTDIR)
	if err := d.Remove("topics/uuid"); err == nil {
		t.Error("a directory with entries was removed by Remove")
	}
	must(t, d.Remove("topics/uuid/1"))
}

func testRemoveAll(t *testing.T, d aio.Disk) {
	must(t, d.MkdirAll("t/u/0"))
	f := create(t, d, "t/u/0/seg", block)
	must(t, f.WriteAt(Fill(t, block, 1), 0))
	must(t, d.RemoveAll("t"))
	must(t, d.RemoveAll("t"))
	must(t, d.RemoveAll("never/was"))
	_, err := d.Open("t/u/0/seg")
	mustIs(t, err, fs.ErrNotExist)
	expect(t, f, 0, Fill(t, block, 1)) // an open file stays readable after its name is removed
	mustIs(t, d.Remove("t"), fs.ErrNotExist)
}

func testRename(t *testing.T, d aio.Disk) {
	a, b := create(t, d, "a", block), create(t, d, "b", block)
	must(t, a.WriteAt(Fill(t, block, 1), 0))
	must(t, b.WriteAt(Fill(t, block, 2), 0))
	must(t, d.Rename("a", "b"))
	_, err := d.Open("a")
	mustIs(t, err, fs.ErrNotExist)
	got, err := d.Open("b")
	must(t, err)
	defer got.Close()
	expect(t, got, 0, Fill(t, block, 1))
	expect(t, b, 0, Fill(t, block, 2)) // the replaced file lives while open
	must(t, d.MkdirAll("dir/x"))
	must(t, d.Rename("b", "dir/b"))
	must(t, d.Rename("dir", "moved"))
	moved, err := d.Open("moved/b")
	must(t, err)
	defer moved.Close()
	expect(t, moved, 0, Fill(t, block, 1))
	mustIs(t, d.Rename("missing", "x"), fs.ErrNotExist)
}

func testReadFile(t *testing.T, d aio.Disk) {
	must(t, d.WriteFile("f", []byte("12345")))
	data, err := d.ReadFile("f", 5)
	must(t, err)
	if string(data) != "12345" {
		t.Errorf("read %q", data)
	}
	_, err = d.ReadFile("f", 4)
	mustIs(t, err, syscall.EFBIG)
	_, err = d.ReadFile("missing", 4)
	mustIs(t, err, fs.ErrNotExist)
}

func testWriteFile(t *testing.T, d aio.Disk) {
	must(t, d.MkdirAll("dir"))
	for _, text := range []string{"first, longer", "second", ""} {
		must(t, d.WriteFile("dir/f", []byte(text)))
		data, err := d.ReadFile("dir/f", 100)
		must(t, err)
		if string(data) != text {
			t.Errorf("read %q, want %q", data, text)
		}
	}
	infos, err := d.ReadDir("dir")
	must(t, err)
	if len(infos) != 1 {
		t.Errorf("%d entries are in the directory, want only the file", len(infos))
	}
	mustIs(t, d.WriteFile("missing/f", nil), fs.ErrNotExist)
}

func testFreeBytes(t *testing.T, d aio.Disk) {
	free, err := d.FreeBytes()
	must(t, err)
	if free <= 0 {
		t.Fatalf("%d bytes are free", free)
	}
	// More space than is free cannot be reserved, and no file is left.
	_, err = d.Create("huge", free+1<<30)
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EFBIG) {
		t.Fatalf("creating more than is free: %v, want ENOSPC", err)
	}
	_, err = d.Open("huge")
	mustIs(t, err, fs.ErrNotExist)
}

// A sparse file has its whole size, reads as zeros, may be written anywhere, and gets space without losing what it has.
func testSparse(t *testing.T, d aio.Disk) {
	f, err := d.CreateSparse("sparse", 64*block, block)
	must(t, err)
	defer f.Close()
	size, err := f.Size()
	must(t, err)
	if size != 64*block {
		t.Fatalf("the size is %d", size)
	}
	must(t, f.WriteSyncAt(Fill(t, block, 1), 40*block))
	must(t, f.Reserve(48*block))
	must(t, f.Sync())
	expect(t, f, 40*block, Fill(t, block, 1))
	expect(t, f, 0, make([]byte, 40*block))
	expect(t, f, 41*block, make([]byte, 23*block))
	free, err := d.FreeBytes()
	must(t, err)
	g, err := d.CreateSparse("large", free+1<<20, 0)
	if errors.Is(err, syscall.EFBIG) {
		return
	}
	must(t, err)
	defer g.Close()
	mustIs(t, g.Reserve(free+1<<20), syscall.ENOSPC)
}

func testMapping(t *testing.T, d aio.Disk) {
	f := create(t, d, "a", 4*block)
	must(t, f.WriteSyncAt(Fill(t, block, 1), 0))
	m, err := f.Map()
	must(t, err)
	defer m.Unmap()
	if m.Size() != 4*block {
		t.Fatalf("the mapping has %d bytes, want %d", m.Size(), 4*block)
	}
	check := func(off int, want []byte) {
		t.Helper()
		got := make([]byte, len(want))
		must(t, m.Copy(got, int64(off)))
		if !bytes.Equal(got, want) {
			t.Errorf("the mapping at %d does not show what was written", off)
		}
	}
	check(0, Fill(t, block, 1))
	check(block, make([]byte, 3*block)) // resident zeros now
	must(t, f.WriteAt(Fill(t, block, 2), block))
	check(block, Fill(t, block, 2))
	must(t, f.WriteSyncAt(Fill(t, block, 3), 2*block))
	check(2*block, Fill(t, block, 3))
	q, err := d.NewQueue(aio.QueueOptions{})
	must(t, err)
	must(t, q.Submit(aio.Op{File: f, Data: Fill(t, block, 4), Offset: 3 * block}))
	collect(t, q, 1)
	must(t, q.Close())
	check(3*block, Fill(t, block, 4))
	check(0, Fill(t, block, 1))
	must(t, d.Remove("a"))
	must(t, f.Close())
	check(0, Fill(t, block, 1)) // outlives the file and its name
}

func testMappingBounds(t *testing.T, d aio.Disk) {
	f := create(t, d, "a", 2*block)
	m, err := f.Map()
	must(t, err)
	must(t, m.Populate(0, 0))
	must(t, m.Populate(1, 2*block-1))
	for _, r := range [][2]int64{{-1, 1}, {0, 2*block + 1}, {2 * block, 1}, {0, -1}} {
		if !panics(func() { _ = m.Populate(r[0], r[1]) }) {
			t.Errorf("Populate(%d, %d) was taken", r[0], r[1])
		}
	}
	must(t, m.Unmap())
	must(t, m.Unmap())
	mustIs(t, m.Populate(0, 1), aio.ErrClosed)
	mustIs(t, m.Copy(make([]byte, 1), 0), aio.ErrClosed)
	if _, err := create(t, d, "empty", 0).Map(); err == nil {
		t.Error("an empty file was mapped")
	}
}
