package node

import "penstock/segment/aio"

// TakeBuffers takes every free buffer of an engine until release is called.
func TakeBuffers(e *Engine) (release func()) {
	var taken []*aio.Buf
	for b := e.store.Arena().Get(); b != nil; b = e.store.Arena().Get() {
		taken = append(taken, b)
	}
	return func() {
		for _, b := range taken {
			b.Release()
		}
	}
}
