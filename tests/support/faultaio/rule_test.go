package faultaio_test

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"penstock/segment/aio"
	"penstock/tests/support/aiotest"
	"penstock/tests/support/faultaio"
)

func TestRules(t *testing.T) {
	d := newDisk(1)
	f := durableFile(t, d, "a.seg", 4)
	p := aiotest.Fill(t, block, 1)
	d.Inject(faultaio.Rule{Kind: faultaio.KindWrite, Name: "*.seg", After: 1, ShortBytes: 512})
	must(t, f.WriteAt(p, 0))
	if err := f.WriteAt(p, block); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("short write: %v", err)
	}
	d.ClearRules()
	g := durableFile(t, d, "b.seg", 1)
	d.Inject(faultaio.Rule{Kind: faultaio.KindAny, Name: "b.*", Count: -1, Err: syscall.ENOSPC})
	for range 3 {
		if err := g.WriteSyncAt(p, 0); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("ENOSPC: %v", err)
		}
	}
	must(t, g.ReadAt(p, 0)) // KindAny does not include reads
	d.ClearRules()
	must(t, g.WriteSyncAt(p, 0)) // a full disk does not make the file fail
	d.Inject(faultaio.Rule{Kind: faultaio.KindRead, Name: "b.seg", Err: syscall.EIO})
	if err := g.ReadAt(p, 0); !errors.Is(err, syscall.EIO) {
		t.Errorf("read: %v, want EIO", err)
	}
	must(t, g.ReadAt(p, 0))
	m, err := g.Map()
	must(t, err)
	d.Inject(faultaio.Rule{Kind: faultaio.KindRead, Name: "b.seg", Err: syscall.EIO})
	if err := m.Populate(0, block); !errors.Is(err, aio.ErrMedia) {
		t.Errorf("populate: %v, want ErrMedia", err)
	}
	for kind, change := range map[faultaio.Kind]func() error{
		faultaio.KindCreate:  func() error { _, err := d.Create("c", 0); return err },
		faultaio.KindRename:  func() error { return d.Rename("b.seg", "c") },
		faultaio.KindRemove:  func() error { return d.Remove("b.seg") },
		faultaio.KindMkdir:   func() error { return d.MkdirAll("dir") },
		faultaio.KindSyncDir: func() error { return d.SyncDir(".") },
	} {
		d.ClearRules()
		d.Inject(faultaio.Rule{Kind: kind, Err: syscall.EIO})
		if err := change(); !errors.Is(err, syscall.EIO) {
			t.Errorf("%v: %v, want EIO", kind, err)
		}
		if content(t, d, "b.seg") == nil {
			t.Fatalf("a failed %v changed a name", kind)
		}
	}
}

func TestCapacity(t *testing.T) {
	d := faultaio.New(faultaio.Options{CapacityBytes: 10 * block})
	free := func(want int64) {
		t.Helper()
		if got, err := d.FreeBytes(); err != nil || got != want*block {
			t.Fatalf("%d bytes free, want %d blocks (%v)", got, want, err)
		}
	}
	f, err := d.Create("a", 8*block)
	must(t, err)
	free(2)
	if err := f.WriteAt(aiotest.Fill(t, 3*block, 1), 8*block); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("growing above the capacity: %v, want ENOSPC", err)
	}
	must(t, f.WriteAt(aiotest.Fill(t, 2*block, 1), 8*block))
	free(0)
	if err := d.WriteFile("w", []byte("x")); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("WriteFile on a full disk: %v, want ENOSPC", err)
	}
	must(t, f.WriteSyncAt(aiotest.Fill(t, block, 1), 0)) // within the file's size
	must(t, d.Rename("a", "b"))
	free(0)
	must(t, d.Remove("b"))
	free(10)
	d.SetCapacity(2 * block)
	free(2)
	must(t, d.MkdirAll("x/y"))
	_, err = d.Create("x/y/a", 2*block)
	must(t, err)
	must(t, d.RemoveAll("x"))
	free(2)
}

// A disk that hangs: nothing completes, the owner can still be woken, and everything goes on afterwards (B99).
func TestHold(t *testing.T) {
	d := newDisk(1)
	f := durableFile(t, d, "a", 2)
	q, err := d.NewQueue(aio.QueueOptions{})
	must(t, err)
	d.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Hold: true})
	must(t, q.Submit(aio.Op{File: f, Data: aiotest.Fill(t, block, 1)}))
	for range 10 {
		done, err := q.Wait(nil, false)
		must(t, err)
		if len(done) != 0 {
			t.Fatal("a held write completed")
		}
	}
	q.Wake()
	done, err := q.Wait(nil, true)
	must(t, err)
	if len(done) != 0 {
		t.Fatal("a held write completed")
	}
	d.Inject(faultaio.Rule{Kind: faultaio.KindSync, Hold: true})
	var syncing sync.WaitGroup
	before := d.Ops()
	syncing.Go(func() { must(t, f.Sync()) })
	syncing.Go(func() {
		for d.Ops() == before {
			runtime.Gosched()
		}
		d.ReleaseHeld()
	})
	done, err = q.Wait(nil, true)
	must(t, err)
	if len(done) != 1 || done[0].Err != nil {
		t.Fatalf("completions %v", done)
	}
	syncing.Wait()
	d.ClearRules()
	d.Inject(faultaio.Rule{Kind: faultaio.KindWriteSync, Waits: 3})
	must(t, q.Submit(aio.Op{File: f, Data: aiotest.Fill(t, block, 1)}))
	for i := range 3 {
		if done, err = q.Wait(nil, false); err != nil || len(done) != 0 {
			t.Fatalf("wait %d: %v, %v", i, done, err)
		}
	}
	if done, err = q.Wait(nil, true); err != nil || len(done) != 1 {
		t.Fatalf("%v, %v", done, err)
	}
}

func TestMemoryChangedInFlightIsFound(t *testing.T) {
	d := newDisk(1)
	f := durableFile(t, d, "a", 1)
	q, err := d.NewQueue(aio.QueueOptions{})
	must(t, err)
	p := aiotest.Fill(t, block, 1)
	must(t, q.Submit(aio.Op{File: f, Data: p}))
	p[100]++
	defer func() {
		if recover() == nil {
			t.Error("memory of a write in flight was changed, and nobody noticed")
		}
		p[100]--
	}()
	_, _ = q.Wait(nil, true)
}

// A page that the device cannot read makes Copy fail every time until the rule ends, even if it was read before.
func TestMappingFails(t *testing.T) {
	d := newDisk(1)
	f := durableFile(t, d, "a", 2)
	m, err := f.Map()
	must(t, err)
	got := make([]byte, block)
	must(t, m.Copy(got, block))
	if !bytes.Equal(got, aiotest.Fill(t, 2*block, 0)[block:]) {
		t.Error("a page is not shown")
	}
	d.Inject(faultaio.Rule{Kind: faultaio.KindRead, Name: "a", Err: syscall.EIO, Count: 2})
	for range 2 {
		if err := m.Copy(got, block); !errors.Is(err, aio.ErrMedia) {
			t.Errorf("a failed read: %v, want ErrMedia", err)
		}
	}
	must(t, m.Copy(got, block))
}

func TestCorrupt(t *testing.T) {
	d := newDisk(1)
	durableFile(t, d, "a", 1)
	if !d.Corrupt("a", []byte{1, 2, 3}, 100) || d.Corrupt("missing", []byte{1}, 0) {
		t.Fatal("Corrupt tells the wrong result")
	}
	for _, c := range []*faultaio.Disk{d, d.Crash(1)} {
		if got := content(t, c, "a"); !bytes.Equal(got[100:103], []byte{1, 2, 3}) {
			t.Error("the rot did not set in")
		}
	}
}
