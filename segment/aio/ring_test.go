package aio

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"penstock/internal/uring"
)

// openQueue opens a disk in ModeUring with one ring, of the test's goroutine. Both are closed at the end of the test.
func openQueue(t *testing.T, dir string, opts QueueOptions) (*fsDisk, *uringQueue) {
	t.Helper()
	disk, err := OpenDisk(dir, DiskOptions{Mode: ModeUring})
	if err != nil {
		t.Fatal(err)
	}
	d := disk.(*fsDisk)
	depth, err := opts.QueueDepth()
	if err != nil {
		t.Fatal(err)
	}
	q, err := newUringQueue(d, depth, opts.Arena)
	if err != nil {
		d.Close()
		t.Skipf("this machine refuses io_uring: %v", err)
	}
	t.Cleanup(func() {
		if err := errors.Join(q.Close(), d.Close()); err != nil {
			t.Error(err)
		}
	})
	return d, q
}

func createFile(t *testing.T, d Disk, name string, size int64) File {
	t.Helper()
	f, err := d.Create(name, size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func aligned(t *testing.T, n int) []byte {
	p, free := AlignedBytes(n)
	t.Cleanup(free)
	return p
}

// When a process dies, its file descriptors are closed at once and its rings later. The locks must live as long as the
// rings do, that of the directory also without LOCK. The test plays the death by closing the locks' descriptors.
func TestRingHoldsTheLocks(t *testing.T) {
	for _, without := range []string{"", "LOCK"} {
		t.Run("without "+without, func(t *testing.T) { ringHoldsTheLocks(t, without) })
	}
}

func ringHoldsTheLocks(t *testing.T, without string) {
	dir := t.TempDir()
	d, q := openQueue(t, dir, QueueOptions{})
	if without != "" {
		if err := os.Remove(filepath.Join(dir, without)); err != nil {
			t.Fatal(err)
		}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, f := range []*os.File{d.lock.file, d.dir} {
		if err := unix.Dup3(int(null.Fd()), int(f.Fd()), unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
	}
	if other, err := OpenDisk(dir, DiskOptions{}); !errors.Is(err, ErrLocked) {
		if err == nil {
			other.Close()
		}
		t.Fatalf("the directory was opened while a ring could still write to it: %v", err)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	other, err := OpenDisk(dir, DiskOptions{LockWait: 20 * time.Second})
	if err != nil {
		t.Fatalf("the lock outlived the ring: %v", err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestArenaMemoryIsWrittenFixed(t *testing.T) {
	a, err := NewArena(2*BlockBytes, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	scratch := aligned(t, BlockBytes)
	b := a.Get()
	defer b.Release()
	for _, test := range []struct {
		name string
		p    []byte
		want int
	}{
		{"whole buffer", b.Bytes(), b.Index()},
		{"second block", b.Bytes()[BlockBytes:], b.Index()},
		{"last buffer", a.bufs[2].bytes, 2},
		{"across two buffers", a.mem[BlockBytes : 3*BlockBytes], -1},
		{"scratch", scratch, -1},
		{"nothing", nil, -1},
	} {
		if got := a.indexOf(test.p); got != test.want {
			t.Errorf("%s: buffer %d, want %d", test.name, got, test.want)
		}
	}
	if (*Arena)(nil).indexOf(scratch) != -1 {
		t.Error("no arena holds memory")
	}
}

// faultyRing wraps a real ring and refuses or fails what a test wants.
type faultyRing struct {
	uring.Ring
	errs []error // results of the next calls of Enter; nil passes the call through
}

func (r *faultyRing) Enter(minComplete uint32) error {
	if len(r.errs) > 0 {
		err := r.errs[0]
		r.errs = r.errs[1:]
		if err != nil {
			return err
		}
	}
	return r.Ring.Enter(minComplete)
}

func repeat(err error, n int) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// The caller does not see errors of the ring that mean "again". An operation that was never started is not stored, now
// or later.
func TestRingErrors(t *testing.T) {
	d, q := openQueue(t, t.TempDir(), QueueOptions{Depth: 4})
	faulty := &faultyRing{Ring: q.ring}
	q.ring = faulty
	f := createFile(t, d, "a", 8*BlockBytes)
	p := aligned(t, BlockBytes)
	p[0] = 1
	faulty.errs = []error{syscall.EINTR, syscall.EAGAIN, syscall.EBUSY, syscall.ETIME}
	if err := q.Submit(Op{File: f, Data: p, Tag: 1}); err != nil {
		t.Fatalf("errors that pass: %v", err)
	}
	faulty.errs = append(repeat(syscall.EINTR, 10*uring.MaxEnterTries), syscall.EBUSY) // signals may come for days
	if done, err := q.Wait(nil, true); err != nil || len(done) != 1 || done[0].Err != nil {
		t.Fatalf("completions %v, %v", done, err)
	}
	for range 10 { // more than the ring has entries
		faulty.errs = repeat(syscall.EAGAIN, uring.MaxEnterTries)
		if err := q.Submit(Op{File: f, Data: p, Offset: BlockBytes}); !errors.Is(err, syscall.EAGAIN) &&
			!errors.Is(err, uring.ErrStuck) {
			t.Fatalf("a submission that the kernel never took: %v", err)
		}
	}
	if q.InFlight() != 0 {
		t.Fatalf("%d in flight, want none", q.InFlight())
	}
	faulty.errs = nil
	if err := q.Submit(Op{File: f, Data: p, Offset: 2 * BlockBytes, Tag: 2}); err != nil {
		t.Fatal(err)
	}
	for q.InFlight() > 0 {
		done, err := q.Wait(nil, true)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range done {
			if c.Tag != 2 || c.Err != nil {
				t.Fatalf("completion %v", c)
			}
		}
	}
	got := make([]byte, BlockBytes)
	if err := f.ReadAt(got, BlockBytes); err != nil || got[0] != 0 {
		t.Fatalf("a write that was reported as not started is on the disk: %v, %v", got[0], err)
	}
	if err := f.ReadAt(got, 2*BlockBytes); err != nil || got[0] != 1 {
		t.Fatalf("the queue did not recover: %v, %v", got[0], err)
	}
}

func TestBrokenRingStopsTheQueue(t *testing.T) {
	d, q := openQueue(t, t.TempDir(), QueueOptions{})
	faulty := &faultyRing{Ring: q.ring, errs: []error{nil, syscall.EIO}}
	q.ring = faulty
	f := createFile(t, d, "a", BlockBytes)
	p := aligned(t, BlockBytes)
	if err := q.Submit(Op{File: f, Data: p}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := q.Wait(nil, true); !errors.Is(err, syscall.EIO) {
			t.Fatalf("Wait: %v, want EIO", err)
		}
		if err := q.Submit(Op{File: f, Data: p}); !errors.Is(err, syscall.EIO) {
			t.Fatalf("Submit: %v, want EIO", err)
		}
	}
	q.broken = nil // so that the cleanup drains the real ring
}

// The read for wake-ups cannot fail. If it does fail, the owner must not spin on it.
func TestFailedWakeReadBreaksTheQueue(t *testing.T) {
	_, q := openQueue(t, t.TempDir(), QueueOptions{})
	event := q.event
	bad, err := os.Open(t.TempDir()) // reading a directory fails
	if err != nil {
		t.Fatal(err)
	}
	defer bad.Close()
	q.event = bad
	if _, err := q.Wait(nil, true); !errors.Is(err, syscall.EISDIR) {
		t.Fatalf("Wait: %v, want EISDIR", err)
	}
	q.event, q.broken = event, nil
}

// The owner of a queue and the goroutine of its ring wake each other: a write that is submitted while the ring sleeps
// begins, and its completion ends the owner's sleep.
func TestRingAndOwnerWakeEachOther(t *testing.T) {
	d, ring := openQueue(t, t.TempDir(), QueueOptions{})
	if err := ring.Close(); err != nil { // only its disk is used
		t.Fatal(err)
	}
	q, err := newRingQueue(d, 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	f, p := createFile(t, d, "a", BlockBytes), aligned(t, BlockBytes)
	rounds := make(chan error)
	go func() { // the owner
		defer close(rounds)
		for range 100 {
			if err := q.Submit(Op{File: f, Data: p}); err != nil {
				rounds <- err
				return
			}
			for n := 0; n == 0; {
				done, err := q.Wait(nil, true)
				if n = len(done); err != nil || n > 0 && done[0].Err != nil {
					rounds <- fmt.Errorf("%v, %v", done, err)
					return
				}
			}
			rounds <- nil
		}
	}()
	for open := true; open; {
		select {
		case err, open = <-rounds:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("a write or its completion is not noticed")
		}
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
}

// A write that the ring does not take comes back as a completion with the error.
func TestStartFails(t *testing.T) {
	_, ring := openQueue(t, t.TempDir(), QueueOptions{})
	q := &ringQueue{ring: ring, ops: make(chan Op, 2)}
	ring.broken = syscall.EIO
	q.ops <- Op{Tag: 7}
	close(q.ops)
	done, open := q.submitAll(nil)
	if ring.broken = nil; open || len(done) != 1 || done[0].Tag != 7 || done[0].Err != syscall.EIO {
		t.Errorf("%v, open %v", done, open)
	}
}

func TestQueueBelongsToItsThread(t *testing.T) {
	d, q := openQueue(t, t.TempDir(), QueueOptions{})
	f := createFile(t, d, "a", BlockBytes)
	p := aligned(t, BlockBytes)
	var other sync.WaitGroup
	other.Go(func() {
		defer func() {
			if text, _ := recover().(string); !strings.HasPrefix(text, "BUG: ") {
				t.Errorf("a foreign goroutine's Submit ended with %q, want BUG", text)
			}
		}()
		if err := q.Submit(Op{File: f, Data: p}); err == nil {
			t.Log("this kernel has no single-issuer rings")
			panic("BUG: none")
		}
	})
	other.Wait()
}

// A completion is an error unless every byte was taken.
func TestResult(t *testing.T) {
	for _, test := range []struct {
		res  int32
		want error
	}{
		{4096, nil},
		{0, io.ErrShortWrite},
		{4095, io.ErrShortWrite},
		{-int32(syscall.ECANCELED), syscall.ECANCELED},
		{-int32(syscall.EIO), syscall.EIO},
		{-int32(syscall.EINTR), syscall.EINTR},
	} {
		if err := result(test.res, 4096); !errors.Is(err, test.want) {
			t.Errorf("result %d: %v, want %v", test.res, err, test.want)
		}
	}
}

// Kernels before 6.1 have no rings for one thread: the queue must work on an unbound ring.
func TestPlainRing(t *testing.T) {
	d, q := openQueue(t, t.TempDir(), QueueOptions{Depth: 8})
	plain, err := uring.OpenUnbound(9)
	if err != nil {
		t.Fatal(err)
	}
	q.ring.Close()
	q.ring = plain
	f := createFile(t, d, "a", 8*BlockBytes)
	p := aligned(t, BlockBytes)
	for round := range 50 {
		p[0] = byte(round)
		for i := range 8 {
			if err := q.Submit(Op{File: f, Data: p, Offset: int64(i) * BlockBytes}); err != nil {
				t.Fatal(err)
			}
		}
		var waker sync.WaitGroup
		waker.Go(q.Wake)
		for n := 0; n < 8; {
			done, err := q.Wait(nil, round%2 == 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range done {
				if c.Err != nil {
					t.Fatal(c.Err)
				}
			}
			n += len(done)
		}
		waker.Wait()
		q.Wake()
		if _, err := q.Wait(nil, true); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, 1)
	if err := f.ReadAt(got, 7*BlockBytes); err != nil || got[0] != 49 {
		t.Fatalf("read %v, %v", got, err)
	}
}

// Two queues, like those of the commit log and of the segment writer, share an arena and are woken all the time.
func TestQueuesSideBySide(t *testing.T) {
	d, _ := openQueue(t, t.TempDir(), QueueOptions{})
	a, err := NewArena(BlockBytes, 8)
	if err != nil {
		t.Fatal(err)
	}
	var owners, wakers sync.WaitGroup
	stop := make(chan struct{})
	for id := range 2 {
		f := createFile(t, d, string(rune('a'+id)), 64*BlockBytes)
		owners.Go(func() {
			q, err := d.NewQueue(QueueOptions{Depth: 4, Arena: a})
			if err != nil {
				t.Error(err)
				return
			}
			defer q.Close()
			wakers.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						q.Wake()
						time.Sleep(20 * time.Microsecond) // sets the rate of wake-ups; does not wait for anything
					}
				}
			})
			writeAll(t, q, f, a)
		})
	}
	owners.Wait()
	close(stop)
	wakers.Wait()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
}

// writeAll writes 500 blocks with buffers of the arena and checks that it gets every completion once.
func writeAll(t *testing.T, q Queue, f File, a *Arena) {
	held := map[uint64]*Buf{}
	var done []Completion
	for sent, seen := uint64(0), 0; seen < 500; {
		for sent < 500 && len(held) < 4 {
			b := a.Get()
			b.Bytes()[0] = byte(sent)
			if err := q.Submit(Op{File: f, Data: b.Bytes(), Offset: int64(sent%64) * BlockBytes, Tag: sent}); err != nil {
				t.Error(err)
				return
			}
			held[sent] = b
			sent++
		}
		var err error
		if done, err = q.Wait(done[:0], true); err != nil {
			t.Error(err)
			return
		}
		for _, c := range done {
			if c.Err != nil || held[c.Tag] == nil {
				t.Errorf("completion %v", c)
				return
			}
			held[c.Tag].Release()
			delete(held, c.Tag)
			seen++
		}
	}
}

// The hot path allocates nothing.
func TestQueueAllocatesNothing(t *testing.T) {
	d, q := openQueue(t, t.TempDir(), QueueOptions{})
	f := createFile(t, d, "a", BlockBytes)
	p := aligned(t, BlockBytes)
	for name, queue := range map[string]Queue{"uring": q, "pwrite": newPwriteQueue(2)} {
		done := make([]Completion, 0, 2)
		if n := testing.AllocsPerRun(50, func() {
			if err := queue.Submit(Op{File: f, Data: p}); err != nil {
				t.Fatal(err)
			}
			for done = done[:0]; len(done) == 0; {
				var err error
				if done, err = queue.Wait(done, true); err != nil {
					t.Fatal(err)
				}
			}
			queue.Wake()
			if _, err := queue.Wait(nil, true); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations for one write, want none", name, n)
		}
	}
}
