package clog

import (
	"testing"

	"penstock/segment/aio"
)

// Recovery may read more than the limit for large buffers: the limit is raised by what the arena makes of each size.
func TestWindowBeyondTheLimit(t *testing.T) {
	arena := testArena(t, aio.BlockBytes, 1)
	arena.SetMaxLargeBytes(aio.BlockBytes)
	for _, n := range []int{aio.BlockBytes, 17 * aio.BlockBytes, windowBytes - 3*aio.BlockBytes} {
		w := window{arena: arena, block: aio.BlockBytes}
		if err := w.grab(n); err != nil || len(w.mem) < n {
			t.Errorf("%d of %d bytes, %v", len(w.mem), n, err)
		}
		defer w.release()
	}
	arena.SetMaxLargeBytes(64 << 20)
	w := window{arena: arena, block: aio.BlockBytes}
	if err := w.grab(17 * aio.BlockBytes); err != nil {
		t.Error(err)
	}
	w.release()
	b, err := arena.GetLarge(16 << 20)
	if err != nil {
		t.Fatal("the limit was lowered:", err)
	}
	b.Release()
}
