package aio_test

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"penstock/segment/aio"
)

func newArena(t testing.TB, bufBytes, count int) *aio.Arena {
	t.Helper()
	a, err := aio.NewArena(bufBytes, count)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// mustPanicBug runs fn, which must panic because of a programming error.
func mustPanicBug(t testing.TB, fn func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if text, _ := recover().(string); !strings.HasPrefix(text, "BUG: ") {
			t.Errorf("panic %q, want one that begins with BUG:", text)
		}
	}()
	fn()
}

func TestArenaHandsOutEachBufferOnce(t *testing.T) {
	const count = 5
	a := newArena(t, 2*aio.BlockBytes, count)
	if a.Count() != count || a.BufBytes() != 2*aio.BlockBytes || a.Free() != count {
		t.Fatalf("Count %d, BufBytes %d, Free %d", a.Count(), a.BufBytes(), a.Free())
	}
	seen := map[int]*aio.Buf{}
	for i := range count {
		b := a.Get()
		if b == nil || seen[b.Index()] != nil {
			t.Fatalf("buffer %d of %d is missing or was handed out twice", i, count)
		}
		if len(b.Bytes()) != a.BufBytes() || uintptr(unsafe.Pointer(&b.Bytes()[0]))%aio.BlockBytes != 0 {
			t.Fatalf("buffer %d has %d bytes at %p: wrong size or not aligned", b.Index(), len(b.Bytes()), &b.Bytes()[0])
		}
		for j := range b.Bytes() {
			b.Bytes()[j] = byte(b.Index())
		}
		seen[b.Index()] = b
	}
	if a.Get() != nil || a.Free() != 0 {
		t.Fatal("an empty arena handed out a buffer")
	}
	for index, b := range seen {
		if !bytes.Equal(b.Bytes(), bytes.Repeat([]byte{byte(index)}, a.BufBytes())) {
			t.Fatalf("buffer %d was changed through another one", index)
		}
	}
	if err := a.Close(); err == nil {
		t.Fatal("an arena was closed with buffers held")
	}
	for _, b := range seen {
		b.Release()
	}
	if err := errors.Join(a.Close(), a.Close()); err != nil {
		t.Fatal(err)
	}
	if a.Get() != nil {
		t.Fatal("a closed arena handed out a buffer")
	}
}

func TestArenaLimits(t *testing.T) {
	for _, bad := range [][2]int{
		{0, 1}, {-4096, 1}, {4095, 1}, {4097, 1}, {4096, 0}, {4096, -1}, {1 << 30, 17}, {1 << 40, 1 << 40},
	} {
		if a, err := aio.NewArena(bad[0], bad[1]); err == nil {
			a.Close()
			t.Errorf("an arena of %d buffers of %d bytes was made", bad[1], bad[0])
		}
	}
}

func TestBufCounting(t *testing.T) {
	a := newArena(t, aio.BlockBytes, 1)
	defer a.Close()
	var calls int
	a.OnRelease(func() {
		calls++
		if a.Free() != 1 { // the lock is not held, and the buffer is free again
			t.Error("OnRelease was called before the buffer was free")
		}
	})
	b := a.Get()
	b.Retain()
	if b.Refs() != 2 {
		t.Fatalf("%d references, want 2", b.Refs())
	}
	b.Release()
	if calls != 0 || a.Free() != 0 {
		t.Fatal("the buffer came back with a reference left")
	}
	b.Release()
	if calls != 1 || a.Free() != 1 {
		t.Fatalf("OnRelease was called %d times, %d free", calls, a.Free())
	}
	mustPanicBug(t, b.Release)
	a2 := newArena(t, aio.BlockBytes, 1)
	defer a2.Close()
	b = a2.Get()
	b.Release()
	mustPanicBug(t, b.Retain)
	a.OnRelease(nil)
}

// Offset accepts bytes of the buffer and refuses all others.
func TestBufOffset(t *testing.T) {
	arena := newArena(t, 8192, 3)
	b, other := arena.Get(), arena.Get()
	defer b.Release()
	defer other.Release()
	for _, c := range [][2]int{{0, 1}, {0, 8192}, {8191, 8192}, {100, 4000}} {
		if got := b.Offset(b.Bytes()[c[0]:c[1]]); got != c[0] {
			t.Errorf("bytes from %d begin at %d", c[0], got)
		}
	}
	mustPanicBug(t, func() { b.Offset(other.Bytes()[:1]) })
	mustPanicBug(t, func() { other.Offset(b.Bytes()[8000:]) })
}

func TestLargeBuffers(t *testing.T) {
	a := newArena(t, aio.BlockBytes, 1)
	a.SetMaxLargeBytes(3 * aio.BlockBytes)
	one, err := a.GetLarge(aio.BlockBytes + 1)
	if err != nil {
		t.Fatal(err)
	}
	if len(one.Bytes()) != 2*aio.BlockBytes || one.Index() != -1 || a.LargeBytes() != 2*aio.BlockBytes {
		t.Fatalf("%d bytes, index %d, %d in use", len(one.Bytes()), one.Index(), a.LargeBytes())
	}
	if _, err := a.GetLarge(aio.BlockBytes + 1); !errors.Is(err, aio.ErrNoMemory) {
		t.Fatalf("above the limit: %v, want ErrNoMemory", err)
	}
	two, err := a.GetLarge(aio.BlockBytes) // exactly up to the limit
	if err != nil {
		t.Fatal(err)
	}
	var calls int
	a.OnRelease(func() { calls++ })
	one.Release()
	if calls != 1 || a.LargeBytes() != aio.BlockBytes {
		t.Fatalf("%d calls, %d bytes in use after a release", calls, a.LargeBytes())
	}
	if one.Bytes() != nil {
		t.Fatal("a released large buffer still shows its bytes, which are unmapped")
	}
	if err := a.Close(); err == nil {
		t.Fatal("the arena was closed with a large buffer held")
	}
	two.Release()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.GetLarge(1); !errors.Is(err, aio.ErrClosed) {
		t.Fatalf("GetLarge of a closed arena: %v, want ErrClosed", err)
	}
	mustPanicBug(t, func() { _, _ = a.GetLarge(0) })
}

// The memory of a released large buffer serves the next one of a similar size; what nobody used between two calls of
// Trim goes back to the system. Spare memory takes no room from buffers that are in use.
func TestLargeBuffersAreUsedAgain(t *testing.T) {
	const mib = 1 << 20
	a := newArena(t, aio.BlockBytes, 1)
	defer a.Close()
	a.SetPoison(false)
	a.SetMaxLargeBytes(16 * mib)
	get := func(n int) *aio.Buf {
		t.Helper()
		b, err := a.GetLarge(n)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	sized := func(n int) (b *aio.Buf, again bool) { // again: it is used memory, which a new mapping is not
		b = get(n)
		again = b.Bytes()[0] == 1
		b.Bytes()[0] = 1
		return b, again
	}
	b, again := sized(700_000)
	if got := len(b.Bytes()); got < 700_000 || got > 700_000*9/8+aio.BlockBytes || again {
		t.Fatalf("%d bytes, used before: %v", got, again)
	}
	b.Release()
	if a.LargeBytes() != 0 {
		t.Errorf("%d bytes in use after the release", a.LargeBytes())
	}
	if b, again = sized(690_000); !again {
		t.Error("a buffer of a similar size has new memory")
	}
	other, again := sized(690_000)
	if again {
		t.Error("two buffers share memory")
	}
	other.Release()
	b.Release()
	a.Trim() // both were used since the beginning
	if b, again = sized(700_000); !again {
		t.Error("Trim took what had been used")
	}
	b.Release()
	a.Trim()
	a.Trim()
	if b, again = sized(700_000); again {
		t.Error("Trim kept what had not been used")
	}
	b.Release()
	for _, b := range []*aio.Buf{get(5 * mib), get(5 * mib)} {
		b.Release()
	}
	get(16 * mib).Release() // the spare ones make room
}

func TestPoisonPunishesBorrowers(t *testing.T) {
	a := newArena(t, aio.BlockBytes, 2)
	defer a.Close()
	a.SetPoison(true)
	b := a.Get()
	borrowed := b.Bytes()
	clear(borrowed)
	b.Release()
	if !bytes.Equal(borrowed, bytes.Repeat([]byte{0xDB}, len(borrowed))) {
		t.Fatal("a released buffer still shows its bytes")
	}
}

func TestArenaConcurrent(t *testing.T) {
	a := newArena(t, aio.BlockBytes, 4)
	a.SetPoison(true)
	var released atomic.Int64
	a.OnRelease(func() { released.Add(1) })
	var all sync.WaitGroup
	for id := range 4 {
		all.Go(func() {
			for got := 0; got < 300; {
				b := a.Get()
				if b == nil {
					continue
				}
				got++
				b.Bytes()[0] = byte(id)
				b.Retain()
				var reader sync.WaitGroup
				reader.Go(func() {
					if b.Bytes()[0] != byte(id) {
						t.Error("a buffer was handed out while it was held")
					}
					b.Release()
				})
				b.Release()
				reader.Wait()
			}
		})
	}
	all.Wait()
	if released.Load() != 4*300 || a.Free() != 4 {
		t.Fatalf("%d releases, %d free", released.Load(), a.Free())
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestGetAndReleaseAllocateNothing(t *testing.T) {
	a := newArena(t, aio.BlockBytes, 2)
	defer a.Close()
	a.OnRelease(func() {})
	if n := testing.AllocsPerRun(100, func() {
		b := a.Get()
		b.Retain()
		b.Release()
		b.Release()
	}); n != 0 {
		t.Errorf("%v allocations for Get and Release, want none", n)
	}
}

func TestAlignedBytes(t *testing.T) {
	for _, n := range []int{0, 1, 4095, 4096, 4097, 1 << 20} {
		p, free := aio.AlignedBytes(n)
		if len(p) != n || cap(p)%aio.BlockBytes != 0 {
			t.Errorf("AlignedBytes(%d) has length %d and capacity %d", n, len(p), cap(p))
		}
		if n > 0 && uintptr(unsafe.Pointer(&p[0]))%aio.BlockBytes != 0 {
			t.Errorf("AlignedBytes(%d) is not aligned", n)
		}
		for i := range p {
			if p[i] != 0 {
				t.Fatalf("AlignedBytes(%d) is not zeroed", n)
			}
			p[i] = 1
		}
		free()
		free()
	}
	mustPanicBug(t, func() { aio.AlignedBytes(-1) })
}
