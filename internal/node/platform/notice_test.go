package platform

import (
	"sync"
	"sync/atomic"
	"testing"
)

// A goroutine that waits for a condition is woken by every change of it, even one between its check and its wait.
func TestNotice(t *testing.T) {
	t.Parallel()
	const waiters, last = 4, 10_000
	var n Notice
	var value atomic.Int64
	n.Raise() // nobody waits: nothing happens
	var wg sync.WaitGroup
	for range waiters {
		wg.Go(func() {
			for seen := int64(0); seen < last; {
				news := n.Next()
				if now := value.Load(); now != seen {
					seen = now
					continue
				}
				<-news
			}
		})
	}
	for range last {
		value.Add(1)
		n.Raise()
	}
	wg.Wait()
}
