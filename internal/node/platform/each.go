package platform

import (
	"sync"
	"sync/atomic"
)

// maxEachCount bounds the calls that Each makes at a time: enough to keep a device busy that answers after 100 µs.
const maxEachCount = 16

// Each calls do with 0 to n-1, several at a time, and returns when all calls have ended. The calls wait for nothing but
// the disk. In a simulation they run one after the other, in order.
func Each(h Host, n int, do func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(n, maxEachCount) {
		h.Alongside(&wg, func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	wg.Wait()
}
