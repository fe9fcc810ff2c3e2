//go:build !race

// Under the race detector sync.Pool drops buffers on purpose, so there is nothing to measure.

package netproto

import (
	"runtime"
	"runtime/debug"
	"testing"
)

type noOwner struct{}

func (noOwner) Release() {}

// A frame costs no allocation on either side, copied or borrowed.
func TestNoAllocations(t *testing.T) {
	for _, size := range []int{100, 4 << 10, 20 << 10, 300 << 10} {
		h := &counting{there: make(chan struct{}, 1)}
		a, _ := handshake(t, testOptions("a", newSink(nil)), Options{Hello: testHello("b"), Handler: h})
		f := &Frame{
			Type: TypePutMessagesOnReplica, Flags: FlagSelfChecked, Head: make([]byte, 48), Body: [][]byte{make([]byte, size)},
			Owner: noOwner{},
		}
		n := min(20_000, 200<<20/size)
		collects := debug.SetGCPercent(-1) // a collection empties pools: on a busy machine that is as many as the frames
		h.pass(t, a, f, n)                 // the pools fill
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		h.pass(t, a, f, n)
		runtime.ReadMemStats(&after)
		debug.SetGCPercent(collects)
		// Waiting for room allocates, on a busy machine for one of 20 large frames. A leak in the path is 1 per frame.
		if perFrame := float64(after.Mallocs-before.Mallocs) / float64(n); perFrame > 0.2 {
			t.Errorf("%d bytes: %.3f allocations per frame", size, perFrame)
		}
	}
}
