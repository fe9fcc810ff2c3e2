package aio_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock/segment/aio"
)

// holdDisk keeps the directory open until its stdin closes.
func holdDisk(args []string) error {
	d, err := aio.OpenDisk(args[0], aio.DiskOptions{})
	if err != nil {
		return err
	}
	q, err := d.NewQueue(aio.QueueOptions{})
	if err != nil {
		return err
	}
	fmt.Println("open")
	untilStdinCloses()
	return errors.Join(q.Close(), d.Close())
}

func TestLockExcludesOthers(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir, aio.DiskOptions{})
	refused := map[string]aio.DiskOptions{
		"writer": {}, "reader": {ReadOnly: true}, "waiting writer": {LockWait: 30 * time.Millisecond},
	}
	for name, opts := range refused {
		if _, err := aio.OpenDisk(dir, opts); !errors.Is(err, aio.ErrLocked) {
			t.Errorf("a second %s: %v, want ErrLocked", name, err)
		}
	}
	look := open(t, dir, aio.DiskOptions{ReadOnly: true, NoLock: true})
	if err := errors.Join(look.Close(), d.Close()); err != nil {
		t.Fatal(err)
	}
	one := open(t, dir, aio.DiskOptions{ReadOnly: true})
	two := open(t, dir, aio.DiskOptions{ReadOnly: true})
	if _, err := aio.OpenDisk(dir, aio.DiskOptions{}); !errors.Is(err, aio.ErrLocked) {
		t.Errorf("a writer beside readers: %v, want ErrLocked", err)
	}
	if err := errors.Join(one.Close(), two.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestLockExcludesOtherProcesses(t *testing.T) {
	dir := t.TempDir()
	c := startChild(t, "hold", dir)
	if got := c.line(t); got != "open" {
		t.Fatal(got)
	}
	if _, err := aio.OpenDisk(dir, aio.DiskOptions{}); !errors.Is(err, aio.ErrLocked) {
		t.Fatalf("a directory in use opened: %v, want ErrLocked", err)
	}
	time.AfterFunc(50*time.Millisecond, func() { c.in.Close() })
	d, err := aio.OpenDisk(dir, aio.DiskOptions{LockWait: 20 * time.Second})
	if err != nil {
		t.Fatalf("waiting for the other process: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// Whoever deletes LOCK under a running process does not open the directory to a second one: the directory itself is
// locked.
func TestDeletedLockExcludesOthers(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir, aio.DiskOptions{})
	refusedWithoutLock(t, dir)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	reader := open(t, dir, aio.DiskOptions{ReadOnly: true}) // no LOCK, and still a lock
	if _, err := aio.OpenDisk(dir, aio.DiskOptions{}); !errors.Is(err, aio.ErrLocked) {
		t.Errorf("a writer beside a reader: %v, want ErrLocked", err)
	}
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	d = open(t, dir, aio.DiskOptions{})
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// refusedWithoutLock deletes the LOCK of a directory in use, and expects that nobody else can open the directory, and
// that the attempts leave no new LOCK.
func refusedWithoutLock(t *testing.T, dir string) {
	t.Helper()
	lock := filepath.Join(dir, "LOCK")
	if err := os.Remove(lock); err != nil {
		t.Fatal(err)
	}
	for name, opts := range map[string]aio.DiskOptions{
		"writer": {}, "reader": {ReadOnly: true}, "waiting writer": {LockWait: 30 * time.Millisecond},
	} {
		other, err := aio.OpenDisk(dir, opts)
		if err == nil {
			other.Close()
		}
		if !errors.Is(err, aio.ErrLocked) || !strings.Contains(err.Error(), "LOCK was removed") {
			t.Errorf("a second %s without LOCK: %v, want ErrLocked and what happened", name, err)
		}
	}
	if _, err := os.Stat(lock); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a refused process made a LOCK: %v", err)
	}
}

// The lock of the directory lasts as long as that of LOCK: until the writes of a killed process have landed.
func TestDeletedLockExcludesOtherProcesses(t *testing.T) {
	dir := t.TempDir()
	c := startChild(t, "hold", dir)
	if got := c.line(t); got != "open" {
		t.Fatal(got)
	}
	refusedWithoutLock(t, dir)
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	d, err := aio.OpenDisk(dir, aio.DiskOptions{LockWait: 20 * time.Second})
	if err != nil {
		t.Fatalf("waiting for a killed process: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// The kernel tears down the ring of a closed queue later. Until then the ring's reference to the lock must not count.
func TestReopenAtOnce(t *testing.T) {
	dir := t.TempDir()
	for range 30 {
		d := open(t, dir, aio.DiskOptions{})
		q, err := d.NewQueue(aio.QueueOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(q.Close(), d.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

const (
	ghostBlocks     = 64
	ghostBlockBytes = 256 << 10
)

// overwriteForever writes generation after generation over the same file, with many writes in flight. Each generation
// is one byte value.
func overwriteForever(args []string) error {
	d, err := aio.OpenDisk(args[0], aio.DiskOptions{Mode: aio.Mode(args[1])})
	if err != nil {
		return err
	}
	a, err := aio.NewArena(ghostBlockBytes, 16)
	if err != nil {
		return err
	}
	q, err := d.NewQueue(aio.QueueOptions{Depth: 16, Arena: a})
	if err != nil {
		return err
	}
	f, err := d.Open("ghost")
	if err != nil {
		return err
	}
	fmt.Println("writing")
	var done []aio.Completion
	held := map[uint64]*aio.Buf{}
	for n := uint64(0); ; {
		for b := a.Get(); b != nil; b = a.Get() {
			for i := range b.Bytes() {
				b.Bytes()[i] = byte(n)
			}
			if err := q.Submit(aio.Op{
				File: f, Data: b.Bytes(), Offset: int64(n%ghostBlocks) * ghostBlockBytes, Tag: n,
			}); err != nil {
				return err
			}
			held[n] = b
			n++
		}
		if done, err = q.Wait(done[:0], true); err != nil {
			return err
		}
		for _, c := range done {
			if c.Err != nil {
				return c.Err
			}
			held[c.Tag].Release()
			delete(held, c.Tag)
		}
	}
}

// A process is killed with writes in flight. The next holder of the lock must never see bytes change (B17).
func TestKilledProcessKeepsLockUntilItsWritesLanded(t *testing.T) {
	for _, mode := range []aio.Mode{aio.ModeUring, aio.ModePwrite} {
		t.Run(string(mode), func(t *testing.T) {
			dir := t.TempDir()
			d := open(t, dir, aio.DiskOptions{})
			f, err := d.Create("ghost", ghostBlocks*ghostBlockBytes)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(f.Close(), d.Close()); err != nil {
				t.Fatal(err)
			}
			for round := range 5 {
				// In every second round the lock of the directory is the only one.
				killAndCompare(t, dir, mode, time.Duration(1+7*round)*time.Millisecond, round%2 == 1)
			}
		})
	}
}

func killAndCompare(t *testing.T, dir string, mode aio.Mode, after time.Duration, unlock bool) {
	t.Helper()
	c := startChild(t, "overwrite", dir, string(mode))
	if got := c.line(t); got != "writing" {
		t.Fatal(got)
	}
	if unlock {
		if err := os.Remove(filepath.Join(dir, "LOCK")); err != nil {
			t.Fatal(err)
		}
	}
	<-time.After(after) // let it make progress: any moment will do
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	d := open(t, dir, aio.DiskOptions{LockWait: 20 * time.Second})
	defer d.Close()
	f, err := d.Open("ghost")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	read := func() []byte {
		p := make([]byte, ghostBlocks*ghostBlockBytes)
		if err := f.ReadAt(p, 0); err != nil {
			t.Fatal(err)
		}
		return p
	}
	first := read()
	_ = c.cmd.Wait()
	if second := read(); string(first) != string(second) {
		t.Fatal("the file changed after the lock was taken: a write of the killed process landed late")
	}
}

func TestFilesAreForTheOwnerOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	d := open(t, dir, aio.DiskOptions{})
	defer d.Close()
	if err := errors.Join(d.MkdirAll("x/y"), d.WriteFile("x/w", []byte("w"))); err != nil {
		t.Fatal(err)
	}
	f, err := d.Create("x/f", aio.BlockBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for name, want := range map[string]fs.FileMode{
		".": 0o700, "x": 0o700, "x/y": 0o700, "x/f": 0o600, "x/w": 0o600, "LOCK": 0o600,
	} {
		st, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := st.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", name, got, want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "PROBE")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the probe file was left: %v", err)
	}
}

// A symbolic link in the directory must not lead the engine out of the directory.
func TestLinksCannotEscape(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	secret := filepath.Join(outside, "secret")
	if err := os.WriteFile(secret, make([]byte, aio.BlockBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	d := open(t, dir, aio.DiskOptions{})
	defer d.Close()
	err := errors.Join(os.Symlink(secret, filepath.Join(dir, "file")), os.Symlink(outside, filepath.Join(dir, "dir")),
		syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"file", "dir/secret", "fifo"} {
		if f, err := d.Open(name); err == nil {
			f.Close()
			t.Errorf("%s was opened", name)
		}
	}
	if _, err := d.ReadFile("file", 1<<20); err == nil {
		t.Error("a file outside was read through a link")
	}
	if _, err := d.Create("dir/new", aio.BlockBytes); err == nil {
		t.Error("a file was made outside through a link")
	}
	if err := d.MkdirAll("dir/sub"); err == nil {
		t.Error("a directory was made outside through a link")
	}
	if err := d.RemoveAll("dir"); err != nil { // removes the link, not its target
		t.Error(err)
	}
	if _, err := os.Stat(secret); err != nil {
		t.Errorf("the file outside is gone: %v", err)
	}
}

func TestReadOnlyChangesNothing(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir, aio.DiskOptions{})
	if err := errors.Join(d.WriteFile("f", []byte("hello")), d.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := aio.OpenDisk(filepath.Join(dir, "missing"), aio.DiskOptions{ReadOnly: true}); !errors.Is(err,
		fs.ErrNotExist) {
		t.Errorf("a missing directory: %v, want fs.ErrNotExist", err)
	}
	d = open(t, dir, aio.DiskOptions{ReadOnly: true})
	defer d.Close()
	_, createErr := d.Create("new", aio.BlockBytes)
	_, queueErr := d.NewQueue(aio.QueueOptions{})
	for what, err := range map[string]error{
		"Create": createErr, "NewQueue": queueErr, "WriteFile": d.WriteFile("f", nil), "Remove": d.Remove("f"),
		"RemoveAll": d.RemoveAll("f"), "Rename": d.Rename("f", "g"), "MkdirAll": d.MkdirAll("x"),
	} {
		if !errors.Is(err, syscall.EROFS) {
			t.Errorf("%s: %v, want EROFS", what, err)
		}
	}
	f, err := d.Open("f")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := make([]byte, 4)
	if err := f.ReadAt(got, 1); err != nil || string(got) != "ello" {
		t.Errorf("read %q, %v", got, err)
	}
}

func TestUnknownModeIsRefused(t *testing.T) {
	if _, err := aio.OpenDisk(t.TempDir(), aio.DiskOptions{Mode: "fast"}); err == nil {
		t.Fatal("an unknown mode was taken")
	}
}
