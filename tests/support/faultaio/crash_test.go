package faultaio_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"penstock/segment/aio"
	"penstock/tests/support/aiotest"
	"penstock/tests/support/faultaio"
)

const block = aio.BlockBytes

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newDisk(seed uint64) *faultaio.Disk {
	return faultaio.New(faultaio.Options{Seed: seed, Log: true})
}

// durableFile makes a file of n blocks of pattern 0 that no crash can change.
func durableFile(t testing.TB, d aio.Disk, name string, blocks int) aio.File {
	t.Helper()
	f, err := d.Create(name, int64(blocks*block))
	must(t, err)
	must(t, f.WriteAt(aiotest.Fill(t, blocks*block, 0), 0))
	must(t, f.Sync())
	must(t, d.SyncDir("."))
	return f
}

// content reads a whole file; nil if it does not exist.
func content(t testing.TB, d aio.Disk, name string) []byte {
	t.Helper()
	p, err := d.ReadFile(name, 1<<30)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	must(t, err)
	return p
}

// outcomes collects what crashes with different seeds leave, as look reports it.
func outcomes(d *faultaio.Disk, look func(*faultaio.Disk) string) map[string]int {
	seen := map[string]int{}
	for seed := range uint64(300) {
		seen[look(d.Crash(seed))]++
	}
	return seen
}

// sectors says for each sector of p whether it has the old or the new pattern: "o", "n", or "?".
func sectors(p, old, fresh []byte) string {
	var s []byte
	for i := 0; i < len(p); i += 512 {
		switch {
		case bytes.Equal(p[i:i+512], old[i:i+512]):
			s = append(s, 'o')
		case bytes.Equal(p[i:i+512], fresh[i:i+512]):
			s = append(s, 'n')
		default:
			s = append(s, '?')
		}
	}
	return string(s)
}

func TestUnflushedWriteIsKeptLostOrTorn(t *testing.T) {
	d := newDisk(1)
	f := durableFile(t, d, "a", 2)
	fresh := aiotest.Fill(t, block, 1)
	must(t, f.WriteAt(fresh, block))
	old := aiotest.Fill(t, 2*block, 0)
	seen := outcomes(d, func(c *faultaio.Disk) string {
		p := content(t, c, "a")
		if !bytes.Equal(p[:block], old[:block]) {
			t.Fatal("a crash changed a durable block")
		}
		return sectors(p[block:], old[block:], fresh)
	})
	if seen["oooooooo"] == 0 || seen["nnnnnnnn"] == 0 || len(seen) < 20 {
		t.Errorf("outcomes %v: want lost, whole and many torn ones", seen)
	}
	for s := range seen {
		if bytes.ContainsRune([]byte(s), '?') {
			t.Errorf("outcome %s: a sector is neither old nor new", s)
		}
	}
}

func TestFlushedWriteSurvives(t *testing.T) {
	fresh := aiotest.Fill(t, block, 1)
	for name, write := range map[string]func(d *faultaio.Disk, f aio.File) error{
		"sync":  func(_ *faultaio.Disk, f aio.File) error { return errors.Join(f.WriteAt(fresh, 0), f.Sync()) },
		"dsync": func(_ *faultaio.Disk, f aio.File) error { return f.WriteSyncAt(fresh, 0) },
		// Older bytes that were not flushed must not reappear over newer durable ones.
		"dsync over unflushed": func(_ *faultaio.Disk, f aio.File) error {
			return errors.Join(f.WriteAt(aiotest.Fill(t, 2*block, 9), 0), f.WriteSyncAt(fresh, 0))
		},
		"queue": func(d *faultaio.Disk, f aio.File) error {
			q, err := d.NewQueue(aio.QueueOptions{})
			must(t, err)
			must(t, q.Submit(aio.Op{File: f, Data: fresh}))
			done, err := q.Wait(nil, true)
			return errors.Join(err, done[0].Err)
		},
		"killed, flushed by the next process": func(d *faultaio.Disk, f aio.File) error {
			return errors.Join(f.WriteAt(fresh, 0), f.Sync())
		},
	} {
		d := newDisk(1)
		must(t, write(d, durableFile(t, d, "a", 2)))
		for seed := range uint64(100) {
			if got := content(t, d.Crash(seed), "a"); !bytes.Equal(got[:block], fresh) {
				t.Errorf("%s, seed %d: a flushed write was lost: %s",
					name, seed, sectors(got[:block], aiotest.Fill(t, block, 0), fresh))
			}
		}
	}
}

// RWF_DSYNC makes its own bytes durable and no others.
func TestDsyncCoversOnlyItself(t *testing.T) {
	d := newDisk(1)
	f := durableFile(t, d, "a", 2)
	must(t, f.WriteAt(aiotest.Fill(t, block, 1), 0))
	must(t, f.WriteSyncAt(aiotest.Fill(t, block, 2), block))
	seen := outcomes(d, func(c *faultaio.Disk) string {
		return sectors(content(t, c, "a")[:block], aiotest.Fill(t, block, 0), aiotest.Fill(t, block, 1))
	})
	if seen["oooooooo"] == 0 {
		t.Error("the neighbour's flush made a write durable that it does not cover")
	}
}

func TestNamesNeedSyncDir(t *testing.T) {
	d := newDisk(1)
	must(t, d.MkdirAll("dir"))
	f, err := d.Create("dir/new", block)
	must(t, err)
	must(t, f.WriteSyncAt(aiotest.Fill(t, block, 1), 0))
	names := func(c *faultaio.Disk) string {
		infos, err := c.ReadDir("dir")
		must(t, err)
		var s string
		for _, fi := range infos {
			s += fi.Name() + " "
		}
		return s
	}
	want := func(when string, expected ...string) {
		t.Helper()
		seen := outcomes(d, names)
		for _, e := range expected {
			if seen[e] == 0 {
				t.Errorf("%s: %q never was left; seen %v", when, e, seen)
			}
			delete(seen, e)
		}
		if len(seen) > 0 {
			t.Errorf("%s: also seen %v", when, seen)
		}
	}
	want("created", "", "new ")
	must(t, d.SyncDir("dir"))
	want("created and synced", "new ")
	must(t, d.Rename("dir/new", "dir/other"))
	want("renamed", "new ", "other ") // never both, never none
	must(t, d.SyncDir("dir"))
	want("renamed and synced", "other ")
	must(t, d.Remove("dir/other"))
	want("removed", "", "other ")
	must(t, d.SyncDir("dir"))
	want("removed and synced", "")
}

// A rename to another directory is one change: the file is never in both directories and never in neither.
func TestRenameAcrossDirectoriesIsAtomic(t *testing.T) {
	d := newDisk(1)
	must(t, errors.Join(d.MkdirAll("a"), d.MkdirAll("b")))
	_, err := d.Create("a/f", block)
	must(t, err)
	must(t, d.SyncDir("a"))
	must(t, d.Rename("a/f", "b/f"))
	where := func(c *faultaio.Disk) string {
		return fmt.Sprint(content(t, c, "a/f") != nil, content(t, c, "b/f") != nil)
	}
	if seen := outcomes(d, where); seen["true false"] == 0 || seen["false true"] == 0 || len(seen) != 2 {
		t.Errorf("outcomes %v", seen)
	}
	must(t, d.SyncDir("b")) // syncing one of the two is enough
	if seen := outcomes(d, where); len(seen) != 1 || seen["false true"] == 0 {
		t.Errorf("outcomes after SyncDir %v", seen)
	}
}

func TestSizeNeedsSync(t *testing.T) {
	d := newDisk(1)
	f, err := d.Create("a", 4*block)
	must(t, err)
	must(t, d.SyncDir("."))
	size := func(c *faultaio.Disk) string { return fmt.Sprint(len(content(t, c, "a")) / block) }
	if seen := outcomes(d, size); seen["0"] == 0 || seen["4"] == 0 {
		t.Errorf("sizes %v before Sync, want 0 and 4", seen)
	}
	must(t, f.Sync())
	if seen := outcomes(d, size); len(seen) != 1 || seen["4"] == 0 {
		t.Errorf("sizes %v after Sync, want 4", seen)
	}
}

// fsyncgate: a flush fails once, the next one succeeds, reads show the bytes all the while, and a power cut takes them
// away (B28).
func TestFailedFlushLosesDataLater(t *testing.T) {
	d := newDisk(1)
	f := durableFile(t, d, "a", 1)
	fresh := aiotest.Fill(t, block, 1)
	must(t, f.WriteAt(fresh, 0))
	d.Inject(faultaio.Rule{Kind: faultaio.KindSync, Name: "a", Err: syscall.EIO})
	if err := f.Sync(); !errors.Is(err, syscall.EIO) {
		t.Fatalf("Sync: %v, want EIO", err)
	}
	for what, err := range map[string]error{
		"Sync": f.Sync(), "WriteAt": f.WriteAt(fresh, 0), "WriteSyncAt": f.WriteSyncAt(fresh, 0),
	} {
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("%s on the failed file: %v, want the first error", what, err)
		}
	}
	again, err := d.Open("a")
	must(t, err)
	must(t, again.Sync()) // a lie
	if !bytes.Equal(content(t, d, "a"), fresh) || !bytes.Equal(content(t, d.Kill(1), "a"), fresh) {
		t.Error("reads do not show the bytes that the cache still has")
	}
	lost := func(c *faultaio.Disk) string {
		return sectors(content(t, c, "a"), aiotest.Fill(t, block, 0), fresh)
	}
	if seen := outcomes(d, lost); seen["oooooooo"] == 0 {
		t.Errorf("outcomes %v: the lie was not found out", seen)
	}
	must(t, again.WriteSyncAt(fresh, 0)) // safe after it was written again
	if seen := outcomes(d, lost); len(seen) != 1 || seen["nnnnnnnn"] == 0 {
		t.Errorf("outcomes %v after writing again", seen)
	}
}

func TestKillKeepsWhatCompleted(t *testing.T) {
	d := newDisk(1)
	f := durableFile(t, d, "a", 3)
	must(t, f.WriteAt(aiotest.Fill(t, block, 1), 0))
	_, err := d.Create("unsynced name", block)
	must(t, err)
	q, err := d.NewQueue(aio.QueueOptions{})
	must(t, err)
	must(t, q.Submit(aio.Op{File: f, Data: aiotest.Fill(t, block, 2), Offset: block}))
	must(t, q.Submit(aio.Op{File: f, Data: aiotest.Fill(t, block, 2), Offset: 2 * block}))
	seen := map[string]bool{}
	for seed := range uint64(100) {
		next := d.Kill(seed)
		p := content(t, next, "a")
		if !bytes.Equal(p[:block], aiotest.Fill(t, block, 1)) || content(t, next, "unsynced name") == nil {
			t.Fatal("a kill lost what had completed")
		}
		old := aiotest.Fill(t, 3*block, 0)[block:]
		fresh := append(bytes.Clone(aiotest.Fill(t, block, 2)), aiotest.Fill(t, block, 2)...)
		seen[sectors(p[block:], old, fresh)] = true
		// A power cut may still take away what was not flushed (B17).
		if seed == 0 {
			first := func(c *faultaio.Disk) string {
				return sectors(content(t, c, "a")[:block], aiotest.Fill(t, block, 0), aiotest.Fill(t, block, 1))
			}
			if outcomes(next, first)["oooooooo"] == 0 {
				t.Error("a kill made unflushed bytes durable")
			}
		}
	}
	if len(seen) != 4 {
		t.Errorf("writes in flight at a kill left %v, want all four subsets", seen)
	}
}

func TestInFlightAtCrash(t *testing.T) {
	d := newDisk(1)
	f := durableFile(t, d, "a", 1)
	q, err := d.NewQueue(aio.QueueOptions{})
	must(t, err)
	fresh := aiotest.Fill(t, block, 1)
	must(t, q.Submit(aio.Op{File: f, Data: fresh}))
	seen := outcomes(d, func(c *faultaio.Disk) string {
		return sectors(content(t, c, "a"), aiotest.Fill(t, block, 0), fresh)
	})
	if seen["oooooooo"] == 0 || seen["nnnnnnnn"] == 0 || len(seen) < 10 {
		t.Errorf("outcomes %v: want lost, whole and torn", seen)
	}
	must(t, q.Close())
}

// The same seeds give the same disk, byte for byte.
func TestCrashIsDeterministic(t *testing.T) {
	run := func() *faultaio.Disk {
		d := newDisk(7)
		f := durableFile(t, d, "a", 8)
		q, err := d.NewQueue(aio.QueueOptions{Depth: 4})
		must(t, err)
		var order []uint64
		var done []aio.Completion
		for i := range 4 {
			must(t, q.Submit(aio.Op{File: f, Data: aiotest.Fill(t, block, byte(i)), Offset: int64(i * block), Tag: uint64(i)}))
		}
		for q.InFlight() > 1 {
			done, err = q.Wait(done[:0], false)
			must(t, err)
			for _, c := range done {
				order = append(order, c.Tag)
			}
		}
		must(t, d.WriteFile("order", fmt.Append(nil, order)))
		for i := range 20 {
			must(t, f.WriteAt(aiotest.Fill(t, block, byte(40+i)), int64(i%8*block)))
		}
		return d
	}
	one, two := run(), run()
	for seed := range uint64(50) {
		a, b := one.Crash(seed), two.Crash(seed)
		for _, name := range []string{"a", "order"} {
			if !bytes.Equal(content(t, a, name), content(t, b, name)) {
				t.Fatalf("seed %d: %s differs between two equal runs", seed, name)
			}
		}
	}
}

func TestCrashOfCrashIsTheSame(t *testing.T) {
	d := newDisk(1)
	f := durableFile(t, d, "a", 4)
	must(t, f.WriteAt(aiotest.Fill(t, 4*block, 3), 0))
	first := d.Crash(5)
	for seed := range uint64(20) {
		if !bytes.Equal(content(t, first.Crash(seed), "a"), content(t, first, "a")) {
			t.Fatal("a second power cut changed a disk on which everything is durable")
		}
	}
}

// Clones share pages, but writes to one clone must not show in another.
func TestClonesAreApart(t *testing.T) {
	d := newDisk(1)
	f := durableFile(t, d, "a", 2)
	clones := []*faultaio.Disk{d.Crash(1), d.Kill(1), d.Crash(2)}
	clones = append(clones, clones[0].Crash(3), clones[1].Kill(4))
	must(t, f.WriteSyncAt(aiotest.Fill(t, block, 100), 0))
	for i, c := range clones {
		g, err := c.Open("a")
		must(t, err)
		must(t, g.WriteSyncAt(aiotest.Fill(t, block, byte(i+1)), 0))
	}
	for i, c := range append(clones, d) {
		want := byte(i + 1)
		if c == d {
			want = 100
		}
		if !bytes.Equal(content(t, c, "a")[:block], aiotest.Fill(t, block, want)) {
			t.Errorf("disk %d does not show its own write", i)
		}
		if !bytes.Equal(content(t, c, "a")[block:], aiotest.Fill(t, 2*block, 0)[block:]) {
			t.Errorf("disk %d lost a block", i)
		}
	}
}

// WriteFile is atomic at every boundary: a crash leaves the old bytes or the new ones, and after its return the new
// ones (B43).
func TestWriteFileIsAtomic(t *testing.T) {
	prepare := func() *faultaio.Disk {
		d := newDisk(1)
		must(t, d.MkdirAll("dir"))
		must(t, d.WriteFile("dir/f", []byte("old")))
		return d
	}
	d := prepare()
	start := d.Ops()
	must(t, d.WriteFile("dir/f", []byte("new")))
	end := d.Ops()
	if end-start < 4 {
		t.Fatalf("WriteFile took %d operations, want create, write, sync, rename and syncdir: %v", end-start, d.Log()[start:])
	}
	for seed := range uint64(50) {
		if got := content(t, d.Crash(seed), "dir/f"); string(got) != "new" {
			t.Fatalf("after WriteFile a crash left %q", got)
		}
	}
	for op := start; op < end; op++ {
		d := prepare()
		d.CrashAt(op)
		if err := d.WriteFile("dir/f", []byte("new")); !errors.Is(err, faultaio.ErrCrashed) || !d.Crashed() {
			t.Fatalf("operation %d: %v, want ErrCrashed", op, err)
		}
		if err := d.MkdirAll("x"); !errors.Is(err, faultaio.ErrCrashed) {
			t.Fatalf("a crashed disk goes on: %v", err)
		}
		for seed := range uint64(100) {
			for _, next := range []*faultaio.Disk{d.Crash(seed), d.Kill(seed)} {
				if got := string(content(t, next, "dir/f")); got != "old" && got != "new" {
					t.Fatalf("crash in operation %d (%v), seed %d: %q", op, d.Log()[op], seed, got)
				}
				must(t, next.WriteFile("dir/f", []byte("next"))) // whatever the crash left behind
			}
		}
	}
}

// Crash states must be cheap: simulations spend most of their time on them.
func BenchmarkCrash(b *testing.B) {
	d := faultaio.New(faultaio.Options{Seed: 1})
	for i := range 8 {
		f := durableFile(b, d, fmt.Sprint(i), 256) // 1 MiB each
		for j := range 4 {
			must(b, f.WriteAt(aiotest.Fill(b, 16*block, byte(j)), int64(j*16*block)))
		}
	}
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		d.Crash(uint64(n))
	}
}
