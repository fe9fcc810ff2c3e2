package platform

import (
	"sync/atomic"
)

// Notice wakes all goroutines that wait for a condition. Any goroutine may call its methods, with any lock held:
//
//	goroutine that waits                       goroutine that changes something
//	1 Next: takes the channel
//	                                           2 changes what the condition reads
//	3 evaluates the condition: false
//	                                           4 Raise: closes the channel
//	5 is woken, evaluates it again
//
// A change after step 1 closes the channel of step 1, so no change is missed, provided that every change is followed by
// Raise. A goroutine may also be woken while its condition is still false. Raise costs one load while nobody waits. The
// zero Notice is ready for use. A crash leaves nothing of it.
type Notice struct {
	ch atomic.Pointer[chan struct{}] // closed by the next Raise; nil: no Next since the last Raise
}

// Next returns a channel that the next Raise closes.
func (n *Notice) Next() <-chan struct{} {
	fresh := make(chan struct{})
	for {
		if ch := n.ch.Load(); ch != nil {
			return *ch
		}
		if n.ch.CompareAndSwap(nil, &fresh) {
			return fresh
		}
	}
}

// Raise wakes all goroutines that wait. It must be called after the change.
func (n *Notice) Raise() {
	if ch := n.ch.Load(); ch != nil && n.ch.CompareAndSwap(ch, nil) {
		close(*ch)
	}
}
